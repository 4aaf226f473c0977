#pragma once

// A row's approximate logits in sparq_select: the chosen channels of every key times the group's
// queries. Included by that kernel only.

#include <type_traits>

#include "kernels/cuda/score_keys.h"
#include "kernels/cuda/select_row.h"
#include "kernels/cuda/tensor_operands.h"

namespace triphase::cuda {

// Of a row's block. Logits of three query heads and more leave room for a block or two on a
// multiprocessor.
template <int G>
inline constexpr int kRowThreads = G <= 2 ? kSelectThreads : 2 * kSelectThreads;
inline constexpr int kVector = 8;         // codes that a lane loads at once
inline constexpr int kStepChannels = 16;  // of a product on tensor cores
inline constexpr int kSetHeads = 4;       // query heads of a product: two columns each
// Of a step and head, two terms of the queries in two 16-bit numbers take as much as in one F32.
static_assert(sizeof(uint2) * 2 * 4 == sizeof(float) * kStepChannels);

// Loads of codes that a lane has under way at once.
template <int G>
inline constexpr int kLoads = G == 1 ? 8 : (G <= 4 ? 4 : 2);
inline constexpr int kLaneTokens = 8;                // of 16-bit keys that a lane loads at once
inline constexpr int kTileTokens = 8 * kLaneTokens;  // of a warp
// Lanes that share a token of the query's own block.
inline constexpr int kTokenLanes = 4;

// What a row's logits need to know.
template <class T, int G>
struct SparqRow {
  const ScoreKeys& keys;
  int sequence;
  int head;
  int length;
  int rank;
  const int* channel;     // [rank], shared; to whole steps the last one again
  const float* q_chosen;  // [rank][G], shared, with the softmax factor; not what step_queries() is
  float* logits;          // [group][stride], shared
  int group;
  int stride;

  // 16-bit keys: [step][G][term][quarter of a warp's lanes], each of four channels' queries, zeros
  // from the rank on.
  [[nodiscard]] __device__ const uint2* step_queries() const {
    return reinterpret_cast<const uint2*>(q_chosen);
  }
  // The query of the chosen channel i.
  [[nodiscard]] __device__ float query(int i, int g) const {
    if constexpr (sizeof(T) == 1) {
      return q_chosen[i * G + g];
    } else {
      const int at = (i / kStepChannels * G + g) * 8 + i % kStepChannels / 4;
      const T* first = reinterpret_cast<const T*>(step_queries() + at);
      const T* second = reinterpret_cast<const T*>(step_queries() + at + 4);
      return to_float(first[i % 4]) + to_float(second[i % 4]);
    }
  }
};

// Eight consecutive codes of a channel, and what they mean.
struct ChannelCodes {
  uint2 bits = {};
  KvScale scale;
};

// Their values but for lambda.
__device__ __forceinline__ void code_values(const ChannelCodes& codes, float (&value)[kVector]) {
  constexpr float kMagic = 8388608.0F;  // 2^23: the code is in its lowest bits
  const float zero = kMagic + kv_zero(codes.scale.bits);
  TRIPHASE_UNROLL
  for (unsigned i = 0; i < kVector; ++i) {
    const unsigned number =
        byte_permute(i < 4 ? codes.bits.x : codes.bits.y, float_bits(kMagic), 0x7650U + i % 4);
    value[i] = bits_float(number) - zero;
  }
}

// Where a full page and its scales lie.
struct PagePlace {
  std::int32_t page = 0;
  std::int32_t scale_page = 0;
};

template <class T, int G>
__device__ __forceinline__ PagePlace page_place(const SparqRow<T, G>& row, int page_index) {
  const std::int64_t entry = row.sequence * row.keys.max_pages + page_index;
  PagePlace place{row.keys.pages[entry], 0};
  if constexpr (sizeof(T) == 1) place.scale_page = row.keys.scale_pages[entry];
  return place;
}

// kLoads channels of a lane, from `first` on, of eight tokens; all loads come first.
// kWhole: all of them are among the chosen ones.
template <bool kWhole, class T, int G>
__device__ __forceinline__ void add_tokens(const SparqRow<T, G>& row, const Channels<T>& keys,
                                           const KvScale* scales, int first,
                                           float (&sum)[G][kVector]) {
  ChannelCodes loaded[kLoads<G>];
  TRIPHASE_UNROLL
  for (int load = 0; load < kLoads<G>; ++load) {
    const int i = first + load;
    if (!kWhole && i >= row.rank) continue;
    const int c = row.channel[i];
    loaded[load] = {load8(keys.first + c * keys.stride), scales[c]};
  }
  TRIPHASE_UNROLL
  for (int load = 0; load < kLoads<G>; ++load) {
    const int i = first + load;
    float value[kVector];
    code_values(loaded[load], value);
    TRIPHASE_UNROLL
    for (int g = 0; g < G; ++g) {
      const float q =
          kWhole || i < row.rank ? row.query(i, g) * kv_lambda(loaded[load].scale.bits) : 0.0F;
      TRIPHASE_UNROLL
      for (int j = 0; j < kVector; ++j) sum[g][j] = fma_rn(q, value[j], sum[g][j]);
    }
  }
}

// By names of their own for tools/check_kernel_loops.py, which counts whole rounds.
template <class T, int G>
__device__ __forceinline__ void add_whole_round(const SparqRow<T, G>& row, const Channels<T>& keys,
                                                const KvScale* scales, int first,
                                                float (&sum)[G][kVector]) {
  add_tokens<true>(row, keys, scales, first, sum);
}
template <class T, int G>
__device__ __forceinline__ void add_last_channels(const SparqRow<T, G>& row,
                                                  const Channels<T>& keys, const KvScale* scales,
                                                  int first, float (&sum)[G][kVector]) {
  add_tokens<false>(row, keys, scales, first, sum);
}

// A full page of codes by one warp from its transposed keys: lanes side by side hold eight tokens
// each of a channel, the rest of the warp takes other channels; sums over those at the end. A
// lane's `top` becomes the largest of its logits.
template <class T, int G>
__device__ inline void score_page(const SparqRow<T, G>& row, int page_index, const PagePlace& place,
                                  float (&top)[G]) {
  const ScoreKeys& keys = row.keys;
  const int tokens = static_cast<int>(keys.page_tokens);
  // Pages are powers of two: shifts in place of divisions.
  const int log_lanes = first_bit(static_cast<unsigned>(tokens / kVector));
  const int lanes = 1 << log_lanes;
  const int column = lane_id() & (lanes - 1);
  const Channels<T> channels = channels_of<T>(keys, place.page, row.head, column * kVector);
  const KvScale* scales =
      keys.scales + (keys.kv_heads * 2 * place.scale_page + row.head) * keys.head_dim;
  float sum[G][kVector] = {};
  const int own = kLoads<G> * (lane_id() >> log_lanes);
  const int round = kLoads<G> * (kWarpSize >> log_lanes);
  int done = 0;
  TRIPHASE_NO_UNROLL
  for (; done + round <= row.rank; done += round) {
    add_whole_round(row, channels, scales, done + own, sum);
  }
  if (done < row.rank) {
    add_last_channels(row, channels, scales, done + own, sum);
  }
  for (int other = lanes; other < kWarpSize; other *= 2) {
    TRIPHASE_UNROLL
    for (int g = 0; g < G; ++g) {
      TRIPHASE_UNROLL
      for (int j = 0; j < kVector; ++j) sum[g][j] += shuffle_xor(sum[g][j], other);
    }
  }
  TRIPHASE_UNROLL
  for (int g = 0; g < G; ++g) {
    TRIPHASE_UNROLL
    for (int j = 0; j < kVector; ++j) top[g] = larger(top[g], sum[g][j]);
    if (g >= row.group || lane_id() >= lanes) continue;
    float* to = row.logits + g * row.stride + page_index * tokens + column * kVector;
    TRIPHASE_UNROLL
    for (int j = 0; j < kVector; j += 4) {
      store16(to + j, make_uint4(float_bits(sum[g][j]), float_bits(sum[g][j + 1]),
                                 float_bits(sum[g][j + 2]), float_bits(sum[g][j + 3])));
    }
  }
}

// 16-bit keys on tensor cores. The lane (place = lane / 4, quarter = lane % 4) loads kLaneTokens
// tokens of four channels of each step: a product's rows are two tokens of each place, its columns
// the first and second terms of four heads' queries. So a lane gets logits of its own tokens, of
// the head `quarter` of each set.
template <int G>
inline constexpr int kSets = (G + kSetHeads - 1) / kSetHeads;
template <int G>
using TileSums = float[kSets<G>][kLaneTokens / 2][4];

// 16 channels. (The loads of two such steps at once took registers that more warps use better.)
template <class T, int G>
__device__ __forceinline__ void add_step(const SparqRow<T, G>& row, const Channels<T>& keys,
                                         int step, TileSums<G>& sum) {
  const int quarter = lane_id() % 4;
  const uint4 channels = load_shared16(row.channel + step * kStepChannels + quarter * 4);
  const unsigned channel[4] = {channels.x, channels.y, channels.z, channels.w};
  unsigned key[4][kLaneTokens / 2];  // two tokens in a word
  TRIPHASE_UNROLL
  for (int c = 0; c < 4; ++c) {
    const uint4 words = load16(keys.first + static_cast<int>(channel[c]) * keys.stride);
    key[c][0] = words.x;
    key[c][1] = words.y;
    key[c][2] = words.z;
    key[c][3] = words.w;
  }
  const int column = lane_id() / 4;  // this lane gives its queries: two for each head of a set
  uint2 query[kSets<G>];
  TRIPHASE_UNROLL
  for (int set = 0; set < kSets<G>; ++set) {
    query[set] = make_uint2(0U, 0U);
    if (set * 2 * kSetHeads + column < 2 * G) {
      query[set] = load_shared8(row.step_queries() +
                                (step * 2 * G + set * 2 * kSetHeads + column) * 4 + quarter);
    }
  }
  TRIPHASE_UNROLL
  for (int j = 0; j < kLaneTokens / 2; ++j) {
    const unsigned tokens[4] = {
        byte_permute(key[0][j], key[1][j], 0x5410U), byte_permute(key[0][j], key[1][j], 0x7632U),
        byte_permute(key[2][j], key[3][j], 0x5410U), byte_permute(key[2][j], key[3][j], 0x7632U)};
    TRIPHASE_UNROLL
    for (int set = 0; set < kSets<G>; ++set) {
      multiply_tiles<T>(sum[set][j], tokens, {query[set].x, query[set].y});
    }
  }
}

// The page of the tokens that this lane loads of a tile. Behind the last full one it loads that
// one's, for nothing.
template <class T, int G>
__device__ __forceinline__ PagePlace tile_place(const SparqRow<T, G>& row, int tile,
                                                int full_tokens) {
  const int own = tile * kTileTokens + lane_id() / 4 * kLaneTokens;
  return page_place(
      row, smaller(own, full_tokens - 1) >> first_bit(static_cast<unsigned>(row.keys.page_tokens)));
}

// A tile of full pages by one warp. `top`: of this lane's head of each set.
template <class T, int G>
__device__ __forceinline__ void score_tile(const SparqRow<T, G>& row, int tile,
                                           const PagePlace& place, int full_tokens,
                                           float (&top)[kSets<G>]) {
  const int own = tile * kTileTokens + lane_id() / 4 * kLaneTokens;
  const int in_page = static_cast<int>(row.keys.page_tokens) - 1;
  const Channels<T> channels = channels_of<T>(row.keys, place.page, row.head, own & in_page);
  TileSums<G> sum = {};
  const int steps = ceil_div(row.rank, kStepChannels);
  TRIPHASE_NO_UNROLL
  for (int step = 0; step < steps; ++step) add_step(row, channels, step, sum);
  TRIPHASE_UNROLL
  for (int set = 0; set < kSets<G>; ++set) {
    const int head = set * kSetHeads + lane_id() % 4;
    if (head >= row.group || own >= full_tokens) continue;
    float* to = row.logits + head * row.stride + own;
    TRIPHASE_UNROLL
    for (int j = 0; j < kLaneTokens / 2; j += 2) {
      float logit[4];
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float(&terms)[4] = sum[set][j + i / 2];
        logit[i] = terms[i % 2 * 2] + terms[i % 2 * 2 + 1];
        top[set] = larger(top[set], logit[i]);
      }
      store16(to + 2 * j, make_uint4(float_bits(logit[0]), float_bits(logit[1]),
                                     float_bits(logit[2]), float_bits(logit[3])));
    }
  }
}

// Of the chosen channels from `first` on every one that is kTokenLanes further, of a token's row;
// element by element.
template <class K, class T, int G>
__device__ __forceinline__ void add_channels(const SparqRow<T, G>& row, const K* keys,
                                             const KvScale* scales, int first, float (&logit)[G]) {
  TRIPHASE_NO_UNROLL
  for (int i = first; i < row.rank; i += kTokenLanes * kLoads<G>) {
    float key[kLoads<G>];
    TRIPHASE_UNROLL
    for (int load = 0; load < kLoads<G>; ++load) {
      key[load] = 0.0F;
      if (i + kTokenLanes * load >= row.rank) continue;
      const int c = row.channel[i + kTokenLanes * load];
      key[load] = stored_value(keys + c, scales, c);
    }
    TRIPHASE_UNROLL
    for (int load = 0; load < kLoads<G>; ++load) {
      const int at = i + kTokenLanes * load;
      TRIPHASE_UNROLL
      for (int g = 0; g < G; ++g) {
        const float q = at < row.rank ? row.query(at, g) : 0.0F;
        logit[g] = fma_rn(q, key[load], logit[g]);
      }
    }
  }
}

template <class T, int G>
__device__ inline void add_token(const SparqRow<T, G>& row, int token, int first,
                                 float (&logit)[G]) {
  const ScoreKeys& keys = row.keys;
  if (sizeof(T) == 1 && is_partial(keys, row.length, token)) {
    const std::int64_t at = partial_row(keys, row.sequence, row.head, token);
    if (keys.partial_dtype == DType::kF32) {
      add_channels(row, static_cast<const float*>(keys.partial_keys) + at, nullptr, first, logit);
    } else if (keys.partial_dtype == DType::kF16) {
      add_channels(row, static_cast<const Half*>(keys.partial_keys) + at, nullptr, first, logit);
    } else {
      add_channels(row, static_cast<const BFloat16*>(keys.partial_keys) + at, nullptr, first,
                   logit);
    }
    return;
  }
  const KeyPlace<T> place = place_of<T>(keys, row.sequence, row.head, token);
  add_channels(row, place.row, place.scales, first, logit);
}

// Tokens from `begin` on by the whole block, kTokenLanes for each.
template <class T, int G>
__device__ inline void score_tokens(const SparqRow<T, G>& row, int begin, float (&top)[G]) {
  constexpr int kWarpTokens = kWarpSize / kTokenLanes;
  constexpr int kRound = kRowThreads<G> / kTokenLanes;
  for (int first = begin + uniform_warp_id() * kWarpTokens; first < row.length; first += kRound) {
    const int token = first + lane_id() / kTokenLanes;
    float logit[G] = {};
    if (token < row.length) add_token(row, token, lane_id() % kTokenLanes, logit);
    TRIPHASE_UNROLL
    for (int g = 0; g < G; ++g) {
      TRIPHASE_UNROLL
      for (int other = 1; other < kTokenLanes; other *= 2) {
        logit[g] += shuffle_xor(logit[g], other);
      }
    }
    TRIPHASE_UNROLL
    for (int g = 0; g < G && token < row.length; ++g) {
      top[g] = larger(top[g], logit[g]);
      if (g < row.group && lane_id() % kTokenLanes == 0) {
        row.logits[g * row.stride + token] = logit[g];
      }
    }
  }
}

// Full pages that are transposed, a warp's part at a time, then the other tokens.
template <class T, int G>
__device__ inline void score_row(const SparqRow<T, G>& row, float (&top)[G]) {
  const int page_tokens = static_cast<int>(row.keys.page_tokens);
  const int pages = row.keys.channels.data == nullptr ? 0 : larger(0, row.length - 1) / page_tokens;
  const int full_tokens = pages * page_tokens;
  constexpr int kWarps = kRowThreads<G> / kWarpSize;
  if constexpr (sizeof(T) == 1) {
    int page = uniform_warp_id();
    PagePlace place;
    if (page < pages) place = page_place(row, page);
    for (; page < pages; page += kWarps) {
      const PagePlace own = place;
      if (page + kWarps < pages) place = page_place(row, page + kWarps);
      score_page(row, page, own, top);
    }
  } else {
    const int tiles = ceil_div(full_tokens, kTileTokens);
    float own_top[kSets<G>];
    TRIPHASE_UNROLL
    for (int set = 0; set < kSets<G>; ++set) own_top[set] = -INFINITY;
    int tile = uniform_warp_id();
    PagePlace place;
    if (tile < tiles) place = tile_place(row, tile, full_tokens);
    for (; tile < tiles; tile += kWarps) {
      const PagePlace own = place;
      if (tile + kWarps < tiles) place = tile_place(row, tile + kWarps, full_tokens);
      score_tile(row, tile, own, full_tokens, own_top);
    }
    TRIPHASE_UNROLL
    for (int g = 0; g < G; ++g) {
      if (lane_id() % 4 == g % kSetHeads) top[g] = larger(top[g], own_top[g / kSetHeads]);
    }
  }
  score_tokens(row, full_tokens, top);
}

// The chosen channels' queries, as the keys' type has them multiplied (SparqRow). By the whole
// block.
template <class T, int G>
__device__ inline void take_queries(const float* q, int head_dim, int group, int rank,
                                    const float* factor, int* channel, float* q_chosen) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto query = [&](int i, int g) {
    float value = g < group && i < rank ? q[g * head_dim + channel[i]] * factor[g] : 0.0F;
    constexpr float kMost = 65504.0F;
    if constexpr (std::is_same_v<T, Half>) value = larger(-kMost, smaller(kMost, value));
    return value;
  };
  if constexpr (sizeof(T) == 1) {
    TRIPHASE_NO_UNROLL
    for (int i = thread; i < rank * G; i += kRowThreads<G>) q_chosen[i] = query(i / G, i % G);
  } else {
    const int steps = ceil_div(rank, kStepChannels);
    TRIPHASE_NO_UNROLL
    for (int i = thread; i < steps * G * 4; i += kRowThreads<G>) {
      const int quarter = i % 4;
      const int first = i / (G * 4) * kStepChannels + quarter * 4;
      const int g = i / 4 % G;
      float value[4];
      TRIPHASE_UNROLL
      for (int c = 0; c < 4; ++c) value[c] = query(first + c, g);
      auto* to = reinterpret_cast<uint2*>(q_chosen) + i / 4 * 8 + quarter;
      TRIPHASE_UNROLL
      for (int term = 0; term < 2; ++term) {
        uint2 words;
        words.x = take_term<T>(value[0], value[1]);
        words.y = take_term<T>(value[2], value[3]);
        store8(to + 4 * term, words);
      }
    }
    if (thread >= rank && thread < steps * kStepChannels) channel[thread] = channel[rank - 1];
  }
}

}  // namespace triphase::cuda
