#pragma once

// Windows of weights on a CUDA SparseOps, beside the CPU's: run on the emulator, with guarded
// memory, and on a GPU.

#include "models/attention/weight_slots.h"
#include "tests/emulated/sparse_seam_checks.h"

namespace triphase::cuda {

// A window in a device's memory, layer after layer, poisoned until it is cleared.
class DeviceWindow {
 public:
  DeviceWindow(Device& device, bool exact, std::int64_t tokens, std::int64_t room,
               std::int64_t layers = 1)
      : memory_(device,
                layers * static_cast<std::int64_t>(weight_window_bytes(exact, tokens, room) /
                                                   sizeof(std::int64_t))),
        view_(weight_window_at(memory_.data(), exact, tokens, room)),
        layers_(layers) {
    view_.layer_bytes = static_cast<std::int64_t>(weight_window_bytes(exact, tokens, room));
  }
  // Of the first layer.
  [[nodiscard]] const WeightWindow& view() const { return view_; }
  void add_views(std::vector<WeightWindow>& views) const {
    for (std::int64_t layer = 0; layer < layers_; ++layer) views.push_back(in_layer(view_, layer));
  }
  [[nodiscard]] std::vector<std::int64_t> sums(std::int64_t context) const {
    std::vector<std::int64_t> sums = memory_.host();
    sums.resize(static_cast<std::size_t>(context));
    return sums;
  }
  // All memory but the entries.
  [[nodiscard]] std::vector<std::int64_t> units() const {
    const std::vector<std::int64_t> all = memory_.host();
    const std::int64_t of_layer = view_.tokens * (view_.exact() ? 1 : 1 + view_.room);
    std::vector<std::int64_t> units;
    for (std::int64_t layer = 0; layer < layers_; ++layer) {
      const auto first =
          all.begin() + layer * view_.layer_bytes / std::int64_t{sizeof(std::int64_t)};
      units.insert(units.end(), first, first + of_layer);
    }
    return units;
  }

 private:
  DeviceArray<std::int64_t> memory_;
  WeightWindow view_;
  std::int64_t layers_;
};

// Both devices' windows of one sequence, and where its rows go.
struct WindowPair {
  WindowPair(Device& ours_device, Device& theirs_device, bool is_exact, std::int64_t tokens,
             std::int64_t room, std::int64_t layers = 1)
      : exact(is_exact),
        slots(exact, room),
        ours(ours_device, exact, tokens, room, layers),
        theirs(theirs_device, exact, tokens, room, layers) {}

  bool exact;
  WeightSlots slots;
  DeviceWindow ours, theirs;
};

inline void clear_both(const Seam& seam, Cpu& cpu, const std::vector<WindowPair*>& pairs) {
  std::vector<WeightWindow> ours;
  std::vector<WeightWindow> theirs;
  for (const WindowPair* pair : pairs) {
    pair->ours.add_views(ours);
    pair->theirs.add_views(theirs);
  }
  seam.sparse.clear_weights(ours, seam.stream);
  cpu.sparse->clear_weights(theirs, *cpu.stream);
  seam.stream.synchronize();
  for (const WindowPair* pair : pairs) {
    EXPECT_THAT(pair->ours.units(), testing::Each(0));
    EXPECT_EQ(pair->ours.units(), pair->theirs.units());
  }
}

// What a device chose, on the host.
inline std::vector<std::vector<std::int32_t>> lists_of(Device& device, const Selection& selection) {
  const std::unique_ptr<Stream> stream = device.make_stream();
  const auto rows = static_cast<std::size_t>(selection.rows);
  std::vector<std::int32_t> counts(rows);
  std::vector<std::int32_t> tokens(rows * static_cast<std::size_t>(selection.capacity));
  device.copy(counts.data(), selection.counts, counts.size() * sizeof(std::int32_t), *stream);
  device.copy(tokens.data(), selection.tokens, tokens.size() * sizeof(std::int32_t), *stream);
  stream->synchronize();
  std::vector<std::vector<std::int32_t>> lists;
  for (std::size_t row = 0; row < rows; ++row) {
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(row) * selection.capacity;
    lists.emplace_back(begin, begin + counts[row]);
  }
  return lists;
}

// Rows of several sequences at once in two layers, of both kinds, in windows that grow: sums and
// choices are the CPU's bit for bit.
inline void check_weight_windows(const Seam& seam) {
  constexpr std::int64_t kLayers = 2;
  Cpu cpu;
  std::mt19937 random(31);
  constexpr std::int64_t kTokens = 700;
  const std::vector<std::int64_t> starts = {1, 250, 260, 600};
  std::vector<std::unique_ptr<WindowPair>> owned;
  std::vector<WindowPair*> pairs;
  for (const bool exact : {true, false}) {
    for (std::size_t i = 0; i < starts.size(); ++i) {
      owned.push_back(std::make_unique<WindowPair>(seam.device, cpu.device, exact, kTokens,
                                                   exact ? 7 * kTokens : 12, kLayers));
      pairs.push_back(owned.back().get());
    }
  }
  clear_both(seam, cpu, pairs);
  constexpr std::int64_t kSteps = 22;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    std::vector<WindowChoice> our_choices;
    std::vector<WindowChoice> their_choices;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      const std::int64_t context = starts[i % starts.size()] + step;
      const std::int64_t total = step % 5 == 4 ? context + 2 : std::min(context, 1 + context / 2);
      const std::int64_t local = static_cast<std::int64_t>(i) % 3 * total / 4;
      our_choices.push_back({pairs[i]->ours.view(), context, std::min(local, context), total});
      their_choices.push_back({pairs[i]->theirs.view(), context, std::min(local, context), total});
    }
    const Selection ours =
        seam.sparse.choose_recent_and_heaviest(our_choices, kLayers, seam.stream);
    const Selection theirs =
        cpu.sparse->choose_recent_and_heaviest(their_choices, kLayers, *cpu.stream);
    seam.stream.synchronize();
    const std::int64_t of_layer = std::ssize(pairs);
    ASSERT_EQ(ours.rows, kLayers * of_layer);
    ASSERT_EQ(ours.capacity, list_capacity(theirs.capacity));
    const auto lists = lists_of(seam.device, ours);
    ASSERT_EQ(lists, lists_of(cpu.device, theirs)) << "step " << step;
    // What they chose is attended; some rows are not.
    std::vector<float> weights(static_cast<std::size_t>(theirs.rows * theirs.capacity));
    for (float& weight : weights) weight = draw_weight(random);
    const SeamScores scores(seam, cpu, ours, theirs, weights);
    std::vector<WeightRow> our_rows;
    std::vector<WeightRow> their_rows;
    for (std::size_t i = pairs.size(); i-- > 0;) {
      if (static_cast<std::int64_t>(i) == step % 20) continue;
      const auto count = static_cast<std::int64_t>(lists[i].size());
      const WindowStep change = pairs[i]->slots.add(count, pairs[i]->exact ? 3 + step / 5 : 16);
      const auto row = static_cast<std::int64_t>(i);
      our_rows.push_back({pairs[i]->ours.view(), change, our_choices[i].context, row});
      their_rows.push_back({pairs[i]->theirs.view(), change, our_choices[i].context, row});
    }
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      const std::int64_t first = layer * of_layer;
      Selection our_part = ours.part(first, of_layer);
      Selection their_part = theirs.part(first, of_layer);
      our_part.scores = scores.ours(first);
      their_part.scores = scores.theirs(first);
      seam.sparse.add_weights(our_part, kDrawnHeads, our_rows, layer, false, seam.stream);
      cpu.sparse->add_weights(their_part, kDrawnHeads, their_rows, layer, false, *cpu.stream);
    }
    seam.stream.synchronize();
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      ASSERT_EQ(pairs[i]->ours.units(), pairs[i]->theirs.units())
          << "step " << step << " row " << i;
    }
  }
  // Rows have left: of the bucket windows too.
  for (const WindowPair* pair : pairs) EXPECT_LT(pair->slots.rows(), kSteps - 1);
}

// A prompt's last rows, in chunks, for groups within and beyond a tile of rows. `gap`: floats
// between the queries' rows.
inline void check_prompt_rows(const Seam& seam, std::int64_t gap) {
  Cpu cpu;
  constexpr std::int64_t kTokens = 140;
  constexpr std::int64_t kFirst = 97;  // the first row that counts
  for (const DType dtype : kCaches) {
    const FilledCache ours(seam.ops, seam.device, dtype, {kTokens}, 3);
    const FilledCache theirs(*cpu.ops, cpu.device, dtype, {kTokens}, 3);
    for (const std::int64_t group : {1, 3, 20}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " group " + std::to_string(group) + " gap " +
                   std::to_string(gap));
      const std::int64_t heads = group * kKvHeads;
      const AttentionShape shape{.heads = heads,
                                 .kv_heads = kKvHeads,
                                 .head_dim = kDim,
                                 .max_query_rows = 1,
                                 .max_context = kTokens};
      const DeviceArray<float> scratch(
          cpu.device, static_cast<std::int64_t>(sparse_workspace_bytes(shape) / sizeof(float)));
      const Workspace workspace{reinterpret_cast<std::byte*>(scratch.data()),
                                sparse_workspace_bytes(shape)};
      std::mt19937 random(17);
      const std::int64_t stride = heads * kDim + gap;
      // Which the tensor cores take as they are (kernels/cuda/column_scores.h).
      std::vector<float> values = random_floats(random, kTokens * stride);
      for (float& value : values) value = f16_to_f32(f32_to_f16(value)) / (0.3F * 1.44269504F);
      const DeviceArray<float> our_q(seam.device, values);
      const DeviceArray<float> their_q(cpu.device, values);
      const auto matrix = [&](const DeviceArray<float>& q) {
        return ConstMatrix{q.data(), DType::kF32, kTokens, heads * kDim, stride};
      };
      for (const bool exact : {true, false}) {
        const std::int64_t window = exact ? 90 : 0;
        const std::vector<float> log_sums =
            prompt_log_sums(cpu, theirs, matrix(their_q), heads, window, 0.3F);
        const DeviceArray<float> our_log_sums(seam.device, log_sums);
        const DeviceArray<float> their_log_sums(cpu.device, log_sums);
        WindowPair pair(seam.device, cpu.device, exact, kTokens, exact ? 44 * kTokens : 10);
        clear_both(seam, cpu, {&pair});
        std::vector<PromptWindowRows> our_rows;
        std::vector<PromptWindowRows> their_rows;
        std::vector<std::vector<WindowStep>> steps;
        for (std::int64_t at = 0; at < kTokens;) {
          std::int64_t end = std::min<std::int64_t>(at + 50, kTokens);
          const std::int64_t block = at / FilledCache::kPageTokens;
          if (dtype == DType::kInt8) end = std::min(end, (block + 1) * FilledCache::kPageTokens);
          const std::int64_t begin = std::clamp<std::int64_t>(kFirst, at, end);
          std::vector<WindowStep>& own = steps.emplace_back();
          for (std::int64_t row = begin; row < end; ++row) {
            own.push_back(pair.slots.add(row + 1, kTokens - kFirst));
          }
          our_rows.push_back({ours.segment(0, begin, end - begin, end), pair.ours.view(), own});
          their_rows.push_back(
              {theirs.segment(0, begin, end - begin, end), pair.theirs.view(), own});
          our_rows.back().segment.window = their_rows.back().segment.window = window;
          our_rows.back().segment.log_sums = our_log_sums.data();
          their_rows.back().segment.log_sums = their_log_sums.data();
          at = end;
        }
        seam.sparse.add_prompt_rows(matrix(our_q), heads, ours.view(), our_rows, 0.3F, {},
                                    seam.stream);
        cpu.sparse->add_prompt_rows(matrix(their_q), heads, theirs.view(), their_rows, 0.3F,
                                    workspace, *cpu.stream);
        seam.stream.synchronize();
        const auto compare = [&] {
          const auto actual = pair.ours.units();
          const auto expected = pair.theirs.units();
          ASSERT_EQ(actual.size(), expected.size());
          double all = 0;
          for (std::size_t i = 0; i < actual.size(); ++i) {
            const double sum = std::ldexp(static_cast<double>(expected[i]), -32);
            ASSERT_NEAR(std::ldexp(static_cast<double>(actual[i]), -32), sum, 2e-5 * sum + 1e-6);
            if (i < kTokens) all += sum;
          }
          EXPECT_NEAR(all, static_cast<double>(heads * pair.slots.rows()), 1e-2);
        };
        EXPECT_EQ(pair.slots.rows(), kTokens - kFirst);
        compare();
        // Every token leaves the window, whatever its weight was.
        const std::vector<std::int32_t> token = {7};
        const DeviceArray<std::int32_t> our_token(seam.device, token);
        const DeviceArray<float> our_score(seam.device, std::vector<float>{0.0F});
        const DeviceArray<float> our_softmax(seam.device, std::vector<float>{0.0F, 1.0F});
        const WeightRow row{pair.ours.view(), pair.slots.add(1, 1), kTokens, 0};
        seam.sparse.add_weights({.rows = 1,
                                 .capacity = 1,
                                 .tokens = our_token.data(),
                                 .counts = nullptr,
                                 .scores = {our_score.data(), our_softmax.data()}},
                                1, {&row, 1}, 0, false, seam.stream);
        seam.stream.synchronize();
        std::vector<std::int64_t> left(kTokens, 0);
        left[7] = std::int64_t{1} << 32;
        EXPECT_EQ(pair.ours.sums(kTokens), left);
      }
    }
  }
}

// Rows of whole vectors, and others.
inline void check_prompt_rows(const Seam& seam) {
  for (const std::int64_t gap : {0, 1}) check_prompt_rows(seam, gap);
}

}  // namespace triphase::cuda
