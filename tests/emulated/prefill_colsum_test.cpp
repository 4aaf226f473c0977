#include "kernels/cuda/prefill_colsum.h"

#include "kernels/cuda/weight_window.h"
#include "kernels/sizing/cuda_workspace.h"
#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

struct Prompt {
  std::int64_t heads, kv_heads, dim, tokens;
  std::vector<float> q, log_sums;
  std::vector<double> weights;  // [query][head][token]
};

constexpr float kScale = 0.2F;

// What the tensor cores take a query's channel for: times the scale, in base 2, rounded as
// prefill_attention rounds it. Other caches' and heads' queries stay as they are.
double taken_query(const PagedCache& cache, float value) {
  if (cache.head_dim % 16 != 0) return value;
  const float factor = kScale * 1.44269504F;
  const float scaled = value * factor;
  if (cache.dtype == DType::kF16) return f16_to_f32(f32_to_f16(scaled)) / double{factor};
  if (cache.dtype != DType::kBF16) return value;
  const float first = bf16_to_f32(f32_to_bf16(scaled));
  return (double{first} + bf16_to_f32(f32_to_bf16(scaled - first))) / double{factor};
}

Prompt make_prompt(std::mt19937& random, const PagedCache& cache, std::int64_t heads) {
  Prompt prompt{heads, cache.kv_heads, cache.head_dim, cache.lengths[0], {}, {}, {}};
  prompt.q = random_floats(random, prompt.tokens * heads * prompt.dim);
  prompt.log_sums = poisoned(prompt.tokens * heads);
  prompt.weights.assign(static_cast<std::size_t>(prompt.tokens * heads * prompt.tokens), 0.0);
  for (std::int64_t i = 0; i < prompt.tokens; ++i) {
    for (std::int64_t head = 0; head < heads; ++head) {
      double sum = 0.0;
      double* row = prompt.weights.data() + (i * heads + head) * prompt.tokens;
      for (std::int64_t t = 0; t <= i; ++t) {
        double dot = 0.0;
        for (std::int64_t c = 0; c < prompt.dim; ++c) {
          dot +=
              taken_query(cache,
                          prompt.q[static_cast<std::size_t>((i * heads + head) * prompt.dim + c)]) *
              cache.value(false, 0, head / (heads / cache.kv_heads), t, c);
        }
        sum += row[t] = std::exp(kScale * dot);
      }
      for (std::int64_t t = 0; t <= i; ++t) row[t] /= sum;
      prompt.log_sums[static_cast<std::size_t>(i * heads + head)] =
          static_cast<float>(std::log(sum));
    }
  }
  return prompt;
}

PrefillColumns chunk(const Prompt& prompt, const PagedCache& cache, std::int64_t first,
                     std::int64_t count, std::int64_t row_begin, std::int64_t row_end) {
  PrefillColumns call;
  call.q = prompt.q.data() + first * prompt.heads * prompt.dim;
  call.q_stride = prompt.heads * prompt.dim;
  call.queries = count;
  call.first_position = first;
  call.row_begin = row_begin;
  call.row_end = row_end;
  call.k = cache.k_data();
  call.dtype = cache.dtype;
  if (cache.dtype == DType::kInt8) {
    call.scales = cache.scales.data();
    call.scale_pages = cache.scale_pages.data();
    call.partial_k = cache.partial_k[0].data();
    call.partial_page = cache.partial_pages[0];
  }
  call.pages = cache.pages.data();
  call.page_tokens = cache.page_tokens;
  call.heads = prompt.heads;
  call.kv_heads = prompt.kv_heads;
  call.head_dim = prompt.dim;
  call.scale = kScale;
  return call;
}

void add_chunk(const Prompt& prompt, const PagedCache& cache, std::int64_t first,
               std::int64_t count, std::int64_t row_begin, std::int64_t row_end,
               std::vector<float>& sums) {
  prefill_colsum(chunk(prompt, cache, first, count, row_begin, row_end),
                 prompt.log_sums.data() + first * prompt.heads, sums.data(), prompt.tokens + 1,
                 nullptr);
}

// Sums of the rows [begin, end) in a call whose queries start at `first`.
void expect_sums(const Prompt& prompt, const PagedCache& cache, std::int64_t first,
                 std::int64_t begin, std::int64_t end) {
  const std::int64_t tokens = prompt.tokens;
  const std::int64_t group = prompt.heads / cache.kv_heads;
  std::vector<float> sums(static_cast<std::size_t>(cache.kv_heads * (tokens + 1)), 0.0F);
  add_chunk(prompt, cache, first, tokens - first, begin, end, sums);
  for (std::int64_t kv = 0; kv < cache.kv_heads; ++kv) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      double expected = 0.0;
      for (std::int64_t i = std::max(begin, first); i < end; ++i) {
        for (std::int64_t g = 0; g < group; ++g) {
          expected += prompt.weights[static_cast<std::size_t>(
              (i * prompt.heads + kv * group + g) * tokens + t)];
        }
      }
      ASSERT_NEAR(sums[static_cast<std::size_t>(kv * (tokens + 1) + t)], expected,
                  2e-5 * expected + 1e-6)
          << t;
    }
  }
}

TEST(EmulatedColumnSums, MatchFloat64ForRowRangesGroupsAndTypes) {
  std::mt19937 random(1);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const auto& [heads, tokens] :
         {std::pair<std::int64_t, std::int32_t>{2, 129}, {6, 65}, {16, 1}, {4, 127}, {2, 128}}) {
      const PagedCache cache(random, dtype, {tokens}, 32, 2, 20);
      const Prompt prompt = make_prompt(random, cache, heads);
      expect_sums(prompt, cache, 0, 0, tokens);
      expect_sums(prompt, cache, 0, std::max(0, tokens - 12), tokens);
      expect_sums(prompt, cache, 0, std::min(5, tokens - 1), std::min(6, tokens));
    }
  }
}

TEST(EmulatedColumnSums, Int8ReadsCodesAndItsOwnBlockUnquantized) {
  std::mt19937 random(4);
  for (const std::int64_t heads : {2, 10}) {
    for (const std::int32_t tokens : {1, 32, 65, 96, 110}) {
      const PagedCache cache(random, DType::kInt8, {tokens}, 32, 2, 13);
      const Prompt prompt = make_prompt(random, cache, heads);
      expect_sums(prompt, cache, cache.own_block(0), 0, tokens);
    }
  }
}

// Prompts of whole and partial tiles of rows and keys, and of several steps of channels.
TEST(EmulatedColumnSums, MatchFloat64OnTensorCores) {
  std::mt19937 random(11);
  for (const auto& [dtype, tokens, heads, dim] :
       {std::tuple<DType, std::int32_t, std::int64_t, std::int64_t>{DType::kInt8, 65, 2, 112},
        {DType::kF16, 70, 8, 16},
        {DType::kF16, 150, 2, 128},
        {DType::kF16, 1, 6, 48},
        {DType::kBF16, 129, 6, 64},
        {DType::kInt8, 110, 10, 48}}) {
    const PagedCache cache(random, dtype, {tokens}, 32, 2, dim);
    const Prompt prompt = make_prompt(random, cache, heads);
    const std::int64_t first = dtype == DType::kInt8 ? cache.own_block(0) : 0;
    expect_sums(prompt, cache, first, first, tokens);
    expect_sums(prompt, cache, first, std::max<std::int64_t>(first, tokens - 12), tokens);
  }
}

// Bit for bit: rows are added one by one in their order.
TEST(EmulatedColumnSums, ChunksInOrderAddUpToTheWholePrompt) {
  std::mt19937 random(2);
  for (const auto& [dtype, dim] :
       {std::pair<DType, std::int64_t>{DType::kF32, 16}, {DType::kF16, 64}, {DType::kBF16, 80}}) {
    const PagedCache cache(random, dtype, {100}, 16, 1, dim);
    const Prompt prompt = make_prompt(random, cache, 3);
    std::vector<float> whole(101, 0.0F);
    add_chunk(prompt, cache, 0, 100, 0, 100, whole);
    std::vector<float> cut(101, 0.0F);
    for (const auto& [first, count] :
         {std::pair<std::int64_t, std::int64_t>{0, 37}, {37, 1}, {38, 62}}) {
      add_chunk(prompt, cache, first, count, 0, 100, cut);
    }
    EXPECT_EQ(std::memcmp(cut.data(), whole.data(), whole.size() * sizeof(float)), 0);
  }
}

// All queries, over `count` centroids of each KV head, which lie in `page`.
PrefillColumns over_centroids(const std::vector<float>& q, const std::vector<float>& means,
                              const std::vector<std::int32_t>& page,
                              const std::vector<float>& key_counts, std::int64_t queries,
                              std::int64_t heads, std::int64_t kv_heads, std::int64_t count) {
  PrefillColumns call;
  call.q = q.data();
  call.q_stride = std::ssize(q) / queries;
  call.queries = call.row_end = queries;
  call.k = means.data();
  call.dtype = DType::kF32;
  call.pages = page.data();
  call.page_tokens = call.keys = count;
  call.heads = heads;
  call.kv_heads = kv_heads;
  call.head_dim = call.q_stride / heads;
  call.scale = kScale;
  call.key_counts = key_counts.data();
  return call;
}

// Centroids: every query sees all of them, and log-sums count their keys. On tensor cores and, with
// an odd size, without.
TEST(EmulatedColumnSums, CentroidsStandForTheirKeys) {
  std::mt19937 random(12);
  for (const auto& [count, dim, alive_share] :
       {std::tuple<std::int64_t, std::int64_t, int>{150, 64, 10},
        {7, 128, 10},
        {130, 20, 10},
        {131, 32, 6},
        {40, 12, 6}}) {
    constexpr std::int64_t kKvHeads = 2;
    constexpr std::int64_t kHeads = 6;
    constexpr std::int64_t kQueries = 37;
    const auto size = static_cast<std::size_t>(kKvHeads * count);
    // Of FP16 values, which tensor cores take as they are.
    std::vector<float> means = random_floats(random, kKvHeads * count * dim);
    for (float& value : means) value = f16_to_f32(f32_to_f16(value));
    const std::vector<float> q = random_floats(random, kQueries * kHeads * dim);
    std::vector<float> counts(size);
    std::vector<std::uint8_t> alive(size);
    for (std::size_t i = 0; i < size; ++i) {
      counts[i] = static_cast<float>(random() % 5);
      alive[i] = static_cast<int>(random() % 10) < alive_share ? 1 : 0;
    }
    counts[0] = counts[static_cast<std::size_t>(count)] = 3.0F;
    alive[0] = alive[static_cast<std::size_t>(count)] = 1;
    const std::vector<std::int32_t> page{0};
    PrefillColumns call = over_centroids(q, means, page, counts, kQueries, kHeads, kKvHeads, count);
    call.key_alive = alive.data();
    std::vector<float> log_sums = poisoned(kQueries * kHeads);
    std::vector<float> partials = poisoned(prefill_log_sum_floats(kQueries, kHeads, count));
    std::vector<float> sums(size, 0.0F);
    prefill_log_sums(call, log_sums.data(), partials.data(), nullptr);
    prefill_colsum(call, log_sums.data(), sums.data(), count, nullptr);
    std::vector<double> expected(size, 0.0);
    for (std::int64_t row = 0; row < kQueries * kHeads; ++row) {
      const auto first = static_cast<std::size_t>(row % kHeads / (kHeads / kKvHeads) * count);
      std::vector<double> powers(static_cast<std::size_t>(count));
      double total = 0.0;
      for (std::size_t i = 0; i < powers.size(); ++i) {
        double dot = 0.0;
        for (std::int64_t c = 0; c < dim; ++c) {
          dot += q[static_cast<std::size_t>(row * dim + c)] *
                 means[(first + i) * static_cast<std::size_t>(dim) + static_cast<std::size_t>(c)];
        }
        powers[i] = std::exp(0.2F * dot);
        if (alive[first + i] != 0) total += counts[first + i] * powers[i];
      }
      for (std::size_t i = 0; i < powers.size(); ++i) {
        const bool has_weight = alive[first + i] != 0 && counts[first + i] > 0.0F;
        if (has_weight) expected[first + i] += powers[i] / total;
      }
    }
    for (std::size_t i = 0; i < size; ++i) {
      ASSERT_NEAR(sums[i], expected[i], 2e-5 * expected[i] + 1e-6) << dim << " " << i;
    }
  }
}

// Log-sums over `count` centroids. Rows beyond those that count keep what was there.
void expect_log_sums(std::mt19937& random, std::int64_t count, std::int64_t queries,
                     std::int64_t heads, std::int64_t dim) {
  const std::int64_t kv_heads = heads == 1 ? 1 : 2;
  const auto size = static_cast<std::size_t>(kv_heads * count);
  std::vector<float> means = random_floats(random, kv_heads * count * dim);
  for (float& value : means) value = f16_to_f32(f32_to_f16(value));
  const std::vector<float> q = random_floats(random, queries * heads * dim);
  std::vector<float> counts(size);
  for (std::size_t i = 0; i < size; ++i) {
    counts[i] = i % static_cast<std::size_t>(count) == 0 ? 2.0F : static_cast<float>(random() % 5);
  }
  const std::vector<std::int32_t> page{0};
  PrefillColumns call = over_centroids(q, means, page, counts, queries, heads, kv_heads, count);
  call.row_end = std::max<std::int64_t>(1, queries - 3);
  std::vector<float> log_sums = poisoned(queries * heads);
  std::vector<float> partials = poisoned(prefill_log_sum_floats(call.row_end, heads, count));
  prefill_log_sums(call, log_sums.data(), partials.data(), nullptr);
  for (std::int64_t row = 0; row < queries * heads; ++row) {
    const float value = log_sums[static_cast<std::size_t>(row)];
    if (row / heads >= call.row_end) {
      ASSERT_TRUE(std::isnan(value)) << row;
      continue;
    }
    const std::int64_t first = row % heads / (heads / kv_heads) * count;
    double sum = 0.0;
    for (std::int64_t i = first; i < first + count; ++i) {
      double dot = 0.0;
      for (std::int64_t c = 0; c < dim; ++c) {
        dot += q[static_cast<std::size_t>(row * dim + c)] *
               means[static_cast<std::size_t>(i * dim + c)];
      }
      sum += counts[static_cast<std::size_t>(i)] * std::exp(0.2F * dot);
    }
    ASSERT_NEAR(value, std::log(sum), 1e-5) << row;
  }
}

// More centroids than a split has are merged. On tensor cores and, with an odd size, without; the
// tiles of heads of 152 channels take less than the 48 KiB of a kernel without leave, with its
// fixed arrays more.
TEST(EmulatedColumnSums, LogSumsMatchFloat64ForAnyNumberOfCentroids) {
  std::mt19937 random(3);
  for (const std::int64_t dim : {12, 16, 64, 152}) {
    for (const auto& [count, queries, heads] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 2, 2},
          {65, 80, 6},
          {110, 20, 10},
          {kColumnSplitTokens + 70, 5, 1}}) {
      expect_log_sums(random, count, queries, heads, dim);
    }
  }
}

// A window's weights: pages in front of it are not even looked up.
TEST(EmulatedColumnSums, WindowsHideWhatLiesBeforeThem) {
  std::mt19937 random(5);
  const std::int64_t tokens = 150;
  const std::int64_t window = 40;
  PagedCache cache(random, DType::kF16, {150}, 32, 1, 16);
  const Prompt prompt = make_prompt(random, cache, 2);
  cache.pages[0] = -1;
  cache.pages[1] = -1;
  const std::int64_t first = 110;
  PrefillColumns call = chunk(prompt, cache, first, tokens - first, first, tokens);
  call.window = window;
  std::vector<float> log_sums;
  for (std::int64_t row = first * 2; row < tokens * 2; ++row) {
    double seen = 0.0;  // of the whole context's weights
    for (std::int64_t t = row / 2 + 1 - window; t <= row / 2; ++t) {
      seen += prompt.weights[static_cast<std::size_t>(row * tokens + t)];
    }
    log_sums.push_back(
        static_cast<float>(prompt.log_sums[static_cast<std::size_t>(row)] + std::log(seen)));
  }
  std::vector<float> sums(static_cast<std::size_t>(tokens), 0.0F);
  prefill_colsum(call, log_sums.data(), sums.data(), tokens, nullptr);
  std::vector<double> expected(sums.size(), 0.0);
  for (std::int64_t i = first; i < tokens; ++i) {
    for (std::int64_t head = 0; head < 2; ++head) {
      const double* row = prompt.weights.data() + (i * 2 + head) * tokens;
      double seen = 0.0;
      for (std::int64_t t = i + 1 - window; t <= i; ++t) seen += row[t];
      for (std::int64_t t = i + 1 - window; t <= i; ++t) {
        expected[static_cast<std::size_t>(t)] += row[t] / seen;
      }
    }
  }
  for (std::size_t t = 0; t < sums.size(); ++t) {
    ASSERT_NEAR(sums[t], expected[t], 2e-5 * expected[t] + 1e-9) << t;
  }
}

// All queries of a call, as a part of one.
ColumnPart part_of(const Prompt& prompt, const PrefillColumns& call) {
  return {.q = call.q,
          .log_sums = prompt.log_sums.data() + call.first_position * call.heads,
          .queries = call.queries,
          .first_position = call.first_position,
          .window = call.window,
          .pages = call.pages,
          .scale_pages = call.scale_pages,
          .partial_page = call.partial_page};
}

// Bit for bit what they are one by one, where keys stay from part to part too. INT8: a prompt's
// parts are its blocks, whose own keys all lie in the same memory here, and not in that of their
// codes.
TEST(EmulatedColumnSums, PromptsTogetherSumUpAsEachAlone) {
  constexpr std::int32_t kTokens = 192;  // more than a block of keys has
  constexpr std::int64_t kPageTokens = 32;
  constexpr std::int64_t kStride = kTokens + 1;
  std::mt19937 random(8);
  for (const auto& [dtype, dim] : {std::pair<DType, std::int64_t>{DType::kF16, 64},
                                   {DType::kBF16, 32},
                                   {DType::kInt8, 48},
                                   {DType::kF32, 16},
                                   {DType::kF16, 20}}) {
    SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " channels " << dim);
    const PagedCache cache(random, dtype, {kTokens}, kPageTokens, 2, dim);
    const Prompt prompt = make_prompt(random, cache, 6);
    const bool in_blocks = dtype == DType::kInt8;
    struct Sums {
      std::vector<float> together, alone;
    };
    std::vector<Sums> sums;
    std::vector<ColumnPart> parts;
    std::vector<ColumnPrompt> prompts;
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{0, kTokens},
                                     {7, 8},
                                     {66, 170},
                                     {0, 129},
                                     {191, kTokens}}) {
      Sums& one = sums.emplace_back();
      one.together.assign(2 * kStride, 0.5F);
      one.alone = one.together;
      prompts.push_back({.first_part = std::ssize(parts), .parts = 0, .sum_stride = kStride});
      for (std::int64_t at = begin; at < end;) {
        const std::int64_t part_end =
            std::min(end, in_blocks ? (at / kPageTokens + 1) * kPageTokens : at + 41);
        add_chunk(prompt, cache, at, part_end - at, at, part_end, one.alone);
        parts.push_back(part_of(prompt, chunk(prompt, cache, at, part_end - at, at, part_end)));
        ++prompts.back().parts;
        at = part_end;
      }
    }
    for (std::size_t i = 0; i < sums.size(); ++i) prompts[i].sums = sums[i].together.data();
    const std::int64_t own = in_blocks ? cache.own_block(0) : 0;
    const PrefillColumns common = chunk(prompt, cache, own, kTokens - own, own, kTokens);
    lay_out_tiles(common, parts, prompts);
    prefill_colsum(common,
                   {.parts = parts,
                    .prompts = prompts,
                    .sent_parts = parts.data(),
                    .sent_prompts = prompts.data()},
                   nullptr);
    for (const Sums& one : sums) {
      ASSERT_EQ(one.together, one.alone);
      // Some of them are more than what was there: of all queries' first key.
      ASSERT_GT(one.together[0], 0.5F);
    }
  }
}

// A prompt's rows in an exact window, each in a step of its own: entries (token, weight).
std::vector<WindowEntry> window_of(const Prompt& prompt, const PagedCache& cache,
                                   std::int64_t first, std::span<float> totals) {
  const std::int64_t tokens = prompt.tokens;
  const std::int64_t room = tokens * (tokens + 1) / 2;
  std::vector<std::int64_t> sums(static_cast<std::size_t>(tokens), 0);
  std::vector<WindowEntry> entries(static_cast<std::size_t>(room), WindowEntry{-1, 0.0F});
  std::vector<std::int32_t> begins;
  for (std::int64_t row = first; row < tokens; ++row) {
    begins.push_back(static_cast<std::int32_t>(row * (row + 1) / 2));
  }
  const PrefillColumns columns = chunk(prompt, cache, first, tokens - first, first, tokens);
  // In a vector as all that kernels read: a GPU does not read the stack.
  std::vector<WindowPart> parts{
      {.rows = part_of(prompt, columns),
       .window = {.sums = sums.data(), .entries = entries.data(), .tokens = tokens, .room = room},
       .begins = begins.data()}};
  lay_out_tiles(columns, parts);
  add_prompt_rows(columns, parts, parts.data(), totals, nullptr);
  return entries;
}

TEST(EmulatedColumnSums, PromptRowsWeighTheSameInAnyNumberOfLaunches) {
  std::mt19937 random(12);
  // Heads that are one share, whole shares, and shares that cut groups.
  for (const auto& [dtype, tokens, heads] : {std::tuple{DType::kF16, 150, 4},
                                             {DType::kF16, 150, 8},
                                             {DType::kBF16, 97, 6},
                                             {DType::kInt8, 96, 10}}) {
    SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " heads " << heads);
    const PagedCache cache(random, dtype, {tokens}, 32, 2, 32);
    const Prompt prompt = make_prompt(random, cache, heads);
    const std::int64_t first = dtype == DType::kInt8 ? cache.own_block(0) : 0;
    const std::int64_t most = prompt_total_floats(heads, tokens);
    std::vector<float> totals = poisoned(most);
    const std::vector<WindowEntry> entries = window_of(prompt, cache, first, totals);
    for (std::int64_t row = first; row < tokens; ++row) {
      for (std::int64_t token = 0; token <= row; ++token) {
        double expected = 0.0;
        for (std::int64_t head = 0; head < heads; ++head) {
          expected +=
              prompt.weights[static_cast<std::size_t>((row * heads + head) * tokens + token)];
        }
        const WindowEntry& entry = entries[static_cast<std::size_t>(row * (row + 1) / 2 + token)];
        ASSERT_EQ(entry.token, token);
        ASSERT_NEAR(entry.weight, expected, 2e-5 * expected + 1e-6) << row << " " << token;
      }
    }
    if (most == 0) continue;
    // One tile, and two, at a time.
    const std::int64_t tile =
        (heads + kPromptShareHeads - 1) / kPromptShareHeads * kPromptTileSide * kPromptTileSide;
    for (const std::int64_t floats : {tile, 2 * tile}) {
      std::vector<float> few = poisoned(floats);
      const std::vector<WindowEntry> other = window_of(prompt, cache, first, few);
      for (std::size_t i = 0; i < other.size(); ++i) {
        ASSERT_EQ(other[i].token, entries[i].token);
        ASSERT_EQ(other[i].weight, entries[i].weight);
      }
    }
    EXPECT_THROW(window_of(prompt, cache, first, std::span(totals).first(100)), Error);
  }
}

}  // namespace
}  // namespace triphase::cuda
