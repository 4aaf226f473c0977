#pragma once

// Tiles of the second pass over QK^T on tensor cores, for caches of 16 bits and INT8. Queries of
// 16-bit caches are rounded as prefill_attention rounds them, so that logits are those whose
// log-sums it leaves. Those of INT8 caches and of centroids, and INT8 keys, have as many terms as
// keep the products as exact as F32; centroids are rounded to FP16 as keys are. Included by kernels
// only.

#include <cmath>
#include <type_traits>

#include "kernels/cuda/column_tiles.h"
#include "kernels/cuda/tensor_operands.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {

inline constexpr int kScoreThreads = 128;
inline constexpr int kScoreRows = 64;  // of a tile: 16 of each warp
static_assert(kScoreRows == kPromptTileSide);

// Channels [c, c + 8) of a key, as products take them.
template <class T>
__device__ __forceinline__ void read_key(const ColumnKey<T>& key, const PrefillColumns& call, int c,
                                         float (&value)[8]) {
  key.read8(call, c, value);
  if constexpr (std::is_same_v<T, float>) {
    constexpr float kMost = 65504.0F;
    TRIPHASE_UNROLL
    for (int i = 0; i < 8; ++i) value[i] = larger(-kMost, smaller(kMost, value[i]));
  }
}

// T: elements of the cache. A lane's scores [n][j] are of the row row(j) and the key key(n, j).
template <class T>
class ColumnScores {
 public:
  using Value = std::conditional_t<std::is_same_v<T, BFloat16>, BFloat16, Half>;
  // Terms of Value that add up to a query's or a key's channel.
  static constexpr int kRowTerms = std::is_same_v<T, Half> ? 1 : 2;
  static constexpr int kKeyTerms = sizeof(T) == 1 ? 2 : 1;
  static constexpr int kKeys = kKeyTerms == 1 ? 64 : 32;  // of a tile
  using Scores = float[kKeys / 8][4];

  static __host__ __device__ constexpr std::size_t bytes(std::int64_t head_dim) {
    return sizeof(Value) * (kRowTerms * kScoreRows + kKeyTerms * kKeys) *
           static_cast<std::size_t>(head_dim + kPad);
  }

  __device__ ColumnScores(const PrefillColumns& call, unsigned char* shared)
      : call_(call),
        dim_(static_cast<int>(call.head_dim)),
        pitch_(dim_ + kPad),
        rows_(reinterpret_cast<Value*>(shared)),
        keys_(rows_ + kRowTerms * kScoreRows * pitch_) {}

  static __device__ __forceinline__ int row(int j) {
    return warp_id() * 16 + lane_id() / 4 + j / 2 * 8;
  }
  static __device__ __forceinline__ int key(int n, int j) {
    return n * 8 + lane_id() % 4 * 2 + j % 2;
  }

  // row_at(i): where row i's channels are, or null for zeros. Scores become logits in base 2.
  template <class RowAt>
  __device__ __forceinline__ void load_rows(const RowAt& row_at) const {
    const float factor = call_.scale * kLog2E;
    TRIPHASE_UNROLL_BY(8)
    for (int i = warp_id(); i < kScoreRows; i += kScoreThreads / kWarpSize) {
      const float* from = row_at(i);
      for (int c = lane_id() * 4; c < dim_; c += kWarpSize * 4) {
        const uint4 four = from != nullptr ? load16(from + c) : make_uint4(0U, 0U, 0U, 0U);
        float value[4] = {bits_float(four.x) * factor, bits_float(four.y) * factor,
                          bits_float(four.z) * factor, bits_float(four.w) * factor};
        TRIPHASE_UNROLL
        for (int term = 0; term < kRowTerms; ++term) {
          const unsigned low = take_term<Value>(value[0], value[1]);
          const unsigned high = take_term<Value>(value[2], value[3]);
          store8(rows_ + (term * kScoreRows + i) * pitch_ + c, make_uint2(low, high));
        }
      }
    }
  }

  // Keys of tokens [first, first + kKeys); zeros outside [begin, end), where pages may be gone.
  __device__ __forceinline__ void load_keys(std::int64_t head, std::int64_t first,
                                            std::int64_t begin, std::int64_t end) const {
    constexpr int kLanes = 16;  // of a key, 8 channels each
    const std::int64_t context = call_.first_position + call_.queries;
    const int thread = static_cast<int>(threadIdx.x);
    TRIPHASE_UNROLL_BY(4)
    for (int i = thread / kLanes; i < kKeys; i += kScoreThreads / kLanes) {
      const std::int64_t token = first + i;
      const bool there = token >= begin && token < end;
      const ColumnKey<T> key(call_, head, there ? token : begin, context);
      for (int c = thread % kLanes * 8; c < dim_; c += kLanes * 8) {
        if constexpr (sizeof(T) == 2) {
          store16(keys_ + i * pitch_ + c, there ? key.words(c) : make_uint4(0U, 0U, 0U, 0U));
          continue;
        }
        float value[8] = {};
        if (there) read_key<T>(key, call_, c, value);
        TRIPHASE_UNROLL
        for (int term = 0; term < kKeyTerms; ++term) {
          uint4 words;
          words.x = take_term<Value>(value[0], value[1]);
          words.y = take_term<Value>(value[2], value[3]);
          words.z = take_term<Value>(value[4], value[5]);
          words.w = take_term<Value>(value[6], value[7]);
          store16(keys_ + (term * kKeys + i) * pitch_ + c, words);
        }
      }
    }
  }

  __device__ __forceinline__ void multiply(Scores& score) const {
    const Value* rows = rows_ + (warp_id() * 16 + lane_id() % 16) * pitch_ + lane_id() / 16 * 8;
    const Value* keys =
        keys_ + (lane_id() / 16 * 8 + lane_id() % 8) * pitch_ + lane_id() / 8 % 2 * 8;
    TRIPHASE_UNROLL
    for (int n = 0; n < kKeys / 8; ++n) {
      TRIPHASE_UNROLL
      for (int j = 0; j < 4; ++j) score[n][j] = 0.0F;
    }
    TRIPHASE_NO_UNROLL
    for (int k = 0; k < dim_; k += 16) {
      unsigned row[kRowTerms][4];
      TRIPHASE_UNROLL
      for (int term = 0; term < kRowTerms; ++term) {
        load_matrices(row[term], rows + term * kScoreRows * pitch_ + k);
      }
      TRIPHASE_UNROLL
      for (int pair = 0; pair < kKeys / 16; ++pair) {
        TRIPHASE_UNROLL
        for (int of_key = 0; of_key < kKeyTerms; ++of_key) {
          unsigned key[4];
          load_matrices(key, keys + (of_key * kKeys + pair * 16) * pitch_ + k);
          // The product of the last terms of both is below what F32 keeps.
          TRIPHASE_UNROLL
          for (int term = 0; term < kRowTerms - of_key; ++term) {
            multiply_tiles<Value>(score[2 * pair], row[term], {key[0], key[1]});
            multiply_tiles<Value>(score[2 * pair + 1], row[term], {key[2], key[3]});
          }
        }
      }
    }
  }

 private:
  static constexpr int kPad = 8;  // so that the rows that are loaded together lie in other banks

  const PrefillColumns& call_;
  int dim_;
  int pitch_;
  Value* rows_;
  Value* keys_;
};

// Whether ColumnScores serves a call; any GPU's block has its shared memory then.
inline bool column_scores_serve(const PrefillColumns& call) {
  return (call.dtype != DType::kF32 || call.keys > 0) && call.head_dim % 16 == 0 &&
         call.head_dim <= 128 && call.q_stride % 4 == 0 &&
         reinterpret_cast<std::uintptr_t>(call.q) % 16 == 0;
}

}  // namespace triphase::cuda
