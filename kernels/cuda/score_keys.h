#pragma once

// What the scoring kernels (score_rows, sparq_select) share: where a token's key lies, and SparQ's
// choice of channels. Included by kernels only.

#include <cmath>

#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/kv_codes.h"
#include "kernels/cuda/score_rows.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {

inline constexpr int kMaxScoreDim = 256;

// Where a tile's keys lie. A tile of kScoreTile tokens may span pages when pages are shorter.
template <class T>
struct KeyPlace {
  const T* row;           // [head_dim] of the token
  const KvScale* scales;  // U8: [head_dim]; else null
};

template <class T>
__device__ inline KeyPlace<T> place_of(const ScoreKeys& keys, int sequence, int head, int token) {
  const std::int64_t entry = sequence * keys.max_pages + token / keys.page_tokens;
  const std::int64_t page = keys.pages[entry];
  const std::int64_t offset = token % keys.page_tokens;
  const std::int64_t block = page * keys.kv_heads + head;
  const std::int64_t page_elements = keys.page_tokens * keys.head_dim;
  KeyPlace<T> place{
      static_cast<const T*>(keys.keys) + block * page_elements + offset * keys.head_dim, nullptr};
  if constexpr (sizeof(T) == 1) {
    place.scales =
        keys.scales + (keys.scale_pages[entry] * 2 * keys.kv_heads + head) * keys.head_dim;
  }
  return place;
}

// Channels of tokens: channel c of the first one at first[c * stride].
template <class T>
struct Channels {
  const T* first;
  int stride;
};
// Those of a page of K^T, from its token `offset` on.
template <class T>
__device__ __forceinline__ Channels<T> channels_of(const ScoreKeys& keys, int page, int head,
                                                   int offset) {
  const ChannelPlace place =
      channel_place(keys.channels, page, static_cast<int>(keys.kv_heads), head,
                    static_cast<int>(keys.page_tokens), static_cast<int>(keys.head_dim));
  return {static_cast<const T*>(keys.channels.data) + place.begin + offset, place.stride};
}

__device__ inline float stored_value(const unsigned char* at, const KvScale* scales, int channel) {
  return dequantized(*at, scales[channel]);
}
template <class T>
__device__ inline float stored_value(const T* at, const KvScale*, int) {
  return to_float(*at);
}

// A token of the query's own block (its position is length - 1): read unquantized, row by row.
__device__ inline bool is_partial(const ScoreKeys& keys, int length, int token) {
  return token >= (length - 1) / keys.page_tokens * keys.page_tokens;
}

// Where a token's row begins in its partial INT8 block, which is stored unquantized; in elements.
__device__ inline std::int64_t partial_row(const ScoreKeys& keys, int sequence, int head,
                                           int token) {
  const std::int64_t block = keys.partial_pages[sequence] * keys.kv_heads + head;
  return (block * keys.page_tokens + token % keys.page_tokens) * keys.head_dim;
}

// Element `channel` of a partial INT8 block.
__device__ inline float partial_value(const ScoreKeys& keys, int sequence, int head, int token,
                                      int channel) {
  const std::int64_t at = partial_row(keys, sequence, head, token) + channel;
  if (keys.partial_dtype == DType::kF32) return static_cast<const float*>(keys.partial_keys)[at];
  if (keys.partial_dtype == DType::kF16) {
    return to_float(static_cast<const Half*>(keys.partial_keys)[at]);
  }
  return to_float(static_cast<const BFloat16*>(keys.partial_keys)[at]);
}

inline constexpr int kChannelWarps = kMaxScoreDim / kWarpSize;

struct ChannelScratch {  // shared memory
  float* weight;         // kMaxScoreDim, aligned to 16 bytes
  float* sums;           // 2 * kGpuMaxScoredGroup * kChannelWarps
  int* counts;           // kChannelWarps
};

// A channel's place among all by counting those before it: as many steps as channels, no sorting
// network. Weights from head_dim on are 0, which put no channel back.
__device__ inline int channel_rank(const float* weight, int head_dim, int channel) {
  const float own = weight[channel];
  int better = 0;
  TRIPHASE_UNROLL_BY(4)
  for (int first = 0; first < head_dim; first += 4) {
    const uint4 words = load_shared16(weight + first);
    const unsigned bits[4] = {words.x, words.y, words.z, words.w};
    TRIPHASE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float other = bits_float(bits[i]);
      better += static_cast<int>(other > own || (other == own && first + i < channel));
    }
  }
  return better;
}

// SparQ step 1 of one row by a block of at least kMaxScoreDim threads, one per channel: the `rank`
// channels of largest sum over the group of |q|, ascending, ties to the smallest, and the softmax
// factors of the query heads (score_rows.h). q [group][head_dim]. Channels and factors of a row are
// visible to the block when it returns; the scratch is free.
__device__ inline void choose_row_channels(const float* q, int group, int head_dim, int rank,
                                           const SparqScale& scale, std::int32_t* channels,
                                           float* factors, const ChannelScratch& shared) {
  const int c = static_cast<int>(threadIdx.x);
  const bool there = c < head_dim;
  const bool has_place = c < kMaxScoreDim;
  float sum = 0.0F;
  for (int g = 0; g < group && there; ++g) sum += fabsf(q[g * head_dim + c]);
  if (has_place) shared.weight[c] = sum;
  __syncthreads();
  const bool is_chosen = there && channel_rank(shared.weight, head_dim, c) < rank;
  const unsigned chosen = ballot(is_chosen);
  for (int g = 0; g < group; ++g) {
    const float size = there ? fabsf(q[g * head_dim + c]) : 0.0F;
    const float all = warp_sum(size);
    const float part = warp_sum(is_chosen ? size : 0.0F);
    if (has_place && lane_id() == 0) {
      shared.sums[2 * g * kChannelWarps + warp_id()] = all;
      shared.sums[(2 * g + 1) * kChannelWarps + warp_id()] = part;
    }
  }
  if (has_place && lane_id() == 0) shared.counts[warp_id()] = count_bits(chosen);
  __syncthreads();
  int place = count_bits(chosen & ((1U << lane_id()) - 1U));
  for (int warp = 0; warp < smaller(warp_id(), kChannelWarps); ++warp) place += shared.counts[warp];
  if (is_chosen && place < rank) channels[place] = c;
  if (c < group) {
    float all = 0.0F;
    float part = 0.0F;
    for (int warp = 0; warp < kChannelWarps; ++warp) {
      all += shared.sums[2 * c * kChannelWarps + warp];
      part += shared.sums[(2 * c + 1) * kChannelWarps + warp];
    }
    // No weight on the chosen channels: every logit is 0, whatever the factor.
    const float own = part > 0.0F ? sqrtf(all / part) : 0.0F;
    factors[c] = kLog2E * scale.scale * (scale.sharpness > 0.0F ? scale.sharpness : own);
  }
  __syncthreads();
}

}  // namespace triphase::cuda
