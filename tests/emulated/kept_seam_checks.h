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

// Rows of several sequences at once in two layers, whose lists shrink and grow: lists, sums and
// choices are the CPU's bit for bit.
inline void check_kept_tokens(const Seam& seam) {
  constexpr std::int64_t kLayers = 2;
  Cpu cpu;
  std::mt19937 random(41);
  struct Sequence {
    std::int64_t prompt, budget, local, count;
    std::unique_ptr<DeviceLists> ours, theirs;
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
                         std::make_unique<DeviceLists>(seam.device, kKvHeads, room, kLayers),
                         std::make_unique<DeviceLists>(cpu.device, kKvHeads, room, kLayers)});
    // The layers of a sequence together.
    std::vector<KeptTokens> ours;
    std::vector<KeptTokens> theirs;
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      ours.push_back(in_layer(sequences.back().ours->first_layer(), layer));
      theirs.push_back(in_layer(sequences.back().theirs->first_layer(), layer));
    }
    seam.sparse.keep_all(ours, prompt, seam.stream);
    cpu.sparse->keep_all(theirs, prompt, *cpu.stream);
  }
  const auto expect_same = [&](std::int64_t step) {
    seam.stream.synchronize();
    for (const Sequence& sequence : sequences) {
      ASSERT_EQ(sequence.ours->tokens(sequence.count), sequence.theirs->tokens(sequence.count))
          << "step " << step << " prompt " << sequence.prompt;
      ASSERT_EQ(comparable(sequence.ours->sums(sequence.count)),
                comparable(sequence.theirs->sums(sequence.count)))
          << "step " << step << " prompt " << sequence.prompt;
    }
  };
  expect_same(-1);
  for (std::int64_t step = 0; step < 60; ++step) {
    std::vector<KeptRow> our_rows;
    std::vector<KeptRow> their_rows;
    for (Sequence& sequence : sequences) {
      KeptRow row{.kept = sequence.ours->first_layer(),
                  .count = sequence.count,
                  .added = 1,
                  .context = sequence.prompt + step + 1,
                  .local = sequence.local,
                  .total = sequence.budget};
      our_rows.push_back(row);
      row.kept = sequence.theirs->first_layer();
      their_rows.push_back(row);
      sequence.count = tokens_left(row);
    }
    Selection ours = seam.sparse.keep_heaviest(our_rows, kLayers, seam.stream);
    const Selection theirs = cpu.sparse->keep_heaviest(their_rows, kLayers, *cpu.stream);
    ASSERT_EQ(ours.rows, kLayers * std::ssize(sequences));
    ASSERT_EQ(ours.capacity, list_capacity(theirs.capacity));
    expect_same_choices(seam, ours, cpu, theirs);
    expect_same(step);
    if (step % 7 == 3) {
      // Asked again: the same.
      for (std::size_t i = 0; i < our_rows.size(); ++i) {
        our_rows[i].count = sequences[i].count;
        our_rows[i].added = 0;
      }
      ours = seam.sparse.keep_heaviest(our_rows, kLayers, seam.stream);
      expect_same_choices(seam, ours, cpu, theirs);
      expect_same(step);
    }
    // Some rows are attended, in another order.
    std::vector<float> weights(
        static_cast<std::size_t>(theirs.rows * theirs.lists * theirs.capacity));
    for (float& weight : weights) weight = draw_weight(random);
    const SeamScores scores(seam, cpu, ours, theirs, weights);
    std::vector<KeptWeights> our_added;
    std::vector<KeptWeights> their_added;
    for (std::size_t i = sequences.size(); i-- > 0;) {
      if (static_cast<std::int64_t>(i) == step % 11) continue;
      const auto row = static_cast<std::int64_t>(i);
      our_added.push_back({sequences[i].ours->first_layer(), sequences[i].count, row});
      their_added.push_back({sequences[i].theirs->first_layer(), sequences[i].count, row});
    }
    const std::int64_t of_layer = std::ssize(sequences);
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      const std::int64_t first = layer * of_layer;
      Selection our_part = ours.part(first, of_layer);
      Selection their_part = theirs.part(first, of_layer);
      our_part.scores = scores.ours(first * ours.lists);
      their_part.scores = scores.theirs(first * theirs.lists);
      const std::int64_t heads = ours.lists * kDrawnHeads;
      seam.sparse.add_kept_weights(our_part, heads, our_added, layer, false, seam.stream);
      cpu.sparse->add_kept_weights(their_part, heads, their_added, layer, false, *cpu.stream);
    }
    expect_same(step);
  }
}

}  // namespace triphase::cuda
