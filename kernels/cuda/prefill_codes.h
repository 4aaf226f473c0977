#pragma once

// What the prefill kernels of INT8 caches share: F32 queries in shared memory, tiles of codes with
// their scales, the partial block's elements. Included by kernels only.

#include "kernels/cuda/prefill_rows.h"
#include "kernels/cuda/tensor_operands.h"

namespace triphase::cuda {

// Where channels [4 * chunk, + 4) of a row's query lie: neighbouring rows in other banks.
template <int kDim>
__device__ inline int query_at(int row, int chunk) {
  return row * kDim + (chunk ^ (row & 1) << 2) * 4;
}

__device__ __forceinline__ float component(const uint4& four, int i) {
  return bits_float(i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w);
}

// What a tile's scales say, once for all rows: [lambda, zero][kDim].
template <int kDim, int kThreads>
__device__ __forceinline__ void widen_scales(const KvScale* scales, float* wide) {
  TRIPHASE_UNROLL
  for (int round = 0; round < kDim; round += kThreads) {
    const int c = round + static_cast<int>(threadIdx.x);
    if (kDim % kThreads != 0 && c >= kDim) return;
    wide[c] = kv_lambda(scales[c].bits);
    wide[kDim + c] = kv_zero(scales[c].bits);
  }
}

// Writes the block's queries as query_at has them.
template <int kRows, int kDim, int kThreads>
__device__ __forceinline__ void load_float_queries(const PagedAttention& call,
                                                   const PagedWork& work, float* queries) {
  load_prefill_queries<kRows, kDim, kThreads>(
      call, work, [&](int row, int c, const float(&value)[4]) {
        store16(queries + query_at<kDim>(row, c / 4),
                make_uint4(float_bits(value[0]), float_bits(value[1]), float_bits(value[2]),
                           float_bits(value[3])));
      });
}

// Starts to copy codes and scales of the tokens [first, first + kKeys), all of one block. Scales:
// [K, V][kDim].
template <int kDim, int kKeys, class Place, int kThreads>
__device__ __forceinline__ void copy_codes(const PagedAttention& call, const PrefillPages& pages,
                                           int first, int end, unsigned char* k_tile,
                                           unsigned char* v_tile, KvScale* scales) {
  // Heads of fewer channels than the tile has may begin at multiples of 8 bytes.
  using Whole = PrefillCopy<unsigned char, kDim, kKeys, Place, kThreads, 16, kKeys>;
  using Ragged = PrefillCopy<unsigned char, kDim, kKeys, Place, kThreads, 8>;
  const PrefillTile<unsigned char> tiles[2] = {{call.k, k_tile}, {call.v, v_tile}};
  if (Whole::is_whole(pages, first, end)) {
    Whole::copy_whole(pages, first, tiles);
  } else {
    Ragged::copy_ragged(pages, first, end, tiles);
  }
  TRIPHASE_UNROLL
  for (int round = 0; round < kDim / 2; round += kThreads) {
    const int i = round + static_cast<int>(threadIdx.x);
    const int c = i % (kDim / 4) * 4;
    const std::int64_t from = pages.scales(first, i / (kDim / 4)) + c;
    if (kDim / 2 % kThreads == 0 || i < kDim / 2) {
      copy_async16(scales + 4 * i, call.scales + (c < pages.dim() ? from : 0), c < pages.dim());
    }
  }
}

// Eight elements of the partial block, K's or V's.
__device__ inline void read_partial(const PagedAttention& call, const void* pool, std::int64_t at,
                                    float (&value)[8]) {
  const uint4 bits = load16(static_cast<const std::uint16_t*>(pool) + at);
  const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
  TRIPHASE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float2 pair =
        call.partial_dtype == DType::kBF16 ? unpack2<BFloat16>(words[i]) : unpack2<Half>(words[i]);
    value[2 * i] = pair.x;
    value[2 * i + 1] = pair.y;
  }
}

}  // namespace triphase::cuda
