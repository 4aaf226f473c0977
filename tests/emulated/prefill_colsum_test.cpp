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

TEST(EmulatedColumnSums, MatchFloat64ForRowRangesGroupsAndTypes) {
  std::mt19937 random(1);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const auto& [heads, tokens] : {std::pair<std::int64_t, std::int32_t>{2, 130}, {6, 65}}) {
      const PagedCache cache(random, dtype, {tokens}, 32, 2, 20);
      const Prompt prompt = make_prompt(random, cache, heads);
      for (const auto& [begin, end] :
           {std::pair<std::int64_t, std::int64_t>{0, tokens}, {tokens - 12, tokens}, {5, 6}}) {
        std::vector<float> sums(static_cast<std::size_t>(2 * (tokens + 1)), 0.0F);
        prefill_colsum(chunk(prompt, cache, 0, tokens, begin, end, sums), nullptr);
        for (std::int64_t kv = 0; kv < 2; ++kv) {
          for (std::int64_t t = 0; t < tokens; ++t) {
            double expected = 0.0;
            for (std::int64_t i = begin; i < end; ++i) {
              for (std::int64_t g = 0; g < heads / 2; ++g) {
                expected += prompt.weights[static_cast<std::size_t>(
                    (i * heads + kv * (heads / 2) + g) * tokens + t)];
              }
            }
            ASSERT_NEAR(sums[static_cast<std::size_t>(kv * (tokens + 1) + t)], expected,
                        2e-5 * expected + 1e-6)
                << t;
          }
        }
      }
    }
  }
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
