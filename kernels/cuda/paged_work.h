#pragma once

// What the attention kernels over ragged segments (paged_attention, prefill_attention) share: which
// queries a block has, and the partial results of a split context with their merge. Included by
// kernels only. kRows is the number of (query, query head) rows of a block.

#include <cmath>

#include "kernels/cuda/attention_sink.h"
#include "kernels/cuda/dialect.h"
#include "kernels/cuda/paged_attention.h"

namespace triphase::cuda {

// One block of queries of one segment under one KV head.
struct PagedWork {
  PagedSegment segment;
  std::int64_t first_query;  // within the segment
  int rows;                  // queries x group, query-major
  int head;
  int group;

  __device__ std::int64_t query(int row) const { return first_query + row / group; }
  __device__ std::int64_t position(int row) const {
    return segment.context_tokens - segment.query_count + query(row);
  }
  // First token that the row's window holds.
  __device__ std::int64_t begin(int row) const {
    return segment.window > 0 ? larger<std::int64_t>(0, position(row) + 1 - segment.window) : 0;
  }
};

// Blocks of a call: KV heads side by side, then blocks of queries from the last to the first. The
// last ones see most tokens, and a long one that begins late keeps the whole call waiting.
inline dim3 paged_grid(const PagedAttention& call, std::int64_t query_blocks, std::int64_t splits) {
  return {static_cast<unsigned>(query_blocks * call.kv_heads), 1, static_cast<unsigned>(splits)};
}

template <int kRows>
__device__ inline PagedWork find_paged_work(const PagedAttention& call) {
  const auto heads = static_cast<unsigned>(call.kv_heads);
  const auto block = static_cast<int>((gridDim.x - 1 - blockIdx.x) / heads);
  std::int64_t low = 0;
  std::int64_t high = call.segment_count - 1;
  while (low < high) {  // the last segment that starts at or before this block
    const std::int64_t middle = (low + high + 1) / 2;
    if (call.segments[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  PagedWork work;
  work.segment = call.segments[low];
  work.head = static_cast<int>(blockIdx.x % heads);
  work.group = static_cast<int>(call.heads / call.kv_heads);
  const std::int64_t per_block = larger(1, kRows / work.group);
  work.first_query = (block - work.segment.first_block) * per_block;
  const std::int64_t left = work.segment.query_count - work.first_query;
  work.rows = static_cast<int>(smaller(left, per_block)) * work.group;
  return work;
}

// Partial results of a block's split: out [rows][dim] unnormalized, maximum [rows] in units of
// log2, sum [rows].
template <int kRows>
__host__ __device__ constexpr std::int64_t paged_partial_floats(std::int64_t head_dim) {
  return kRows * (head_dim + 2);
}

template <int kRows>
__device__ inline float* paged_partial(const PagedAttention& call, std::int64_t split,
                                       std::int64_t splits) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * splits + split;
  return call.partials + at * paged_partial_floats<kRows>(call.head_dim);
}

// Natural log-sum-exp from a maximum and sum in units of log2.
__device__ inline float natural_log_sum(float top, float sum) {
  return sum > 0.0F ? (top + log2_fast(sum)) / kLog2E : -INFINITY;
}

// Merges a block's splits in ascending order into out and log_sums. A split without a token for a
// row has sum 0 and counts for nothing.
template <int kRows>
__device__ inline void merge_paged_splits(const PagedAttention& call, int splits) {
  const PagedWork work = find_paged_work<kRows>(call);
  const int dim = static_cast<int>(call.head_dim);
  for (int row = 0; row < work.rows; ++row) {
    float top = -INFINITY;
    for (int split = 0; split < splits; ++split) {
      top = larger(top, paged_partial<kRows>(call, split, splits)[kRows * dim + row]);
    }
    float sum = 0.0F;
    for (int split = 0; split < splits; ++split) {
      const float* partial = paged_partial<kRows>(call, split, splits);
      const float share = partial[kRows * (dim + 1) + row];
      if (share > 0.0F) sum += share * exp2_fast(partial[kRows * dim + row] - top);
    }
    const std::int64_t query = work.segment.query_begin + work.query(row);
    const std::int64_t head = work.head * work.group + row % work.group;
    sum = with_sink(call.sinks, head, top, sum);
    for (int c = static_cast<int>(threadIdx.x); c < dim; c += static_cast<int>(blockDim.x)) {
      float value = 0.0F;
      for (int split = 0; split < splits; ++split) {
        const float* partial = paged_partial<kRows>(call, split, splits);
        if (partial[kRows * (dim + 1) + row] > 0.0F) {
          value += partial[row * dim + c] * exp2_fast(partial[kRows * dim + row] - top);
        }
      }
      call.out[query * call.out_stride + head * dim + c] = sum > 0.0F ? value / sum : 0.0F;
    }
    if (call.log_sums != nullptr && threadIdx.x == 0) {
      call.log_sums[query * call.heads + head] = natural_log_sum(top, sum);
    }
  }
}

}  // namespace triphase::cuda
