#pragma once

// Tiles of prefill_colsum on tensor cores: keys are the product's rows and stay in a warp's
// registers, tiles of query rows pass by. A key's weights are added one by one in the rows' order,
// so that its sum does not depend on where tiles or chunks begin. Included by kernels only.

#include "kernels/cuda/column_scores.h"

namespace triphase::cuda {

inline constexpr int kSumKeys = 128;  // of a block

// T: elements of the cache. kDim: channels, zeros from head_dim on. A lane's sums [tile][half] are
// of the block's keys key(tile, half); all four lanes of a quad have them.
template <class T, int kDim>
class ColumnSums {
 public:
  using Value = typename ColumnScores<T>::Value;
  static constexpr int kRowTerms = ColumnScores<T>::kRowTerms;
  static constexpr int kKeyTerms = ColumnScores<T>::kKeyTerms;
  // As registers allow: tiles of 16 keys that a warp has, and rows of a tile that passes by.
  static constexpr int kKeyTiles = kKeyTerms == 1 ? 2 : 1;
  static constexpr int kBlocks = kKeyTerms == 1 && sizeof(T) == 2 ? 3 : 2;  // of a multiprocessor
  static constexpr int kThreads = kSumKeys / (16 * kKeyTiles) * kWarpSize;
  static constexpr int kRows = kKeyTerms == 1 ? 32 : 16;
  static constexpr int kRowTiles = kRows / 8;
  static constexpr int kPieces = kDim / 32;
  // Eight rows' pieces of 16 bytes lie in other banks.
  static constexpr int kPitch = (kDim + 63) / 64 * 64 + 32;
  static constexpr std::size_t kBytes = sizeof(Value) * kRowTerms * kRows * kPitch;
  using Scores = float[kKeyTiles][kRowTiles][4];
  using Sums = float[kKeyTiles][2];

  __device__ __forceinline__ ColumnSums(const PrefillColumns& call, unsigned char* shared)
      : call_(call), rows_(reinterpret_cast<Value*>(shared)) {}

  // Keys of tokens [first, first + kSumKeys) of a part of the call; zeros outside [begin, end),
  // where pages may be gone.
  __device__ __forceinline__ void load_keys(const PrefillColumns& part, std::int64_t head,
                                            std::int64_t first, std::int64_t begin,
                                            std::int64_t end) {
    const std::int64_t context = part.first_position + part.queries;
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kKeyTiles; ++tile) {
      TRIPHASE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const std::int64_t token = first + key(tile, half);
        const bool there = token >= begin && token < end;
        load_key(part, ColumnKey<T>(part, head, there ? token : begin, context), there, tile, half);
      }
    }
  }

  static __device__ __forceinline__ int key(int tile, int half) {
    return (warp_id() * kKeyTiles + tile) * 16 + lane_id() / 4 + half * 8;
  }

  // row_at(i): where row i's channels are, or null for zeros. Scores become logits in base 2.
  template <class RowAt>
  __device__ __forceinline__ void load_rows(const RowAt& row_at) const {
    constexpr int kLanes = kThreads / kRows;  // of a row, four channels each
    const float factor = call_.scale * kLog2E;
    const int i = static_cast<int>(threadIdx.x) / kLanes;
    const float* from = row_at(i);
    TRIPHASE_UNROLL
    for (int first = 0; first < kDim; first += kLanes * 4) {
      const int c = first + static_cast<int>(threadIdx.x) % kLanes * 4;
      const bool there = from != nullptr && c < static_cast<int>(call_.head_dim);
      const uint4 four = there ? load16(from + c) : make_uint4(0U, 0U, 0U, 0U);
      float value[4] = {bits_float(four.x) * factor, bits_float(four.y) * factor,
                        bits_float(four.z) * factor, bits_float(four.w) * factor};
      TRIPHASE_UNROLL
      for (int term = 0; term < kRowTerms; ++term) {
        const unsigned low = take_term<Value>(value[0], value[1]);
        const unsigned high = take_term<Value>(value[2], value[3]);
        store8(rows_ + (term * kRows + i) * kPitch + c, make_uint2(low, high));
      }
    }
  }

  // score[tile][n][j]: of the key key(tile, j / 2) and the row n * 8 + lane % 4 * 2 + j % 2.
  __device__ __forceinline__ void multiply(Scores& score) const {
    const Value* rows = rows_ + lane_id() / 4 * kPitch + lane_id() % 4 * 8;
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kKeyTiles; ++tile) {
      TRIPHASE_UNROLL
      for (int n = 0; n < kRowTiles; ++n) {
        TRIPHASE_UNROLL
        for (int j = 0; j < 4; ++j) score[tile][n][j] = 0.0F;
      }
    }
    TRIPHASE_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
      TRIPHASE_UNROLL
      for (int n = 0; n < kRowTiles; ++n) {
        TRIPHASE_UNROLL
        for (int term = 0; term < kRowTerms; ++term) {
          const uint4 row = load_shared16(rows + (term * kRows + n * 8) * kPitch + piece * 32);
          // The product of the last terms of both is below what F32 keeps.
          TRIPHASE_UNROLL
          for (int of_key = 0; of_key < kKeyTerms && of_key < kRowTerms - term; ++of_key) {
            TRIPHASE_UNROLL
            for (int tile = 0; tile < kKeyTiles; ++tile) {
              const unsigned(&key)[2][4] = keys_[of_key][tile][piece];
              multiply_tiles<Value>(score[tile][n], key[0], {row.x, row.y});
              multiply_tiles<Value>(score[tile][n], key[1], {row.z, row.w});
            }
          }
        }
      }
    }
  }

  // Adds a tile's weights to each key's sum. The lanes of a quad take turns, two rows each.
  static __device__ __forceinline__ void add(const Scores& weight, Sums& sum) {
    TRIPHASE_UNROLL
    for (int n = 0; n < kRowTiles; ++n) {
      TRIPHASE_UNROLL
      for (int turn = 0; turn < 4; ++turn) {
        TRIPHASE_UNROLL
        for (int tile = 0; tile < kKeyTiles; ++tile) {
          TRIPHASE_UNROLL
          for (int half = 0; half < 2; ++half) {
            const float(&own)[4] = weight[tile][n];
            const float more = sum[tile][half] + own[2 * half] + own[2 * half + 1];
            sum[tile][half] = shuffle(more, lane_id() / 4 * 4 + turn);
          }
        }
      }
    }
  }

 private:
  // A product adds channels up in any order, if both sides have the same: a lane takes eight that
  // lie side by side.
  __device__ __forceinline__ void load_key(const PrefillColumns& part, const ColumnKey<T>& key,
                                           bool there, int tile, int half) {
    TRIPHASE_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
      const int c = piece * 32 + lane_id() % 4 * 8;
      const bool reads = there && c < static_cast<int>(call_.head_dim);
      if constexpr (sizeof(T) == 2) {
        const uint4 own = reads ? key.words(c) : make_uint4(0U, 0U, 0U, 0U);
        // An operand's four registers lie side by side, and two loads bring them. Words that no
        // instruction has made anew stay as they were loaded, and the loop moves them each time.
        const auto nothing = static_cast<unsigned>(call_.keys);  // as the compiler does not know
        unsigned(&to)[2][4] = keys_[0][tile][piece];
        to[0][half] = own.x ^ nothing;
        to[0][half + 2] = own.y ^ nothing;
        to[1][half] = own.z ^ nothing;
        to[1][half + 2] = own.w ^ nothing;
        continue;
      }
      float value[8] = {};
      if (reads) read_key<T>(key, part, c, value);
      TRIPHASE_UNROLL
      for (int term = 0; term < kKeyTerms; ++term) {
        unsigned(&to)[2][4] = keys_[term][tile][piece];
        to[0][half] = take_term<Value>(value[0], value[1]);
        to[0][half + 2] = take_term<Value>(value[2], value[3]);
        to[1][half] = take_term<Value>(value[4], value[5]);
        to[1][half + 2] = take_term<Value>(value[6], value[7]);
      }
    }
  }

  const PrefillColumns& call_;
  Value* rows_;  // shared: [term][row][kPitch]
  unsigned keys_[kKeyTerms][kKeyTiles][kPieces][2][4];
};

}  // namespace triphase::cuda
