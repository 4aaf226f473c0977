#include "kernels/cuda/paged_attention.h"

#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

struct Case {
  DType dtype;
  std::int64_t heads, kv_heads, head_dim, page_tokens, window;
  std::vector<std::int32_t> lengths, queries;
};

struct Result {
  std::vector<float> out, log_sums;
};

Result run(const Case& c, const PagedCache& cache, const std::vector<float>& q) {
  std::vector<PagedSegment> segments;
  std::int64_t rows = 0;
  std::int64_t blocks = 0;
  for (std::size_t b = 0; b < c.lengths.size(); ++b) {
    segments.push_back({.query_begin = rows,
                        .query_count = c.queries[b],
                        .context_tokens = c.lengths[b],
                        .window = c.window,
                        .pages_begin = static_cast<std::int64_t>(b) * cache.max_pages,
                        .open_page = cache.open_pages[b],
                        .first_block = static_cast<std::int32_t>(blocks)});
    rows += c.queries[b];
    blocks += paged_query_blocks(c.queries[b], c.heads / c.kv_heads);
  }
  const std::int64_t columns = c.heads * c.head_dim;
  Result result{poisoned(rows * columns), poisoned(rows * c.heads)};
  std::vector<float> partials =
      poisoned(paged_attention_floats(blocks, c.kv_heads, c.head_dim, cache.max_length));
  PagedAttention call;
  call.q = q.data();
  call.q_stride = columns;
  call.heads = c.heads;
  call.k = cache.k_data();
  call.v = cache.v_data();
  call.dtype = c.dtype;
  if (c.dtype == DType::kU8) {
    call.scales = cache.scales.data();
    call.open_k = cache.open_k[0].data();
    call.open_v = cache.open_v[0].data();
  }
  call.page_tokens = c.page_tokens;
  call.kv_heads = c.kv_heads;
  call.head_dim = c.head_dim;
  call.scale = 0.2F;
  call.segments = segments.data();
  call.segment_count = static_cast<std::int64_t>(segments.size());
  call.pages = cache.pages.data();
  call.scale_pages = cache.pages.data();
  call.out = result.out.data();
  call.out_stride = columns;
  call.log_sums = result.log_sums.data();
  call.partials = partials.data();
  paged_attention(call, blocks, cache.max_length, nullptr);
  return result;
}

void expect_matches(const Case& c, std::uint32_t seed) {
  std::mt19937 random(seed);
  const PagedCache cache(random, c.dtype, c.lengths, c.page_tokens, c.kv_heads, c.head_dim);
  std::int64_t rows = 0;
  for (const std::int32_t count : c.queries) rows += count;
  const std::vector<float> q = random_floats(random, rows * c.heads * c.head_dim);
  const Result result = run(c, cache, q);
  std::int64_t row = 0;
  for (std::size_t b = 0; b < c.lengths.size(); ++b) {
    for (std::int64_t i = 0; i < c.queries[b]; ++i, ++row) {
      const std::int64_t position = c.lengths[b] - c.queries[b] + i;
      const std::int64_t begin =
          c.window > 0 ? std::max<std::int64_t>(0, position + 1 - c.window) : 0;
      for (std::int64_t head = 0; head < c.heads; ++head) {
        const std::int64_t kv = head / (c.heads / c.kv_heads);
        const float* query = q.data() + (row * c.heads + head) * c.head_dim;
        std::vector<double> logits;
        double top = -INFINITY;
        for (std::int64_t t = begin; t <= position; ++t) {
          double dot = 0.0;
          for (std::int64_t d = 0; d < c.head_dim; ++d) {
            dot += query[d] * cache.value(false, static_cast<std::int64_t>(b), kv, t, d);
          }
          logits.push_back(0.2F * dot);
          top = std::max(top, logits.back());
        }
        double sum = 0.0;
        for (double& logit : logits) sum += logit = std::exp(logit - top);
        ASSERT_NEAR(result.log_sums[static_cast<std::size_t>(row * c.heads + head)],
                    top + std::log(sum), 1e-4)
            << "row " << row << " head " << head;
        for (std::int64_t d = 0; d < c.head_dim; ++d) {
          double value = 0.0;
          double magnitude = 0.0;
          for (std::size_t t = 0; t < logits.size(); ++t) {
            const double v = cache.value(true, static_cast<std::int64_t>(b), kv,
                                         begin + static_cast<std::int64_t>(t), d);
            value += logits[t] / sum * v;
            magnitude += logits[t] / sum * std::abs(v);
          }
          ASSERT_NEAR(result.out[static_cast<std::size_t>((row * c.heads + head) * c.head_dim + d)],
                      value, 1e-4 * (magnitude + 1e-6))
              << "row " << row << " head " << head << " column " << d;
        }
      }
    }
  }
}

TEST(EmulatedPagedAttention, GroupsAndTypesOverRaggedDecodeRows) {
  std::uint32_t seed = 1;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kU8}) {
    for (const std::int64_t group : {1, 2, 3, 5, 8}) {
      const Case c{dtype, 2 * group, 2, 16, 32, 0, {1, 31, 33, 65}, {1, 1, 1, 1}};
      expect_matches(c, seed++);
    }
  }
}

TEST(EmulatedPagedAttention, PrefillChunksAreCausal) {
  expect_matches({DType::kF16, 4, 2, 20, 16, 0, {37, 16, 70}, {37, 5, 20}}, 50);
  expect_matches({DType::kF32, 3, 1, 12, 64, 0, {64}, {33}}, 51);
}

TEST(EmulatedPagedAttention, WindowsAndWideHeads) {
  expect_matches({DType::kF16, 2, 2, 132, 16, 10, {70}, {12}}, 60);
  expect_matches({DType::kBF16, 2, 1, 256, 32, 0, {40}, {2}}, 61);
}

TEST(EmulatedPagedAttention, SplitsMergeOverLongContexts) {
  expect_matches({DType::kF16, 1, 1, 8, 128, 0, {4500, 2048, 2049}, {1, 1, 2}}, 70);
  expect_matches({DType::kF16, 1, 1, 8, 128, 300, {4500}, {1}}, 71);
}

// A sequence's bits are the same alone, in a batch, and however prefill was cut.
TEST(EmulatedPagedAttention, BitsDoNotDependOnNeighboursOrChunks) {
  std::mt19937 random(80);
  const Case both{DType::kF16, 4, 2, 16, 32, 0, {50, 90}, {9, 7}};
  const PagedCache cache(random, both.dtype, both.lengths, 32, 2, 16);
  const std::vector<float> q = random_floats(random, 16 * 64);
  const Result together = run(both, cache, q);
  Case last = both;
  last.lengths = {50, 90};
  last.queries = {0, 1};
  const std::vector<float> last_q(q.end() - 64, q.end());
  const emulated::Order order(9);
  const Result alone = run(last, cache, last_q);
  EXPECT_EQ(std::memcmp(alone.out.data(), together.out.data() + 15 * 64, 64 * sizeof(float)), 0);
}

TEST(EmulatedPagedAttention, Int8ReadsItsOwnBlockUnquantized) {
  // Contexts that end exactly at a block's end: the block is still the query's own.
  expect_matches({DType::kU8, 2, 1, 16, 32, 0, {64, 32}, {1, 1}}, 90);
  expect_matches({DType::kU8, 2, 1, 16, 32, 0, {90, 64}, {20, 32}}, 91);
}

}  // namespace
}  // namespace triphase::cuda
