#pragma once

// Ragged segments over a paged cache for the attention kernels that share PagedAttention, and the
// float64 definition that they are held against.

#include "kernels/cuda/paged_attention.h"
#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {

struct PagedCase {
  DType dtype;
  std::int64_t heads, kv_heads, head_dim, page_tokens, window;
  std::vector<std::int32_t> lengths, queries;
  bool sinks = false;
  // At least 0: of the tokens before it only some are attended, others by each KV head.
  std::int64_t all_from = -1;
  float cap = 0.0F;  // soft cap of scores

  [[nodiscard]] bool attends(std::int64_t kv_head, std::int64_t token) const {
    return token >= all_from || (token * 7 + kv_head) % 5 < 2;
  }
};

// Of up to 32 heads: from one that takes nearly all of a softmax to one that takes nothing.
inline const std::vector<float>& sink_logits() {
  static const std::vector<float> logits = [] {
    std::vector<float> values(32);
    for (std::size_t head = 0; head < values.size(); ++head) {
      values[head] = 8.0F - 5.0F * static_cast<float>(head % 5);
    }
    return values;
  }();
  return logits;
}

struct PagedResult {
  std::vector<float> out, log_sums;
};

// `blocks_of(query_count)` are the kernel's blocks of queries; `launch(call, blocks)` runs it.
template <class BlocksOf, class Launch>
PagedResult run_paged(const PagedCase& c, const PagedCache& cache, const std::vector<float>& q,
                      const BlocksOf& blocks_of, const Launch& launch) {
  std::vector<PagedSegment> segments;
  std::int64_t rows = 0;
  std::int64_t blocks = 0;
  for (std::size_t b = 0; b < c.lengths.size(); ++b) {
    segments.push_back({.query_begin = rows,
                        .query_count = c.queries[b],
                        .context_tokens = c.lengths[b],
                        .window = c.window,
                        .pages_begin = static_cast<std::int64_t>(b) * cache.max_pages,
                        .partial_page = cache.partial_pages[b],
                        .first_block = static_cast<std::int32_t>(blocks)});
    rows += c.queries[b];
    blocks += blocks_of(c.queries[b]);
  }
  const std::int64_t columns = c.heads * c.head_dim;
  PagedResult result{poisoned(rows * columns), poisoned(rows * c.heads)};
  PagedAttention call;
  call.q = q.data();
  call.q_stride = columns;
  call.heads = c.heads;
  call.k = cache.k_data();
  call.v = cache.v_data();
  call.dtype = c.dtype;
  if (c.dtype == DType::kInt8) {
    call.scales = cache.scales.data();
    call.partial_k = cache.partial_k[0].data();
    call.partial_v = cache.partial_v[0].data();
    call.partial_dtype = cache.partial_k[0].dtype();
  }
  call.page_tokens = c.page_tokens;
  call.kv_heads = c.kv_heads;
  call.head_dim = c.head_dim;
  call.scale = 0.2F;
  if (c.cap > 0.0F) {
    call.cap = c.cap / std::log(2.0F);
    call.inverse_cap = 1.0F / call.cap;
  }
  if (c.sinks) call.sinks = sink_logits().data();
  call.segments = segments.data();
  call.segment_count = static_cast<std::int64_t>(segments.size());
  call.pages = cache.pages.data();
  call.scale_pages = cache.scale_pages.data();
  call.out = result.out.data();
  call.out_stride = columns;
  call.log_sums = result.log_sums.data();
  launch(call, blocks);
  return result;
}

// Against float64, causal and windowed. `tolerance` is relative to the values' magnitude, and
// absolute for log-sum-exps.
inline void expect_result(const PagedCase& c, const PagedCache& cache, const std::vector<float>& q,
                          const PagedResult& result, double tolerance) {
  std::int64_t row = 0;
  for (std::size_t b = 0; b < c.lengths.size(); ++b) {
    for (std::int64_t i = 0; i < c.queries[b]; ++i, ++row) {
      const std::int64_t position = c.lengths[b] - c.queries[b] + i;
      const std::int64_t begin =
          c.window > 0 ? std::max<std::int64_t>(0, position + 1 - c.window) : 0;
      for (std::int64_t head = 0; head < c.heads; ++head) {
        const std::int64_t kv = head / (c.heads / c.kv_heads);
        std::vector<std::int32_t> tokens;
        for (std::int64_t t = begin; t <= position; ++t) {
          if (c.attends(kv, t)) tokens.push_back(static_cast<std::int32_t>(t));
        }
        const std::int64_t query = row * c.heads + head;
        const ExactAttention expected = exact_attention(
            cache, static_cast<std::int64_t>(b), kv, tokens, q.data() + query * c.head_dim, 0.2F,
            c.cap, c.sinks ? &sink_logits()[static_cast<std::size_t>(head)] : nullptr);
        ASSERT_NEAR(result.log_sums[static_cast<std::size_t>(query)], expected.log_sum, tolerance)
            << "row " << row << " head " << head;
        for (std::size_t d = 0; d < expected.value.size(); ++d) {
          ASSERT_NEAR(result.out[static_cast<std::size_t>(query * c.head_dim) + d],
                      expected.value[d], tolerance * (expected.magnitude[d] + 1e-6))
              << "row " << row << " head " << head << " column " << d;
        }
      }
    }
  }
}

inline PagedCase capped(PagedCase c, float cap) {
  c.cap = cap;
  return c;
}

template <class Run>
void expect_matches_float64(const PagedCase& c, std::uint32_t seed, double tolerance,
                            const Run& run) {
  std::mt19937 random(seed);
  const PagedCache cache(random, c.dtype, c.lengths, c.page_tokens, c.kv_heads, c.head_dim);
  std::int64_t rows = 0;
  for (const std::int32_t count : c.queries) rows += count;
  const std::vector<float> q = random_floats(random, rows * c.heads * c.head_dim);
  expect_result(c, cache, q, run(c, cache, q), tolerance);
}

}  // namespace triphase::cuda
