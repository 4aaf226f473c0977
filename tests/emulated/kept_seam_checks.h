#pragma once

// Kept tokens on a CUDA SparseOps, beside the CPU's: run on the emulator, with guarded memory, and
// on a GPU.

#include "tests/emulated/sparse_seam_checks.h"

namespace triphase::cuda {

// Lists in a device's memory, layer after layer, poisoned until they are filled.
class DeviceLists {
 public:
  DeviceLists(Device& device, std::int64_t lists, std::int64_t room, std::int64_t layers = 1)
      : tokens_(device, layers * lists * room),
        sums_(device, layers * lists * room),
        lists_(lists),
        room_(room),
        layers_(layers) {}
  [[nodiscard]] KeptTokens first_layer() const {
    return {.tokens = tokens_.data(),
            .sums = sums_.data(),
            .lists = lists_,
            .room = room_,
            .layer_bytes = lists_ * room_ * std::int64_t{sizeof(float)}};
  }
  // The first `count` of each list.
  [[nodiscard]] std::vector<std::int32_t> tokens(std::int64_t count) const {
    return first_of(tokens_.host(), count);
  }
  [[nodiscard]] std::vector<float> sums(std::int64_t count) const {
    return first_of(sums_.host(), count);
  }

 private:
  template <class T>
  [[nodiscard]] std::vector<T> first_of(const std::vector<T>& all, std::int64_t count) const {
    std::vector<T> values;
    for (std::int64_t list = 0; list < layers_ * lists_; ++list) {
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(list * room_);
      values.insert(values.end(), first, first + count);
    }
    return values;
  }

  DeviceArray<std::int32_t> tokens_;
  DeviceArray<float> sums_;
  std::int64_t lists_, room_, layers_;
};

struct KeptRun {
  std::vector<Choices> choices;
  std::vector<std::int64_t> capacities;  // of the choices
  // Of every sequence, after all that changes them.
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<std::vector<float>> sums;
};

// Rows of several sequences at once in two layers, whose lists shrink and grow.
inline KeptRun keep_and_weigh(const Seam& on) {
  constexpr std::int64_t kLayers = 2;
  KeptRun run;
  std::mt19937 random(41);
  struct Sequence {
    std::int64_t prompt, budget, local, count;
    std::unique_ptr<DeviceLists> lists;
  };
  std::vector<Sequence> sequences;
  for (const auto& [prompt, budget, local] :
       {std::tuple<std::int64_t, std::int64_t, std::int64_t>{600, 100, 25},
        {1, 9, 3},
        {30, 1, 1},
        {257, 300, 0},
        {40, 41, 41}}) {
    const std::int64_t room = std::max(prompt, budget) + 1;
    sequences.push_back({prompt, budget, local, prompt,
                         std::make_unique<DeviceLists>(on.device, kKvHeads, room, kLayers)});
    // The layers of a sequence together.
    std::vector<KeptTokens> views;
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      views.push_back(in_layer(sequences.back().lists->first_layer(), layer));
    }
    on.sparse.keep_all(views, prompt, on.stream);
  }
  const auto record = [&] {
    on.stream.synchronize();
    for (const Sequence& sequence : sequences) {
      run.tokens.push_back(sequence.lists->tokens(sequence.count));
      run.sums.push_back(comparable(sequence.lists->sums(sequence.count)));
    }
  };
  record();
  for (std::int64_t step = 0; step < 60; ++step) {
    std::vector<KeptRow> rows;
    std::int64_t longest = 0;
    for (Sequence& sequence : sequences) {
      rows.push_back({.kept = sequence.lists->first_layer(),
                      .count = sequence.count,
                      .added = 1,
                      .context = sequence.prompt + step + 1,
                      .local = sequence.local,
                      .total = sequence.budget});
      sequence.count = tokens_left(rows.back());
      longest = std::max(longest, sequence.count);
    }
    Selection chosen = on.sparse.keep_heaviest(rows, kLayers, on.stream);
    EXPECT_EQ(chosen.rows, kLayers * std::ssize(sequences));
    run.capacities.push_back(chosen.capacity);
    run.choices.push_back(choices_of(on, chosen));
    record();
    if (step % 7 == 3) {
      // Asked again: the same.
      for (std::size_t i = 0; i < rows.size(); ++i) {
        rows[i].count = sequences[i].count;
        rows[i].added = 0;
      }
      chosen = on.sparse.keep_heaviest(rows, kLayers, on.stream);
      expect_same({choices_of(on, chosen)}, {run.choices.back()});
      record();
    }
    // Some rows are attended, in another order.
    std::vector<float> weights(static_cast<std::size_t>(chosen.rows * chosen.lists * longest));
    for (float& weight : weights) weight = draw_weight(random);
    const SeamScores scores(on.device, chosen, weights, longest);
    std::vector<KeptWeights> added;
    for (std::size_t i = sequences.size(); i-- > 0;) {
      const auto row = static_cast<std::int64_t>(i);
      if (row == step % 11) continue;
      added.push_back({sequences[i].lists->first_layer(), sequences[i].count, row});
    }
    const std::int64_t of_layer = std::ssize(sequences);
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      Selection part = chosen.part(layer * of_layer, of_layer);
      part.scores = scores.from(layer * of_layer * chosen.lists);
      on.sparse.add_kept_weights(part, chosen.lists * kDrawnHeads, added, layer, false, on.stream);
    }
    record();
  }
  return run;
}

// Lists, sums and choices are the CPU's bit for bit.
inline void check_kept_tokens(const Seam& seam) {
  Cpu host;
  const KeptRun ours = keep_and_weigh(seam);
  const KeptRun theirs = keep_and_weigh(host.seam());
  expect_same(ours.choices, theirs.choices);
  expect_capacities(ours.capacities, theirs.capacities);
  ASSERT_EQ(ours.tokens.size(), theirs.tokens.size());
  for (std::size_t i = 0; i < theirs.tokens.size(); ++i) {
    ASSERT_EQ(ours.tokens[i], theirs.tokens[i]) << "sequence " << i % 5;
    ASSERT_EQ(ours.sums[i], theirs.sums[i]) << "sequence " << i % 5;
  }
}

}  // namespace triphase::cuda
