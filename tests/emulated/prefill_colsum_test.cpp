#include "kernels/cuda/prefill_colsum.h"

#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

struct Prompt {
  std::int64_t heads, kv_heads, dim, tokens;
  std::vector<float> q, log_sums;
  std::vector<double> weights;  // [query][head][token]
};

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
          dot += prompt.q[static_cast<std::size_t>((i * heads + head) * prompt.dim + c)] *
                 cache.value(false, 0, head / (heads / cache.kv_heads), t, c);
        }
        sum += row[t] = std::exp(0.2F * dot);
      }
      for (std::int64_t t = 0; t <= i; ++t) row[t] /= sum;
      prompt.log_sums[static_cast<std::size_t>(i * heads + head)] =
          static_cast<float>(std::log(sum));
    }
  }
  return prompt;
}

PrefillColumns chunk(const Prompt& prompt, const PagedCache& cache, std::int64_t first,
                     std::int64_t count, std::int64_t row_begin, std::int64_t row_end,
                     std::vector<float>& sums) {
  PrefillColumns call;
  call.q = prompt.q.data() + first * prompt.heads * prompt.dim;
  call.q_stride = prompt.heads * prompt.dim;
  call.log_sums = prompt.log_sums.data() + first * prompt.heads;
  call.queries = count;
  call.first_position = first;
  call.row_begin = row_begin;
  call.row_end = row_end;
  call.k = cache.k_data();
  call.dtype = cache.dtype;
  if (cache.dtype == DType::kU8) {
    call.scales = cache.scales.data();
    call.scale_pages = cache.pages.data();
    call.open_k = cache.open_k[0].data();
    call.open_page = cache.open_pages[0];
  }
  call.pages = cache.pages.data();
  call.page_tokens = cache.page_tokens;
  call.heads = prompt.heads;
  call.kv_heads = prompt.kv_heads;
  call.head_dim = prompt.dim;
  call.scale = 0.2F;
  call.sums = sums.data();
  call.sum_stride = prompt.tokens + 1;
  return call;
}

// Sums of the rows [begin, end) in a call whose queries start at `first`.
void expect_sums(const Prompt& prompt, const PagedCache& cache, std::int64_t first,
                 std::int64_t begin, std::int64_t end) {
  const std::int64_t tokens = prompt.tokens;
  const std::int64_t group = prompt.heads / cache.kv_heads;
  std::vector<float> sums(static_cast<std::size_t>(cache.kv_heads * (tokens + 1)), 0.0F);
  prefill_colsum(chunk(prompt, cache, first, tokens - first, begin, end, sums), nullptr);
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
      const PagedCache cache(random, DType::kU8, {tokens}, 32, 2, 13);
      const Prompt prompt = make_prompt(random, cache, heads);
      expect_sums(prompt, cache, cache.own_block(0), 0, tokens);
    }
  }
  const PagedCache cache(random, DType::kU8, {40}, 32, 1, 16);
  const Prompt prompt = make_prompt(random, cache, 1);
  std::vector<float> sums(41, 0.0F);
  EXPECT_THROW(prefill_colsum(chunk(prompt, cache, 20, 20, 0, 40, sums), nullptr), Error);
}

TEST(EmulatedColumnSums, ChunksInOrderAddUpToTheWholePrompt) {
  std::mt19937 random(2);
  const PagedCache cache(random, DType::kF32, {100}, 16, 1, 16);
  const Prompt prompt = make_prompt(random, cache, 1);
  std::vector<float> whole(101, 0.0F);
  prefill_colsum(chunk(prompt, cache, 0, 100, 0, 100, whole), nullptr);
  std::vector<float> cut(101, 0.0F);
  for (const auto& [first, count] :
       {std::pair<std::int64_t, std::int64_t>{0, 37}, {37, 1}, {38, 62}}) {
    prefill_colsum(chunk(prompt, cache, first, count, 0, 100, cut), nullptr);
  }
  for (std::size_t t = 0; t < 100; ++t) ASSERT_NEAR(cut[t], whole[t], 1e-5 * whole[t]);
}

}  // namespace
}  // namespace triphase::cuda
