#pragma once

// What the scoring kernels (score_rows, sparq_select) share: where a token's key lies, and SparQ's
// choice of channels. Included by kernels only.

#include <cmath>

#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/score_rows.h"

namespace triphase::cuda {

inline constexpr int kMaxScoreDim = 256;
inline constexpr float kScoreLog2E = 1.44269504F;

// Where a tile's keys lie. A tile of kScoreTile tokens may span pages when pages are shorter.
template <class T>
struct KeyPlace {
  const T* row;         // [head_dim] of the token
  const T* channel;     // channel 0 of the token in the transposed page, or null
  const float* lambda;  // U8: [head_dim], zero point head_dim further; else null
};

template <class T>
__device__ inline KeyPlace<T> place_of(const ScoreKeys& keys, int sequence, int head, int token) {
  const std::int64_t entry = sequence * keys.max_pages + token / keys.page_tokens;
  const std::int64_t page = keys.pages[entry];
  const std::int64_t offset = token % keys.page_tokens;
  const std::int64_t block = page * keys.kv_heads + head;
  const std::int64_t page_elements = keys.page_tokens * keys.head_dim;
  KeyPlace<T> place{
      static_cast<const T*>(keys.keys) + block * page_elements + offset * keys.head_dim, nullptr,
      nullptr};
  if (keys.channels != nullptr) {
    place.channel = static_cast<const T*>(keys.channels) + block * page_elements + offset;
  }
  if constexpr (sizeof(T) == 1) {
    place.lambda =
        keys.scales + (keys.scale_pages[entry] * 2 * keys.kv_heads + head) * 2 * keys.head_dim;
  }
  return place;
}

__device__ inline float stored_value(const unsigned char* at, const float* lambda, int channel,
                                     std::int64_t head_dim) {
  return lambda[channel] * (static_cast<float>(*at) - lambda[head_dim + channel]);
}
template <class T>
__device__ inline float stored_value(const T* at, const float*, int, std::int64_t) {
  return to_float(*at);
}

// A token of the query's own block (its position is length - 1): read unquantized, row by row.
__device__ inline bool is_partial(const ScoreKeys& keys, int length, int token) {
  return token >= (length - 1) / keys.page_tokens * keys.page_tokens;
}

// Element `channel` of an partial INT8 block, which is stored unquantized.
__device__ inline float partial_value(const ScoreKeys& keys, int sequence, int head, int token,
                                      int channel) {
  const std::int64_t at =
      ((keys.partial_pages[sequence] * keys.kv_heads + head) * keys.page_tokens +
       token % keys.page_tokens) *
          keys.head_dim +
      channel;
  if (keys.partial_dtype == DType::kF32) return static_cast<const float*>(keys.partial_keys)[at];
  if (keys.partial_dtype == DType::kF16) {
    return to_float(static_cast<const Half*>(keys.partial_keys)[at]);
  }
  return to_float(static_cast<const BFloat16*>(keys.partial_keys)[at]);
}

struct ChannelScratch {  // shared memory
  float* weight;         // kMaxScoreDim
  int* chosen;           // kMaxScoreDim
  float* reduce;         // kBlockReduceWords
};

// SparQ step 1 of one row by a block of kMaxScoreDim threads, one per channel: the `rank` channels
// of largest sum over the group of |q|, ascending, ties to the smallest, and the softmax factors of
// the query heads (score_rows.h). q [group][head_dim].
__device__ inline void choose_row_channels(const float* q, int group, int head_dim, int rank,
                                           const SparqScale& scale, std::int32_t* channels,
                                           float* factors, const ChannelScratch& shared) {
  const int c = static_cast<int>(threadIdx.x);
  float sum = 0.0F;
  for (int g = 0; g < group && c < head_dim; ++g) sum += fabsf(q[g * head_dim + c]);
  shared.weight[c] = sum;
  __syncthreads();
  // A channel's place among all by counting: as many steps as channels, no sorting network.
  int better = 0;
  if (c < head_dim) {
    for (int other = 0; other < head_dim; ++other) {
      const float weight = shared.weight[other];
      better += static_cast<int>(weight > sum || (weight == sum && other < c));
    }
  }
  const bool is_chosen = c < head_dim && better < rank;
  shared.chosen[c] = static_cast<int>(is_chosen);
  __syncthreads();
  if (is_chosen) {
    int place = 0;
    for (int other = 0; other < c; ++other) place += shared.chosen[other];
    channels[place] = c;
  }
  for (int g = 0; g < group; ++g) {
    const float size = c < head_dim ? fabsf(q[g * head_dim + c]) : 0.0F;
    const float all = block_sum(size, shared.reduce);
    const float part = block_sum(is_chosen ? size : 0.0F, shared.reduce);
    if (c == 0) {
      // No weight on the chosen channels: every logit is 0, whatever the factor.
      const float own = part > 0.0F ? sqrtf(all / part) : 0.0F;
      factors[g] = kScoreLog2E * scale.scale * (scale.sharpness > 0.0F ? scale.sharpness : own);
    }
  }
  __syncthreads();
}

}  // namespace triphase::cuda
