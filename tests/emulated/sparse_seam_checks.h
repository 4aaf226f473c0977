#pragma once

// What a CUDA SparseOps must do, beside the CPU's: run on the emulator, with guarded memory, and on
// a GPU.

#include <cmath>
#include <limits>

#include "kernels/sizing/cuda_workspace.h"
#include "models/attention/selection_reader.h"
#include "tests/emulated/seam.h"
#include "tests/support/drawn_weights.h"

namespace triphase::cuda {

// Rows of this layer, of sequences whose layers lie so far apart: where the first one's would be.
inline constexpr std::int64_t kLayer = 4;
inline constexpr std::int64_t kLayerBytes = 96;
inline float* first_layer(const DeviceArray<float>& own) {
  return in_layer(own.data(), kLayerBytes, -kLayer);
}

inline constexpr std::int64_t kHeads = 6;
// For choices alone, which do not read them.
inline constexpr float kNoSums = 0.0F;
inline constexpr ValueMean kMeansOfNothing[] = {{&kNoSums, 1}, {&kNoSums, 1}};
inline constexpr std::span<const ValueMean> kUnreadMeans{kMeansOfNothing};
inline const std::vector<float> kSinks = {3.0F, -1.0F, 0.5F, 8.0F, -20.0F, 1.5F};  // of each head
inline constexpr std::int64_t kKvHeads = FilledCache::kKvHeads;
inline constexpr std::int64_t kDim = FilledCache::kDim;
inline constexpr std::int64_t kColumns = kHeads * kDim;
inline constexpr DType kCaches[] = {DType::kF16, DType::kBF16, DType::kInt8};

// The same random rows of queries in either memory.
class Queries {
 public:
  Queries(Device& device, std::int64_t rows, std::uint32_t seed)
      : rows_(rows), values_(device, make(rows, seed)) {}
  [[nodiscard]] ConstMatrix view() const {
    return {values_.data(), DType::kF32, rows_, kColumns, kColumns + 1};
  }

 private:
  static std::vector<float> make(std::int64_t rows, std::uint32_t seed) {
    std::mt19937 random(seed);
    return random_floats(random, rows * (kColumns + 1));
  }

  std::int64_t rows_;
  DeviceArray<float> values_;
};

template <class A, class B>
void expect_near(const A& actual, const B& expected, double relative, double absolute,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(actual[i])) << what << " element " << i;
      continue;
    }
    ASSERT_NEAR(actual[i], expected[i], relative * std::abs(expected[i]) + absolute)
        << what << " element " << i;
  }
}

// Lists and shares of a Selection's rows.
using Choices = std::vector<TokenChoice>;
inline Choices choices_of(const Seam& on, const Selection& selection) {
  SelectionReader reader(on.device);
  const auto read = reader.read(selection, kHeads, on.stream);
  return {read.begin(), read.end()};
}
inline void expect_same(const std::vector<Choices>& ours, const std::vector<Choices>& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t call = 0; call < ours.size(); ++call) {
    SCOPED_TRACE("choice " + std::to_string(call));
    ASSERT_EQ(ours[call].size(), theirs[call].size());
    for (std::size_t row = 0; row < ours[call].size(); ++row) {
      EXPECT_EQ(ours[call][row].begins, theirs[call][row].begins) << "row " << row;
      EXPECT_EQ(ours[call][row].tokens, theirs[call][row].tokens) << "row " << row;
      expect_near(ours[call][row].alpha, theirs[call][row].alpha, 0.0, 1e-4, "alpha");
    }
  }
}

// Lists have room for whole steps on a GPU, for what there is on the CPU.
inline void expect_capacities(const std::vector<std::int64_t>& ours,
                              const std::vector<std::int64_t>& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t call = 0; call < theirs.size(); ++call) {
    ASSERT_EQ(ours[call], list_capacity(theirs[call])) << "choice " << call;
  }
}

struct ColumnCase {
  std::int64_t first_query, window;
};

// Of every row of the cache's sequence [row][head], as the CPU's attention leaves them.
inline std::vector<float> prompt_log_sums(const Seam& cpu, const FilledCache& cache,
                                          const ConstMatrix& q, std::int64_t heads,
                                          std::int64_t window, ScoreScale scale) {
  const Numbers out(cpu.device, q.rows * q.cols);
  std::vector<float> log_sums = poisoned(q.rows * heads);
  std::vector<AttentionSegment> rows;
  for (std::int64_t t = 0; t < q.rows; ++t) {
    rows.push_back(cache.segment(0, t, 1, t + 1));
    rows.back().window = window;
    rows.back().log_sums = log_sums.data();
  }
  cpu.ops.attention(q, heads, cache.view(), rows, scale, matrix(out, q.rows, q.cols), cpu.workspace,
                    cpu.stream);
  return log_sums;
}

// All tokens of a prompt of 140, in chunks of at most `chunk`; INT8 chunks end with their block.
inline std::vector<float> sum_prompt(const Seam& on, DType dtype,
                                     const std::vector<float>& log_sums, std::int64_t chunk,
                                     const ColumnCase& of) {
  constexpr std::int64_t kTokens = 140;
  constexpr std::int64_t kStride = kTokens + 3;
  const FilledCache cache(on.ops, on.device, dtype, {kTokens}, 3);
  const Queries q(on.device, kTokens, 5);
  std::vector<float> start(static_cast<std::size_t>(kKvHeads * kStride), 0.25F);
  for (std::int64_t head = 0; head < kKvHeads; ++head) {
    for (std::int64_t t = kTokens; t < kStride; ++t) {
      start[static_cast<std::size_t>(head * kStride + t)] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  const DeviceArray<float> sums(on.device, start);
  const DeviceArray<float> attended(on.device, log_sums);
  std::vector<PromptColumns> chunks;
  for (std::int64_t at = 0; at < kTokens;) {
    std::int64_t end = std::min(at + chunk, kTokens);
    const std::int64_t block = at / FilledCache::kPageTokens;
    if (cache.quantized()) end = std::min(end, (block + 1) * FilledCache::kPageTokens);
    const std::int64_t begin = std::clamp(of.first_query, at, end);
    chunks.push_back({cache.segment(0, begin, end - begin, end), sums.data(), kStride});
    chunks.back().segment.window = of.window;
    chunks.back().segment.log_sums = attended.data();
    at = end;
  }
  // Some chunks of a prompt come in one call, others in calls of their own.
  const std::span<const PromptColumns> all = chunks;
  for (std::size_t i = 0; i < all.size();) {
    const std::size_t together = std::min(all.size() - i, 1 + i % 3);
    on.sparse.accumulate_columns(q.view(), kHeads, cache.view(), all.subspan(i, together), 0.3F,
                                 on.workspace, on.stream);
    i += together;
  }
  on.stream.synchronize();
  return sums.host();
}

// H2O: as on the CPU, with the same bits however the prompt is cut.
inline void check_column_sums(const Seam& seam) {
  Cpu host;
  const Seam cpu = host.seam();
  for (const DType dtype : kCaches) {
    const FilledCache cache(cpu.ops, cpu.device, dtype, {140}, 3);
    const Queries q(cpu.device, 140, 5);
    for (const ColumnCase& of :
         {ColumnCase{0, 0}, ColumnCase{120, 0}, ColumnCase{0, 45}, ColumnCase{40, 45}}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " from " + std::to_string(of.first_query) +
                   " window " + std::to_string(of.window));
      const ScoreScale scale(0.3F, 0.0F, of.window > 0 ? kSinks.data() : nullptr);
      const auto log_sums = prompt_log_sums(cpu, cache, q.view(), kHeads, of.window, scale);
      const auto whole = sum_prompt(seam, dtype, log_sums, 140, of);
      EXPECT_TRUE(same_bits(whole, sum_prompt(seam, dtype, log_sums, 19, of)));
      expect_near(whole, sum_prompt(cpu, dtype, log_sums, 140, of), 2e-5, 1e-6, "sums");
    }
  }
}

// Weights add up to 1 by the log-sums that the attention before them leaves, of many rows and of
// one.
inline void check_long_chunks(const Seam& seam) {
  constexpr std::int64_t kTokens = 261;
  constexpr std::int64_t kPages = kTokens / 64 + 1;
  const std::int64_t elements = kPages * 64 * 8;
  std::mt19937 random(7);
  std::vector<float> keys = random_floats(random, elements);
  const DeviceArray<float> k(seam.device, keys);
  const DeviceArray<float> q(seam.device, random_floats(random, kTokens * 8));
  std::vector<PageId> pages;
  for (std::int64_t p = 0; p < kPages; ++p) pages.emplace_back(p);
  const KvLayerView cache{k.data(), k.data(), DType::kF32, 64, 1, 8};
  const DeviceArray<float> columns(seam.device, std::vector<float>(kTokens, 0.0F));
  const DeviceArray<float> log_sums(seam.device, kTokens);
  const DeviceArray<float> out(seam.device, kTokens * 8);
  const ConstMatrix rows{q.data(), DType::kF32, kTokens, 8, 8};
  std::vector<AttentionSegment> segments = {{0, kTokens - 1, kTokens - 1, pages, 0},
                                            {kTokens - 1, 1, kTokens, pages, 0}};
  for (AttentionSegment& segment : segments) segment.log_sums = log_sums.data();
  seam.ops.attention(rows, 1, cache, segments, 0.5F, {out.data(), DType::kF32, kTokens, 8, 8}, {},
                     seam.stream);
  std::vector<PromptColumns> chunks;
  for (const AttentionSegment& segment : segments) {
    chunks.push_back({segment, columns.data(), kTokens});
  }
  seam.sparse.accumulate_columns(rows, 1, cache, chunks, 0.5F, {}, seam.stream);
  seam.stream.synchronize();
  const std::vector<float> sums = columns.host();
  // Every row's weights add up to 1, and the last token has one row's weight of itself.
  double all = 0.0;
  for (const float sum : sums) all += sum;
  EXPECT_NEAR(all, kTokens, 1e-3);
  EXPECT_GT(sums.back(), 0.0F);
  EXPECT_LT(sums.back(), 1.0F);
}

// Scores of drawn weights [list][capacity], laid out for a Selection whose lists have more room.
class SeamScores {
 public:
  SeamScores(Device& device, const Selection& lists, const std::vector<float>& weights,
             std::int64_t capacity)
      : capacity_(lists.capacity),
        scores_(in_room_of(lists, weights, capacity), lists.capacity),
        values_(device, scores_.values),
        softmax_(device, scores_.softmax) {}

  // Those from list `first` on.
  [[nodiscard]] AttendedScores from(std::int64_t first) const {
    return {values_.data() + first * kDrawnHeads * capacity_,
            softmax_.data() + first * kDrawnHeads * 2};
  }

 private:
  static std::vector<float> in_room_of(const Selection& lists, const std::vector<float>& weights,
                                       std::int64_t capacity) {
    std::vector<float> result(static_cast<std::size_t>(lists.rows * lists.lists * lists.capacity));
    for (std::int64_t list = 0; list < lists.rows * lists.lists; ++list) {
      std::copy_n(weights.begin() + list * capacity, capacity,
                  result.begin() + list * lists.capacity);
    }
    return result;
  }

  std::int64_t capacity_;
  DrawnScores scores_;
  DeviceArray<float> values_, softmax_;
};

// Rows of other lengths, in several blocks of threads, and of one token.
inline void check_ranges(const Seam& seam) {
  Cpu host;
  const std::vector<TokenRanges> rows = {
      {{0, 1, 4}, {700, 1, 300}}, {{0, 7, 90}, {630, 1, 1}}, {{5, 1, 1}, {}}, {{}, {2, 3, 600}}};
  Choices expected;
  for (const TokenRanges& row : rows) {
    TokenChoice& choice = expected.emplace_back();
    for (const TokenRange& range : {row.first, row.second}) {
      for (int i = 0; i < range.count; ++i) {
        choice.tokens.push_back(range.start + i * range.stride);
      }
    }
    choice.begins.push_back(static_cast<std::int32_t>(choice.tokens.size()));
  }
  for (const Seam& on : {seam, host.seam()}) {
    expect_same({choices_of(on, on.sparse.choose_ranges(rows, on.stream))}, {expected});
  }
}

// Quest: bounds bit for bit as on the CPU, also of the block that is not full yet, and only from
// the first page asked for.
inline void check_page_bounds(const Seam& seam) {
  struct Result {
    std::vector<std::vector<float>> bounds;
    std::vector<Choices> choices;
  };
  const auto run = [](const Seam& on, DType dtype, std::int64_t tokens) {
    Result result;
    const FilledCache cache(on.ops, on.device, dtype, {40, 139}, 4);
    const Queries q(on.device, 2, 6);
    const std::int64_t pages = (139 + tokens - 1) / tokens;
    const DeviceArray<float> bounds(on.device, pages * kKvHeads * 2 * kDim);
    const DeviceArray<float> short_bounds(on.device, pages * kKvHeads * 2 * kDim);
    std::vector<AttentionSegment> rows = {cache.segment(0, 0, 1), cache.segment(1, 0, 1)};
    for (const std::int64_t first : {100, 0}) {
      // A context that ends before the first token leaves everything as it was.
      on.sparse.bound_pages(cache.view(), rows,
                            std::vector<PageBounds>{{first_layer(short_bounds), first, kLayerBytes},
                                                    {first_layer(bounds), first, kLayerBytes}},
                            tokens, kLayer, on.stream);
      on.stream.synchronize();
      for (const auto* of : {&bounds, &short_bounds}) {
        result.bounds.push_back(of->host());
        EXPECT_EQ(std::isnan(result.bounds.back()[0]), first > 0);
      }
    }
    for (const std::int64_t first_query : {0, 1}) {
      rows[0].query_begin = first_query;
      rows[1].query_begin = 1 - first_query;
      result.choices.push_back(
          choices_of(on, on.sparse.choose_by_pages(
                             q.view(), kHeads, kKvHeads, rows,
                             std::vector<PageChoice>{{first_layer(short_bounds), 1, kLayerBytes},
                                                     {first_layer(bounds), 3, kLayerBytes}},
                             tokens, kLayer, on.stream)));
    }
    return result;
  };
  Cpu host;
  for (const DType dtype : kCaches) {
    for (const std::int64_t tokens : {16, 5, 48}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " pages of " + std::to_string(tokens));
      const Result ours = run(seam, dtype, tokens);
      const Result theirs = run(host.seam(), dtype, tokens);
      for (std::size_t i = 0; i < theirs.bounds.size(); ++i) {
        EXPECT_TRUE(same_bits(ours.bounds[i], theirs.bounds[i])) << i;
      }
      expect_same(ours.choices, theirs.choices);
    }
  }
}

struct ScoredChoices {
  std::vector<Choices> choices;
  std::vector<std::vector<float>> weights;
};

// SparQ and exact top-k: of each row alone, then of two rows of one call whose contexts and budgets
// differ, with queries that follow each other or not, and of one row after both.
inline ScoredChoices choose_by_scores(const Seam& on, DType dtype, bool transposed) {
  ScoredChoices result;
  const FilledCache cache(on.ops, on.device, dtype, {40, 140}, 6);
  const Queries q(on.device, 2, 12);
  const DeviceArray<std::byte> kt(on.device, std::ssize(cache.k().host()));
  const DeviceArray<float> sinks(on.device, kSinks);
  HostVector<std::uint8_t> ready(2 * FilledCache::kMaxPages, 0);
  KvLayerView view = cache.view();
  view.kt = kt.data();
  view.kt_ready = ready.data();
  view.kt_pages = 2 * FilledCache::kMaxPages;
  view.kt_run = 4;
  const auto by_channels = [&](std::span<const AttentionSegment> rows,
                               std::span<const ChannelChoice> choices) {
    result.choices.push_back(choices_of(
        on,
        on.sparse.choose_by_channels(q.view(), kHeads, view, rows, 0.3F, choices,
                                     kUnreadMeans.first(rows.size()), on.workspace, on.stream)));
  };
  for (const std::size_t b : {std::size_t{0}, std::size_t{1}}) {
    const AttentionSegment keys = cache.segment(b, 0, 1);
    if (transposed) on.sparse.transpose_keys(view, {&keys, 1}, on.stream);
    AttentionSegment row = keys;
    row.query_begin = 1;
    for (const ChannelTemperature temperature :
         {ChannelTemperature::kCoverage, ChannelTemperature::kHeadDim, ChannelTemperature::kRank}) {
      ChannelChoice choice{.rank = 5, .tokens = 24, .recent = 4, .temperature = temperature};
      by_channels({&row, 1}, {&choice, 1});
      if (temperature != ChannelTemperature::kCoverage) continue;
      choice.sum_logits = true;
      by_channels({&row, 1}, {&choice, 1});
    }
    // With room beside each row.
    HostVector<float> weights(kHeads * 150, -1.0F);
    on.sparse.score_keys(q.view(), 1, kHeads, view, keys,
                         {0.3F, 0.0F, transposed ? nullptr : sinks.data()}, weights.data(), 150,
                         on.workspace, on.stream);
    result.weights.emplace_back(weights.begin(), weights.end());
  }
  const std::vector<ChannelChoice> choices = {{.rank = 5, .tokens = 9, .recent = 2},
                                              {.rank = 5, .tokens = 31, .recent = 7}};
  const std::vector<std::int64_t> budgets = {33, 12};
  for (const std::int64_t first_query : {0, 1}) {
    std::vector<AttentionSegment> rows = {cache.segment(0, first_query, 1),
                                          cache.segment(1, 1 - first_query, 1)};
    for (const std::size_t count : {std::size_t{2}, std::size_t{1}}) {
      const auto some = std::span<const AttentionSegment>(rows).first(count);
      by_channels(some, std::span(choices).first(count));
      result.choices.push_back(choices_of(
          on, on.sparse.choose_by_keys(q.view(), kHeads, view, some, 0.3F,
                                       std::span(budgets).first(count), on.workspace, on.stream)));
    }
  }
  // Full pages are transposed, the query's own INT8 block is not; nothing else is.
  EXPECT_EQ(std::count(ready.begin(), ready.end(), 1), transposed ? 1 + 4 : 0);
  return result;
}

inline void check_choices(const Seam& seam) {
  Cpu host;
  for (const DType dtype : kCaches) {
    for (const bool transposed : {false, true}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + (transposed ? " transposed" : ""));
      const ScoredChoices ours = choose_by_scores(seam, dtype, transposed);
      const ScoredChoices theirs = choose_by_scores(host.seam(), dtype, transposed);
      expect_same(ours.choices, theirs.choices);
      for (std::size_t i = 0; i < theirs.weights.size(); ++i) {
        expect_near(ours.weights[i], theirs.weights[i], 0.0, 1e-5, "weights");
      }
    }
  }
}

// SparQ's running sums of V: of one sequence, then of it and another.
struct ValueSums {
  explicit ValueSums(const Seam& on)
      : sums(on.device, kColumns), more(on.device, kColumns) {  // NaN
    const Queries v(on.device, 9, 15);
    std::int64_t tokens = 0;
    for (const std::int64_t rows : {0, 5, 0, 1}) {
      const ValueRows part{2, rows, first_layer(sums), kLayerBytes, tokens};
      on.sparse.sum_values(v.view(), {&part, 1}, kLayer, false, on.stream);
      tokens += rows;
    }
    const std::vector<ValueRows> parts = {{0, 3, sums.data(), 0, tokens}, {3, 6, more.data()}};
    on.sparse.sum_values(v.view(), parts, 0, false, on.stream);
    on.stream.synchronize();
  }
  DeviceArray<float> sums, more;
};

// The sums, bit for bit, and attention over lists with shares: as much of the attention without
// them, and the mean for the rest.
inline void check_reallocation(const Seam& seam) {
  Cpu host;
  const ValueSums ours(seam);
  const ValueSums theirs(host.seam());
  const std::vector<float> sums = ours.sums.host();
  const std::vector<float> more = ours.more.host();
  EXPECT_EQ(sums, theirs.sums.host());
  EXPECT_EQ(more, theirs.more.host());
  EXPECT_NE(sums, more);
  EXPECT_TRUE(std::ranges::all_of(sums, [](float sum) { return std::isfinite(sum); }));

  const FilledCache cache(seam.ops, seam.device, DType::kF16, {40, 140}, 6);
  std::mt19937 random(16);
  const DeviceArray<float> queries(seam.device, random_floats(random, 2 * kColumns));
  const ConstMatrix q{queries.data(), DType::kF32, 2, kColumns, kColumns};
  const std::vector<AttentionSegment> rows = {cache.segment(0, 0, 1), cache.segment(1, 1, 1)};
  const std::vector<ChannelChoice> choices(2, {.rank = 5, .tokens = 24, .recent = 4});
  // Heads in two groups: the means are the first 2 * kDim sums.
  const std::vector<ValueMean> means = {{first_layer(ours.sums), 6, kLayerBytes},
                                        {first_layer(ours.more), 7, kLayerBytes}};
  Selection chosen = seam.sparse.choose_by_channels(q, kHeads, cache.view(), rows, 0.3F, choices,
                                                    means, {}, seam.stream);
  chosen.layer = kLayer;
  HostVector<float> alpha(2 * kHeads);
  seam.device.copy(alpha.data(), chosen.alpha, alpha.size() * sizeof(float), seam.stream);
  const auto attended = [&](const Selection& lists) {
    std::vector<AttentionSegment> own = rows;
    for (std::size_t row = 0; row < own.size(); ++row) {
      own[row].chosen = &lists;
      own[row].chosen_row = static_cast<std::int64_t>(row);
    }
    const DeviceArray<float> out(seam.device, std::vector<float>(2 * kColumns, -1.0F));
    seam.ops.attention(q, kHeads, cache.view(), own, 0.3F,
                       {out.data(), DType::kF32, 2, kColumns, kColumns}, {}, seam.stream);
    seam.stream.synchronize();
    return out.host();
  };
  Selection without = chosen;
  without.means = nullptr;
  Selection plain = without;
  plain.alpha = nullptr;
  const auto all = attended(plain);
  const auto shares = attended(without);
  const auto reallocated = attended(chosen);
  for (std::int64_t i = 0; i < 2 * kColumns; ++i) {
    const std::int64_t row = i / kColumns;
    const std::int64_t head = i % kColumns / kDim;
    const float own = alpha[static_cast<std::size_t>(row * kHeads + head)];
    const std::int64_t of_kv = head / (kHeads / kKvHeads) * kDim + i % kDim;
    const auto at = static_cast<std::size_t>(i);
    const float sum = (row == 0 ? sums : more)[static_cast<std::size_t>(of_kv)];
    const float mean = sum * (1.0F / static_cast<float>(row == 0 ? 6 : 7));
    EXPECT_EQ(shares[at], own * all[at]) << i;
    EXPECT_EQ(reallocated[at], own * all[at] + (1.0F - own) * mean) << i;
  }
}

}  // namespace triphase::cuda
