#pragma once

// The queries of gather_codes.cu: times a tile's lambdas, and cut into bytes. Included by kernels
// only.

#include "kernels/cuda/gather_code_tiles.h"

namespace triphase::cuda {

// kPairs: pairs of query heads; of lists the pair of a tile's blocks, both for one head. A half is
// one of a pair. The others: as of CodeTiles.
template <class Kernel, int kDim, int kPairs, bool kListed>
class CodeQueries : public CodeTiles<Kernel, kDim, kListed ? 2 : 0> {
  using Tiles = CodeTiles<Kernel, kDim, kListed ? 2 : 0>;

 public:
  static constexpr GatherCodeWarp kSizes{kDim, kPairs, kListed};
  static constexpr int kHeads = static_cast<int>(kSizes.heads());
  static constexpr int kSteps = kDim / 32;  // products along a key
  static constexpr int kSharedBytes = static_cast<int>(kSizes.bytes());

  __device__ CodeQueries(const GatherShape& shape, unsigned char* shared, int first_head)
      : Tiles(shape, shared),
        first_head_(first_head),
        bytes_(shared + 2 * Tiles::kSideBytes),
        queries_(reinterpret_cast<float*>(bytes_ + 2 * kHalfBytes)) {
    static_assert(2 * Tiles::kSideBytes + 2 * kHalfBytes + kQueryBytes == kSharedBytes);
    static_assert(!kListed || kPairs == 1);
  }

 protected:
  using Tiles::shape_;

  // A pair's queries as columns of bytes, as this lane gives them to the products: byte lane / 4 %
  // 4 of the half lane / 16.
  struct Queries {
    unsigned words[2 * kSteps];
    // Of the half lane % 4 / 2: what a score is more than the product, and what the product counts
    // in.
    float start;
    float factor;
  };

  // The row is set; sync_warp() must follow.
  __device__ __forceinline__ void begin_queries() {
    if constexpr (kPairs == 1) {
      TRIPHASE_UNROLL
      for (int i = 0; i < kOwnWords; ++i) {
        own_queries_[i] = query_of(head_of(0, half_of(i)), channel_of(i));
      }
    } else {
      TRIPHASE_NO_UNROLL
      for (int piece = lane_id(); piece < kHeads * kDim / 4; piece += kWarpSize) {
        store16(queries_ + piece * 4, query_of(piece * 4 / kDim, piece * 4 % kDim));
      }
    }
  }

  __device__ __forceinline__ int head_of(int pair, int half) const {
    return kListed ? 0 : 2 * pair + half;
  }
  // [head_dim] of a side, in the block that a half is for.
  static __device__ __forceinline__ const KvScale* scales_of_half(const unsigned char* side,
                                                                  int half) {
    return Tiles::scales_at(side, kListed ? half : 0);
  }

  // The pair's, by the lambdas of the tile's keys. Every lane scales a few words of four channels,
  // and the bytes go through shared memory to the lanes that want them.
  template <bool kFull>
  __device__ __forceinline__ void scale_queries(int pair, Queries& queries) const {
    float value[kWords][4];
    float most[kLaneHalves] = {};
    float start[kLaneHalves] = {};
    TRIPHASE_UNROLL
    for (int i = 0; i < kWords; ++i) {
      const int half = kLaneHalves == 1 ? 0 : half_of(i);
      uint4 scales = make_uint4(0U, 0U, 0U, 0U);
      if (this->template has_channel<kFull>(channel_of(i))) {
        scales = load_shared16(scales_of_half(this->keys_, half_of(i)) + channel_of(i));
      }
      const uint4 query = loaded_query(pair, i);
      value[i][0] = bits_float(query.x) * kv_lambda(scales.x);
      value[i][1] = bits_float(query.y) * kv_lambda(scales.y);
      value[i][2] = bits_float(query.z) * kv_lambda(scales.z);
      value[i][3] = bits_float(query.w) * kv_lambda(scales.w);
      start[half] = fma_rn(-value[i][0], kv_zero(scales.x), start[half]);
      start[half] = fma_rn(-value[i][1], kv_zero(scales.y), start[half]);
      start[half] = fma_rn(-value[i][2], kv_zero(scales.z), start[half]);
      start[half] = fma_rn(-value[i][3], kv_zero(scales.w), start[half]);
      TRIPHASE_UNROLL
      for (int c = 0; c < 4; ++c) most[half] = largest(most[half], fabsf(value[i][c]));
    }
    // The power of two that brings a half's largest to 2^29..2^30, and its inverse.
    const float top = over_half(most, [](float one, float other) { return largest(one, other); });
    const int field = smaller(283 - static_cast<int>(float_bits(top) >> 23), 253);
    const float scale = bits_float(static_cast<unsigned>(field) << 23);
    const float factor = bits_float(static_cast<unsigned>(254 - field) << 23);
    const float sum = over_half(start, [](float one, float other) { return one + other; });
    const int source = lane_id() % 4 / 2 * 16;
    queries.start = shuffle(sum, source) * shape_.q.log2_scale;
    queries.factor = shuffle(factor, source) * shape_.q.log2_scale;
    sync_warp();  // nobody reads the bytes of the pair before this one any more
    TRIPHASE_UNROLL
    for (int i = 0; i < kWords; ++i) {
      write_bytes(i, value[i], kLaneHalves == 1 ? scale : shuffle(scale, half_of(i) * 16));
    }
    sync_warp();
    const unsigned char* from =
        bytes_ + lane_id() / 16 * kHalfBytes + lane_id() % 4 * 16 + lane_id() / 4 % 4 * 4;
    TRIPHASE_UNROLL
    for (int word = 0; word < 2 * kSteps; ++word) {
      queries.words[word] = load_shared4(from + word * 64);
    }
  }

  int first_head_;

 private:
  // Of a half: four bytes of each channel, and room so that two halves are read at once.
  static constexpr int kHalfBytes = kDim * 4 + 64;
  static constexpr int kQueryBytes = kPairs == 1 ? 0 : kHeads * kDim * 4;

  // Words that a lane scales: word i is of half half_of(i), from channel_of(i) on.
  static constexpr int kWords = kDim / 64;
  static constexpr int kLaneHalves = kWords == 1 ? 1 : 2;  // that a lane has words of
  static __device__ __forceinline__ int half_of(int i) {
    return kLaneHalves == 1 ? lane_id() / 16 : i / (kWords / 2);
  }
  static __device__ __forceinline__ int channel_of(int i) {
    return kLaneHalves == 1 ? lane_id() % 16 * 4 : (lane_id() + i % (kWords / 2) * kWarpSize) * 4;
  }

  // Four channels of a query head of the warp; 0 behind its last one.
  __device__ __forceinline__ uint4 query_of(int head, int c) const {
    if (c >= shape_.cache.head_dim) return make_uint4(0U, 0U, 0U, 0U);
    return load16(this->queries_of(smaller(first_head_ + head, shape_.group - 1)) + c);
  }
  __device__ __forceinline__ uint4 loaded_query(int pair, int i) const {
    if constexpr (kPairs == 1) return own_queries_[i % kOwnWords];
    return load_shared16(queries_ + head_of(pair, half_of(i)) * kDim + channel_of(i));
  }

  // What a lane has of its halves becomes what all have of half lane / 16.
  template <class Join>
  static __device__ __forceinline__ float over_half(const float (&own)[kLaneHalves],
                                                    const Join& join) {
    float mine = own[0];
    if constexpr (kLaneHalves == 2) {
      const bool second = lane_id() >= 16;
      mine = second ? own[1] : own[0];
      mine = join(mine, shuffle_xor(second ? own[0] : own[1], 16));
    }
    TRIPHASE_UNROLL
    for (int step = 8; step > 0; step /= 2) mine = join(mine, shuffle_xor(mine, step));
    return mine;
  }

  __device__ __forceinline__ void write_bytes(int i, const float (&value)[4], float scale) const {
    unsigned digits[4];
    TRIPHASE_UNROLL
    for (int c = 0; c < 4; ++c) {
      digits[c] = static_cast<unsigned>(round_to_int(value[c] * scale)) + 0x00808080U;
    }
    const unsigned low[2] = {byte_permute(digits[0], digits[1], 0x5140U),
                             byte_permute(digits[2], digits[3], 0x5140U)};
    const unsigned high[2] = {byte_permute(digits[0], digits[1], 0x7362U),
                              byte_permute(digits[2], digits[3], 0x7362U)};
    // Signed digits: every byte but the highest counts from -128.
    store16(bytes_ + half_of(i) * kHalfBytes + channel_of(i) * 4,
            make_uint4(byte_permute(low[0], low[1], 0x5410U) ^ 0x80808080U,
                       byte_permute(low[0], low[1], 0x7632U) ^ 0x80808080U,
                       byte_permute(high[0], high[1], 0x5410U) ^ 0x80808080U,
                       byte_permute(high[0], high[1], 0x7632U)));
  }

  // Of a single pair a lane keeps its words; both blocks have the same.
  static constexpr int kOwnWords = kListed && kLaneHalves == 2 ? kWords / 2 : kWords;
  uint4 own_queries_[kOwnWords];
  unsigned char* bytes_;  // of a pair's queries: [half][four channels][byte]
  float* queries_;        // of several pairs: [head][kDim]
};

}  // namespace triphase::cuda
