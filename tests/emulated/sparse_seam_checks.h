#pragma once

// What a CUDA SparseOps must do, beside the CPU's: run on the emulator, with guarded memory, and on
// a GPU.

#include <cmath>
#include <limits>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/cpu_sparse_ops.h"
#include "kernels/sizing/cuda_workspace.h"
#include "kernels/sizing/sparse_workspace.h"
#include "models/attention/selection_reader.h"
#include "tests/emulated/filled_cache.h"
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

// The CPU's operations, with room for any call of these tests.
class Cpu {
 public:
  Cpu() {
    const AttentionShape longest{.heads = kHeads,
                                 .kv_heads = kKvHeads,
                                 .head_dim = kDim,
                                 .max_query_rows = 1,
                                 .max_context = 160};
    workspace.bytes = sparse_workspace_bytes(longest);
    workspace.data = static_cast<std::byte*>(device.allocate(workspace.bytes));
  }
  ~Cpu() { device.release(workspace.data, workspace.bytes); }
  Cpu(const Cpu&) = delete;
  Cpu& operator=(const Cpu&) = delete;

  HostDevice device;
  ThreadPool pool{1};
  std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  std::unique_ptr<SparseOps> sparse = make_cpu_sparse_ops(pool, device);
  std::unique_ptr<Stream> stream = device.make_stream();
  Workspace workspace;
};

// The CUDA operations under test.
struct Seam {
  Ops& ops;
  SparseOps& sparse;
  Device& device;
  Stream& stream;
};

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

struct ColumnCase {
  std::int64_t first_query, window;
};

// Of every row of the cache's sequence [row][head], as the CPU's attention leaves them.
inline std::vector<float> prompt_log_sums(Cpu& cpu, const FilledCache& cache, const ConstMatrix& q,
                                          std::int64_t heads, std::int64_t window,
                                          ScoreScale scale) {
  const AttentionShape shape{.heads = heads,
                             .kv_heads = kKvHeads,
                             .head_dim = kDim,
                             .max_query_rows = q.rows,
                             .max_context = q.rows};
  const auto bytes = static_cast<std::int64_t>(attention_workspace_bytes(shape));
  const DeviceArray<std::byte> workspace(cpu.device, bytes);
  const Numbers out(cpu.device, q.rows * q.cols);
  std::vector<float> log_sums = poisoned(q.rows * heads);
  std::vector<AttentionSegment> rows;
  for (std::int64_t t = 0; t < q.rows; ++t) {
    rows.push_back(cache.segment(0, t, 1, t + 1));
    rows.back().window = window;
    rows.back().log_sums = log_sums.data();
  }
  cpu.ops->attention(q, heads, cache.view(), rows, scale, matrix(out, q.rows, q.cols),
                     {workspace.data(), static_cast<std::size_t>(bytes)}, *cpu.stream);
  return log_sums;
}

// All tokens of a prompt of 140, in chunks of at most `chunk`; INT8 chunks end with their block.
inline std::vector<float> sum_prompt(SparseOps& sparse, Device& device, const FilledCache& cache,
                                     const Queries& q, const std::vector<float>& log_sums,
                                     std::int64_t chunk, const ColumnCase& of, Workspace workspace,
                                     Stream& stream) {
  constexpr std::int64_t kTokens = 140;
  constexpr std::int64_t kStride = kTokens + 3;
  std::vector<float> start(static_cast<std::size_t>(kKvHeads * kStride), 0.25F);
  for (std::int64_t head = 0; head < kKvHeads; ++head) {
    for (std::int64_t t = kTokens; t < kStride; ++t) {
      start[static_cast<std::size_t>(head * kStride + t)] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  const DeviceArray<float> sums(device, start);
  const DeviceArray<float> attended(device, log_sums);
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
    sparse.accumulate_columns(q.view(), kHeads, cache.view(), all.subspan(i, together), 0.3F,
                              workspace, stream);
    i += together;
  }
  stream.synchronize();
  return sums.host();
}

// H2O: as on the CPU, with the same bits however the prompt is cut.
inline void check_column_sums(const Seam& seam) {
  Cpu cpu;
  for (const DType dtype : kCaches) {
    for (const ColumnCase& of :
         {ColumnCase{0, 0}, ColumnCase{120, 0}, ColumnCase{0, 45}, ColumnCase{40, 45}}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " from " + std::to_string(of.first_query) +
                   " window " + std::to_string(of.window));
      const FilledCache ours(seam.ops, seam.device, dtype, {140}, 3);
      const FilledCache theirs(*cpu.ops, cpu.device, dtype, {140}, 3);
      const Queries q(seam.device, 140, 5);
      const Queries cpu_q(cpu.device, 140, 5);
      const ScoreScale scale(0.3F, 0.0F, of.window > 0 ? kSinks.data() : nullptr);
      const auto log_sums = prompt_log_sums(cpu, theirs, cpu_q.view(), kHeads, of.window, scale);
      const auto whole =
          sum_prompt(seam.sparse, seam.device, ours, q, log_sums, 140, of, {}, seam.stream);
      const auto cut =
          sum_prompt(seam.sparse, seam.device, ours, q, log_sums, 19, of, {}, seam.stream);
      EXPECT_EQ(std::memcmp(whole.data(), cut.data(), whole.size() * sizeof(float)), 0);
      const auto expected = sum_prompt(*cpu.sparse, cpu.device, theirs, cpu_q, log_sums, 140, of,
                                       cpu.workspace, *cpu.stream);
      expect_near(whole, expected, 2e-5, 1e-6, "sums");
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

// Lists and shares of two Selections.
inline void expect_same_choices(const Seam& seam, const Selection& ours, Cpu& cpu,
                                const Selection& theirs) {
  SelectionReader reader(seam.device);
  SelectionReader cpu_reader(cpu.device);
  const auto read = reader.read(ours, kHeads, seam.stream);
  const auto cpu_read = cpu_reader.read(theirs, kHeads, *cpu.stream);
  ASSERT_EQ(read.size(), cpu_read.size());
  for (std::size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].begins, cpu_read[i].begins) << "row " << i;
    EXPECT_EQ(read[i].tokens, cpu_read[i].tokens) << "row " << i;
    expect_near(read[i].alpha, cpu_read[i].alpha, 0.0, 1e-4, "alpha");
  }
}

// Weights of their lists, where ours have them.
inline std::vector<float> in_room_of(const Selection& ours, const Selection& theirs,
                                     const std::vector<float>& weights) {
  std::vector<float> result(static_cast<std::size_t>(ours.rows * ours.lists * ours.capacity));
  for (std::int64_t list = 0; list < theirs.rows * theirs.lists; ++list) {
    std::copy_n(weights.begin() + list * theirs.capacity, theirs.capacity,
                result.begin() + list * ours.capacity);
  }
  return result;
}

// Scores of drawn weights of two Selections' lists, which have different capacities.
class SeamScores {
 public:
  SeamScores(const Seam& seam, Cpu& cpu, const Selection& ours, const Selection& theirs,
             const std::vector<float>& weights)
      : our_capacity_(ours.capacity),
        their_capacity_(theirs.capacity),
        our_scores_(in_room_of(ours, theirs, weights), ours.capacity),
        their_scores_(weights, theirs.capacity),
        our_values_(seam.device, our_scores_.values),
        our_softmax_(seam.device, our_scores_.softmax),
        their_values_(cpu.device, their_scores_.values),
        their_softmax_(cpu.device, their_scores_.softmax) {}

  // Those from list `first` on.
  [[nodiscard]] AttendedScores ours(std::int64_t first) const {
    return {our_values_.data() + first * kDrawnHeads * our_capacity_,
            our_softmax_.data() + first * kDrawnHeads * 2};
  }
  [[nodiscard]] AttendedScores theirs(std::int64_t first) const {
    return {their_values_.data() + first * kDrawnHeads * their_capacity_,
            their_softmax_.data() + first * kDrawnHeads * 2};
  }

 private:
  std::int64_t our_capacity_, their_capacity_;
  DrawnScores our_scores_, their_scores_;
  DeviceArray<float> our_values_, our_softmax_, their_values_, their_softmax_;
};

// Rows of other lengths, in several blocks of threads, and of one token.
inline void check_ranges(const Seam& seam) {
  Cpu cpu;
  const std::vector<TokenRanges> rows = {
      {{0, 1, 4}, {700, 1, 300}}, {{0, 7, 90}, {630, 1, 1}}, {{5, 1, 1}, {}}, {{}, {2, 3, 600}}};
  const Selection ours = seam.sparse.choose_ranges(rows, seam.stream);
  EXPECT_EQ(ours.lists, 1);
  SelectionReader reader(seam.device);
  const auto read = reader.read(ours, kHeads, seam.stream);
  ASSERT_EQ(read.size(), rows.size());
  for (std::size_t row = 0; row < rows.size(); ++row) {
    std::vector<std::int32_t> expected;
    for (const TokenRange& range : {rows[row].first, rows[row].second}) {
      for (int i = 0; i < range.count; ++i) expected.push_back(range.start + i * range.stride);
    }
    EXPECT_EQ(read[row].tokens, expected) << "row " << row;
  }
  expect_same_choices(seam, ours, cpu, cpu.sparse->choose_ranges(rows, *cpu.stream));
}

// Quest: bounds bit for bit as on the CPU, also of the block that is not full yet, and only from
// the first page asked for.
inline void check_page_bounds(const Seam& seam) {
  Cpu cpu;
  for (const DType dtype : kCaches) {
    SCOPED_TRACE(std::string(dtype_name(dtype)));
    const FilledCache ours(seam.ops, seam.device, dtype, {40, 139}, 4);
    const FilledCache theirs(*cpu.ops, cpu.device, dtype, {40, 139}, 4);
    const Queries q(seam.device, 2, 6);
    const Queries cpu_q(cpu.device, 2, 6);
    for (const std::int64_t tokens : {16, 5, 48}) {
      const std::int64_t pages = (139 + tokens - 1) / tokens;
      const std::int64_t floats = pages * kKvHeads * 2 * kDim;
      const DeviceArray<float> bounds(seam.device, floats);
      const DeviceArray<float> expected(cpu.device, floats);
      const DeviceArray<float> short_bounds(seam.device, floats);
      const DeviceArray<float> short_expected(cpu.device, floats);
      for (const std::int64_t first : {100, 0}) {
        const std::vector<AttentionSegment> rows = {ours.segment(0, 0, 1), ours.segment(1, 0, 1)};
        const std::vector<AttentionSegment> cpu_rows = {theirs.segment(0, 0, 1),
                                                        theirs.segment(1, 0, 1)};
        // A context that ends before the first token leaves everything as it was.
        seam.sparse.bound_pages(
            ours.view(), rows,
            std::vector<PageBounds>{{first_layer(short_bounds), first, kLayerBytes},
                                    {first_layer(bounds), first, kLayerBytes}},
            tokens, kLayer, seam.stream);
        cpu.sparse->bound_pages(
            theirs.view(), cpu_rows,
            std::vector<PageBounds>{{first_layer(short_expected), first, kLayerBytes},
                                    {first_layer(expected), first, kLayerBytes}},
            tokens, kLayer, *cpu.stream);
        seam.stream.synchronize();
        for (const auto& [got, want] : {std::pair(bounds.host(), expected.host()),
                                        std::pair(short_bounds.host(), short_expected.host())}) {
          EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0)
              << tokens << " from " << first;
          EXPECT_EQ(std::isnan(got[0]), first > 0);
        }
      }
      for (const std::vector<std::int64_t>& at :
           {std::vector<std::int64_t>{0, 1}, std::vector<std::int64_t>{1, 0}}) {
        std::vector<AttentionSegment> rows = {ours.segment(0, 0, 1), ours.segment(1, 0, 1)};
        std::vector<AttentionSegment> cpu_rows = {theirs.segment(0, 0, 1), theirs.segment(1, 0, 1)};
        for (const std::size_t b : {std::size_t{0}, std::size_t{1}}) {
          rows[b].query_begin = cpu_rows[b].query_begin = at[b];
        }
        expect_same_choices(
            seam,
            seam.sparse.choose_by_pages(
                q.view(), kHeads, kKvHeads, rows,
                std::vector<PageChoice>{{first_layer(short_bounds), 1, kLayerBytes},
                                        {first_layer(bounds), 3, kLayerBytes}},
                tokens, kLayer, seam.stream),
            cpu,
            cpu.sparse->choose_by_pages(
                cpu_q.view(), kHeads, kKvHeads, cpu_rows,
                std::vector<PageChoice>{{first_layer(short_expected), 1, kLayerBytes},
                                        {first_layer(expected), 3, kLayerBytes}},
                tokens, kLayer, *cpu.stream));
      }
    }
  }
}

// Two rows of one call whose contexts and budgets differ, with queries that follow each other or
// not; then a call for one row after a call for both.
inline void check_choices_of_two(const Seam& seam, const Queries& q, const FilledCache& ours,
                                 const KvLayerView& view, Cpu& cpu, const Queries& cpu_q,
                                 const FilledCache& theirs) {
  const std::vector<ChannelChoice> choices = {{.rank = 5, .tokens = 9, .recent = 2},
                                              {.rank = 5, .tokens = 31, .recent = 7}};
  const std::vector<std::int64_t> budgets = {33, 12};
  for (const std::vector<std::int64_t>& at :
       {std::vector<std::int64_t>{0, 1}, std::vector<std::int64_t>{1, 0}}) {
    std::vector<AttentionSegment> rows;
    std::vector<AttentionSegment> cpu_rows;
    for (const std::size_t b : {std::size_t{0}, std::size_t{1}}) {
      rows.push_back(ours.segment(b, 0, 1));
      rows.back().query_begin = at[b];
      cpu_rows.push_back(theirs.segment(b, 0, 1));
      cpu_rows.back().query_begin = at[b];
    }
    for (const std::size_t count : {std::size_t{2}, std::size_t{1}}) {
      const auto some = std::span(rows).first(count);
      const auto cpu_some = std::span(cpu_rows).first(count);
      expect_same_choices(
          seam,
          seam.sparse.choose_by_channels(q.view(), kHeads, view, some, 0.3F,
                                         std::span(choices).first(count), kUnreadMeans.first(count),
                                         {}, seam.stream),
          cpu,
          cpu.sparse->choose_by_channels(cpu_q.view(), kHeads, theirs.view(), cpu_some, 0.3F,
                                         std::span(choices).first(count), kUnreadMeans.first(count),
                                         cpu.workspace, *cpu.stream));
      expect_same_choices(
          seam,
          seam.sparse.choose_by_keys(q.view(), kHeads, view, some, 0.3F,
                                     std::span(budgets).first(count), {}, seam.stream),
          cpu,
          cpu.sparse->choose_by_keys(cpu_q.view(), kHeads, theirs.view(), cpu_some, 0.3F,
                                     std::span(budgets).first(count), cpu.workspace, *cpu.stream));
    }
  }
}

// SparQ and exact top-k, with transposed keys and without.
inline void check_choices(const Seam& seam) {
  Cpu cpu;
  const std::vector<std::int32_t> lengths = {40, 140};
  for (const DType dtype : kCaches) {
    const FilledCache theirs(*cpu.ops, cpu.device, dtype, lengths, 6);
    const Queries cpu_q(cpu.device, 2, 12);
    for (const bool transposed : {false, true}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + (transposed ? " transposed" : ""));
      const FilledCache ours(seam.ops, seam.device, dtype, lengths, 6);
      const Queries q(seam.device, 2, 12);
      const DeviceArray<std::byte> kt(seam.device,
                                      static_cast<std::int64_t>(ours.k().host().size()));
      HostVector<std::uint8_t> ready(2 * FilledCache::kMaxPages, 0);
      KvLayerView view = ours.view();
      view.kt = kt.data();
      view.kt_ready = ready.data();
      view.kt_pages = 2 * FilledCache::kMaxPages;
      view.kt_run = 4;
      for (const std::size_t b : {std::size_t{0}, std::size_t{1}}) {
        const AttentionSegment keys = ours.segment(b, 0, 1);
        if (transposed) seam.sparse.transpose_keys(view, {&keys, 1}, seam.stream);
        for (const ChannelChoice& choice :
             {ChannelChoice{.rank = 5, .tokens = 24, .recent = 4},
              ChannelChoice{.rank = 5, .tokens = 24, .recent = 4, .sum_logits = true},
              ChannelChoice{.rank = 5,
              .tokens = 24,
              .recent = 4,
              .temperature = ChannelTemperature::kHeadDim},
              ChannelChoice{.rank = 5,
              .tokens = 24,
              .recent = 4,
              .temperature = ChannelTemperature::kRank}}) {
          AttentionSegment row = keys;
          row.query_begin = 1;
          AttentionSegment cpu_row = theirs.segment(b, 0, 1);
          cpu_row.query_begin = 1;
          expect_same_choices(
              seam,
              seam.sparse.choose_by_channels(q.view(), kHeads, view, {&row, 1}, 0.3F, {&choice, 1},
                                             kUnreadMeans.first(1), {}, seam.stream),
              cpu,
              cpu.sparse->choose_by_channels(cpu_q.view(), kHeads, theirs.view(), {&cpu_row, 1},
                                             0.3F, {&choice, 1}, kUnreadMeans.first(1),
                                             cpu.workspace, *cpu.stream));
        }
        // With room beside each row.
        HostVector<float> weights(kHeads * 150, -1.0F);
        std::vector<float> cpu_weights(weights.size(), -1.0F);
        const DeviceArray<float> sinks(seam.device, kSinks);
        seam.sparse.score_keys(q.view(), 1, kHeads, view, keys,
                               {0.3F, 0.0F, transposed ? nullptr : sinks.data()}, weights.data(),
                               150, {}, seam.stream);
        cpu.sparse->score_keys(cpu_q.view(), 1, kHeads, theirs.view(), theirs.segment(b, 0, 1),
                               {0.3F, 0.0F, transposed ? nullptr : kSinks.data()},
                               cpu_weights.data(), 150, cpu.workspace, *cpu.stream);
        expect_near(weights, cpu_weights, 0.0, 1e-5, "weights");
      }
      check_choices_of_two(seam, q, ours, view, cpu, cpu_q, theirs);
      // Full pages are transposed, the query's own INT8 block is not; nothing else is.
      EXPECT_EQ(std::count(ready.begin(), ready.end(), 1), transposed ? 1 + 4 : 0);
    }
  }
}

// SparQ's running sums of V, bit for bit, and attention over lists with shares: as much of the
// attention without them, and the mean for the rest.
inline void check_reallocation(const Seam& seam) {
  Cpu cpu;
  const Queries v(seam.device, 9, 15);
  const Queries cpu_v(cpu.device, 9, 15);
  const std::vector<float> nothing(kColumns, std::numeric_limits<float>::quiet_NaN());
  const DeviceArray<float> sums(seam.device, nothing);
  const DeviceArray<float> cpu_sums(cpu.device, nothing);
  std::int64_t tokens = 0;
  for (const std::int64_t rows : {0, 5, 0, 1}) {
    const ValueRows part{2, rows, first_layer(sums), kLayerBytes, tokens};
    const ValueRows cpu_part{2, rows, first_layer(cpu_sums), kLayerBytes, tokens};
    seam.sparse.sum_values(v.view(), {&part, 1}, kLayer, false, seam.stream);
    cpu.sparse->sum_values(cpu_v.view(), {&cpu_part, 1}, kLayer, false, *cpu.stream);
    tokens += rows;
  }
  const DeviceArray<float> more(seam.device, nothing);
  const DeviceArray<float> cpu_more(cpu.device, nothing);
  const std::vector<ValueRows> parts = {{0, 3, sums.data(), 0, tokens}, {3, 6, more.data()}};
  const std::vector<ValueRows> cpu_parts = {{0, 3, cpu_sums.data(), 0, tokens},
                                            {3, 6, cpu_more.data()}};
  seam.sparse.sum_values(v.view(), parts, 0, false, seam.stream);
  cpu.sparse->sum_values(cpu_v.view(), cpu_parts, 0, false, *cpu.stream);
  seam.stream.synchronize();
  EXPECT_EQ(sums.host(), cpu_sums.host());
  EXPECT_EQ(more.host(), cpu_more.host());
  EXPECT_NE(sums.host(), more.host());
  EXPECT_TRUE(std::ranges::all_of(sums.host(), [](float sum) { return std::isfinite(sum); }));

  const FilledCache cache(seam.ops, seam.device, DType::kF16, {40, 140}, 6);
  std::mt19937 random(16);
  const DeviceArray<float> queries(seam.device, random_floats(random, 2 * kColumns));
  const ConstMatrix q{queries.data(), DType::kF32, 2, kColumns, kColumns};
  const std::vector<AttentionSegment> rows = {cache.segment(0, 0, 1), cache.segment(1, 1, 1)};
  const std::vector<ChannelChoice> choices(2, {.rank = 5, .tokens = 24, .recent = 4});
  // Heads in two groups: the means are the first 2 * kDim sums.
  const std::vector<ValueMean> means = {{first_layer(sums), 6, kLayerBytes},
                                        {first_layer(more), 7, kLayerBytes}};
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
    const float sum = (row == 0 ? sums : more).host()[static_cast<std::size_t>(of_kv)];
    const float mean = sum * (1.0F / static_cast<float>(row == 0 ? 6 : 7));
    EXPECT_EQ(shares[at], own * all[at]) << i;
    EXPECT_EQ(reallocated[at], own * all[at] + (1.0F - own) * mean) << i;
  }
}

}  // namespace triphase::cuda
