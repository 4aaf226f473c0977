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

// What a device chose from windows, and their sums after every step.
struct WindowRun {
  std::vector<Choices> choices;
  std::vector<std::int64_t> capacities;  // of the choices
  std::vector<std::vector<std::int64_t>> units;
};

// Rows of several sequences at once in two layers, of both kinds, in windows that grow.
inline WindowRun choose_and_weigh(const Seam& on) {
  constexpr std::int64_t kLayers = 2;
  constexpr std::int64_t kTokens = 700;
  constexpr std::int64_t kSteps = 22;
  struct Sequence {
    bool exact;
    std::int64_t start;
    WeightSlots slots;
    DeviceWindow window;
  };
  WindowRun run;
  std::mt19937 random(31);
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<WeightWindow> views;
  for (const bool exact : {true, false}) {
    const std::int64_t room = exact ? 7 * kTokens : 12;
    for (const std::int64_t start : {1, 250, 260, 600}) {
      sequences.push_back(std::unique_ptr<Sequence>(
          new Sequence{exact, start, WeightSlots(exact, room),
                       DeviceWindow(on.device, exact, kTokens, room, kLayers)}));
      sequences.back()->window.add_views(views);
    }
  }
  const auto record = [&] {
    on.stream.synchronize();
    for (const auto& sequence : sequences) run.units.push_back(sequence->window.units());
  };
  on.sparse.clear_weights(views, on.stream);
  record();
  for (const std::vector<std::int64_t>& units : run.units) EXPECT_THAT(units, testing::Each(0));
  for (std::int64_t step = 0; step < kSteps; ++step) {
    std::vector<WindowChoice> asked;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const std::int64_t context = sequences[i]->start + step;
      const std::int64_t total = step % 5 == 4 ? context + 2 : std::min(context, 1 + context / 2);
      const std::int64_t local = static_cast<std::int64_t>(i) % 3 * total / 4;
      asked.push_back({sequences[i]->window.view(), context, std::min(local, context), total});
    }
    const Selection chosen = on.sparse.choose_recent_and_heaviest(asked, kLayers, on.stream);
    const std::int64_t of_layer = std::ssize(sequences);
    EXPECT_EQ(chosen.rows, kLayers * of_layer);
    run.capacities.push_back(chosen.capacity);
    const Choices& choices = run.choices.emplace_back(choices_of(on, chosen));
    // What they chose is attended; some rows are not.
    std::int64_t longest = 0;
    for (const TokenChoice& choice : choices) {
      longest = std::max<std::int64_t>(longest, std::ssize(choice.tokens));
    }
    std::vector<float> weights(static_cast<std::size_t>(chosen.rows * longest));
    for (float& weight : weights) weight = draw_weight(random);
    const SeamScores scores(on.device, chosen, weights, longest);
    std::vector<WeightRow> rows;
    for (std::size_t i = sequences.size(); i-- > 0;) {
      if (static_cast<std::int64_t>(i) == step % 20) continue;
      const WindowStep change = sequences[i]->slots.add(std::ssize(choices[i].tokens),
                                                        sequences[i]->exact ? 3 + step / 5 : 16);
      rows.push_back(
          {sequences[i]->window.view(), change, asked[i].context, static_cast<std::int64_t>(i)});
    }
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      Selection part = chosen.part(layer * of_layer, of_layer);
      part.scores = scores.from(layer * of_layer);
      on.sparse.add_weights(part, kDrawnHeads, rows, layer, false, on.stream);
    }
    record();
  }
  // Rows have left: of the bucket windows too.
  for (const auto& sequence : sequences) EXPECT_LT(sequence->slots.rows(), kSteps - 1);
  return run;
}

// Sums and choices are the CPU's bit for bit.
inline void check_weight_windows(const Seam& seam) {
  Cpu host;
  const WindowRun ours = choose_and_weigh(seam);
  const WindowRun theirs = choose_and_weigh(host.seam());
  expect_same(ours.choices, theirs.choices);
  expect_capacities(ours.capacities, theirs.capacities);
  ASSERT_EQ(ours.units.size(), theirs.units.size());
  for (std::size_t i = 0; i < theirs.units.size(); ++i) {
    ASSERT_EQ(ours.units[i], theirs.units[i]) << "sequence " << i % 8 << " step " << i / 8;
  }
}

struct PromptRowsCase {
  DType dtype;
  std::int64_t heads;
  std::int64_t gap;  // floats between the queries' rows
  bool exact;
};

inline constexpr std::int64_t kPromptTokens = 140;
inline constexpr std::int64_t kFirstRow = 97;  // the first that counts

// A prompt's last rows, in chunks, in a window: its units. Every token leaves the window then,
// whatever its weight was.
inline std::vector<std::int64_t> add_prompt(const Seam& on, const PromptRowsCase& of,
                                            const std::vector<float>& queries,
                                            const std::vector<float>& log_sums) {
  const FilledCache cache(on.ops, on.device, of.dtype, {kPromptTokens}, 3);
  const DeviceArray<float> values(on.device, queries);
  const std::int64_t columns = of.heads * kDim;
  const ConstMatrix q{values.data(), DType::kF32, kPromptTokens, columns, columns + of.gap};
  const DeviceArray<float> attended(on.device, log_sums);
  const std::int64_t room = of.exact ? 44 * kPromptTokens : 10;
  WeightSlots slots(of.exact, room);
  const DeviceWindow window(on.device, of.exact, kPromptTokens, room);
  on.sparse.clear_weights({&window.view(), 1}, on.stream);
  std::vector<PromptWindowRows> rows;
  std::vector<std::vector<WindowStep>> steps;
  for (std::int64_t at = 0; at < kPromptTokens;) {
    std::int64_t end = std::min(at + 50, kPromptTokens);
    const std::int64_t block = at / FilledCache::kPageTokens;
    if (cache.quantized()) end = std::min(end, (block + 1) * FilledCache::kPageTokens);
    const std::int64_t begin = std::clamp(kFirstRow, at, end);
    std::vector<WindowStep>& own = steps.emplace_back();
    for (std::int64_t row = begin; row < end; ++row) {
      own.push_back(slots.add(row + 1, kPromptTokens - kFirstRow));
    }
    rows.push_back({cache.segment(0, begin, end - begin, end), window.view(), own});
    rows.back().segment.window = of.exact ? 90 : 0;
    rows.back().segment.log_sums = attended.data();
    at = end;
  }
  on.sparse.add_prompt_rows(q, of.heads, cache.view(), rows, 0.3F, on.workspace, on.stream);
  on.stream.synchronize();
  EXPECT_EQ(slots.rows(), kPromptTokens - kFirstRow);
  const std::vector<std::int64_t> units = window.units();
  const DeviceArray<std::int32_t> token(on.device, std::vector<std::int32_t>{7});
  const DeviceArray<std::int32_t> count(on.device, std::vector<std::int32_t>{1});
  const DeviceArray<float> score(on.device, std::vector<float>{0.0F});
  const DeviceArray<float> softmax(on.device, std::vector<float>{0.0F, 1.0F});
  const WeightRow row{window.view(), slots.add(1, 1), kPromptTokens, 0};
  on.sparse.add_weights({.rows = 1,
                         .capacity = 1,
                         .tokens = token.data(),
                         .counts = count.data(),
                         .scores = {score.data(), softmax.data()}},
                        1, {&row, 1}, 0, false, on.stream);
  on.stream.synchronize();
  std::vector<std::int64_t> left(kPromptTokens, 0);
  left[7] = std::int64_t{1} << 32;
  EXPECT_EQ(window.sums(kPromptTokens), left);
  return units;
}

inline void check_prompt_rows(const Seam& seam, const PromptRowsCase& of) {
  Cpu host(of.heads);
  const Seam cpu = host.seam();
  const FilledCache cache(cpu.ops, cpu.device, of.dtype, {kPromptTokens}, 3);
  std::mt19937 random(17);
  const std::int64_t columns = of.heads * kDim;
  // Which the tensor cores take as they are (kernels/cuda/column_scores.h).
  std::vector<float> queries = random_floats(random, kPromptTokens * (columns + of.gap));
  for (float& value : queries) value = f16_to_f32(f32_to_f16(value)) / (0.3F * 1.44269504F);
  const DeviceArray<float> values(cpu.device, queries);
  const std::vector<float> log_sums = prompt_log_sums(
      cpu, cache, {values.data(), DType::kF32, kPromptTokens, columns, columns + of.gap}, of.heads,
      of.exact ? 90 : 0, 0.3F);
  const std::vector<std::int64_t> actual = add_prompt(seam, of, queries, log_sums);
  const std::vector<std::int64_t> expected = add_prompt(cpu, of, queries, log_sums);
  ASSERT_EQ(actual.size(), expected.size());
  double all = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double sum = std::ldexp(static_cast<double>(expected[i]), -32);
    ASSERT_NEAR(std::ldexp(static_cast<double>(actual[i]), -32), sum, 2e-5 * sum + 1e-6);
    if (i < kPromptTokens) all += sum;
  }
  EXPECT_NEAR(all, static_cast<double>(of.heads * (kPromptTokens - kFirstRow)), 1e-2);
}

// For groups within and beyond a tile of rows, whose queries are whole vectors, and others.
inline void check_prompt_rows(const Seam& seam) {
  for (const DType dtype : kCaches) {
    for (const std::int64_t group : {1, 3, 20}) {
      for (const std::int64_t gap : {0, 1}) {
        for (const bool exact : {true, false}) {
          SCOPED_TRACE(std::string(dtype_name(dtype)) + " group " + std::to_string(group) +
                       " gap " + std::to_string(gap) + (exact ? " exact" : ""));
          check_prompt_rows(seam, {dtype, group * kKvHeads, gap, exact});
        }
      }
    }
  }
}

}  // namespace triphase::cuda
