#pragma once

// The tokens of gather_codes.cu on their way: tiles of one INT8 block each, with their scales, into
// the warp's shared memory. Included by kernels only.

#include "kernels/cuda/gather_walk.h"

namespace triphase::cuda {

// Tokens of one block.
struct CodeTile {
  int begin = 0;  // ordinal
  int count = 0;  // 0: none are left
  int scale_page = 0;
};

// kDim: channels of a line in shared memory. kListed: the tokens are those of lists.
template <int kDim, bool kListed>
class CodeTiles : public GatherRow {
 public:
  static constexpr int kTileTokens = static_cast<int>(gather_code_tokens(kListed));
  static constexpr int kHalves = kTileTokens / 32;
  static constexpr int kLineBytes = kTileTokens * kDim;  // K or V of a tile
  static constexpr int kScaleBytes = 2 * kDim * 4;       // then [lambda, zero][head_dim]
  static constexpr int kSideBytes = kLineBytes + kScaleBytes;

  __device__ CodeTiles(const GatherShape& shape, unsigned char* shared)
      : GatherRow(shape), keys_(shared), values_(shared + kSideBytes) {}

 protected:
  // Starts to read where the tokens from `first` on lie.
  __device__ __forceinline__ void look_up(int first, int end) {
    if constexpr (kListed) {
      TRIPHASE_UNROLL
      for (int half = 0; half < kHalves; ++half) {
        const int ordinal = first + 32 * half + lane_id();
        const bool there = ordinal < end;
        const std::int64_t at = list_begin_ + ordinal;
        token_[half] = there ? shape_.list.tokens[at] : -1;
        slot_[half] = there && shape_.list.slots != nullptr ? shape_.list.slots[at] : 0;
      }
    }
  }

  // The tokens from `first` on that lie in its block, and where.
  __device__ __forceinline__ CodeTile find_tile(int first, int end) {
    if (first >= end) return {first, 0, 0};
    const int shift = shape_.cache.page_shift;
    int block = first >> shift;
    int count = 0;
    if constexpr (kListed) {
      block = shuffle(token_[0], 0) >> shift;
      // Tokens ascend: all further ones are in the partial block too.
      if (block << shift >= partial_begin_) return {first, 0, 0};
      TRIPHASE_UNROLL
      for (int half = 0; half < kHalves; ++half) {
        count += count_bits(ballot(token_[half] >= 0 && token_[half] >> shift == block));
      }
    } else {
      const int tile = smaller(kTileTokens, 1 << shift);
      count = smaller(end, (first | (tile - 1)) + 1) - first;
    }
    const int entry = table_begin_ + block;
    const bool has_slots = kListed && shape_.list.slots != nullptr;
    const int page = has_slots ? 0 : shape_.cache.tables.pages[entry] << shift;
    TRIPHASE_UNROLL
    for (int half = 0; half < kHalves; ++half) {
      const int token = kListed ? token_[half] : first + 32 * half + lane_id();
      const int slot = has_slots ? slot_[half] : page + (token & ((1 << shift) - 1));
      place_[half] = slot + (((slot >> shift) * (shape_.cache.kv_heads - 1) + head_) << shift);
    }
    return {first, count, shape_.cache.tables.scale_pages[entry]};
  }

  // Starts the copies of a tile's keys (0) or values (1), with their scales; none of an empty tile.
  __device__ __forceinline__ void copy_side(const CodeTile& tile, int side) const {
    if (tile.count > 0) {
      unsigned char* to = side == 0 ? keys_ : values_;
      const unsigned char* pool = side == 0 ? shape_.cache.k : shape_.cache.v;
      copy_scales(scales_of(tile.scale_page, side), to + kLineBytes);
      if (!kListed && shape_.cache.head_dim == kDim) {
        copy_stretch(pool, tile.count, to);
      } else {
        copy_lines(pool, tile.count, to);
      }
    }
    copy_async_commit();
  }

  __device__ __forceinline__ void copy_scales(const float* from, unsigned char* to) const {
    for (int piece = lane_id(); piece < shape_.cache.head_dim / 2; piece += kWarpSize) {
      copy_async16(to + piece * 16, from + piece * 4, true);
    }
  }

  // Lanes side by side copy 16 bytes each of a line.
  static constexpr int kChunks = kDim / 16;
  static constexpr int kStride = kWarpSize / kChunks;  // lines of a round

  // Whole lines that follow each other in the pool, 32 or 64 of them.
  __device__ __forceinline__ void copy_stretch(const unsigned char* pool, int count,
                                               unsigned char* lines) const {
    const int token = lane_id() / kChunks;
    const int chunk = lane_id() % kChunks;
    const auto line = static_cast<unsigned>(shuffle(place_[0], token));
    const unsigned char* from = pool + std::uint64_t{line} * kDim + chunk * 16;
    const int place = token * kDim + (chunk ^ swizzle(token)) * 16;
    TRIPHASE_UNROLL
    for (int half = 0; half < kTileTokens; half += 32) {
      if (half >= count) break;
      TRIPHASE_UNROLL
      for (int first = half; first < half + 32; first += kStride) {
        copy_async16(lines + (place ^ swizzle(first) * 16) + first * kDim, from + first * kDim,
                     true);
      }
    }
  }

  __device__ __forceinline__ void copy_lines(const unsigned char* pool, int count,
                                             unsigned char* lines) const {
    const int chunk = lane_id() % kChunks;
    const int head_dim = shape_.cache.head_dim;
    const int left = head_dim - chunk * 16;
    const unsigned char* from = pool + (left > 0 ? chunk * 16 : 0);
    TRIPHASE_NO_UNROLL
    for (int first = 0; first < count; first += kStride) {
      const int token = first + lane_id() / kChunks;
      const int line = shuffle(first < 32 ? place_[0] : place_[kHalves - 1], token % 32);
      const bool valid = token < count && left > 0;
      const std::uint64_t at =
          valid ? std::uint64_t{static_cast<unsigned>(line)} * static_cast<unsigned>(head_dim) : 0;
      unsigned char* to = lines + token * kDim + (chunk ^ swizzle(token)) * 16;
      if (shape_.cache.whole_pieces) {
        copy_async16(to, from + at, valid);
      } else {
        TRIPHASE_UNROLL
        for (int half = 0; half < 16; half += 8) {
          const bool inside = valid && left > half;
          copy_async8(to + half, from + (inside ? at + half : 0), inside);
        }
      }
    }
  }

  static __device__ __forceinline__ int swizzle(int token) { return gather_swizzle<kDim>(token); }

  unsigned char* keys_;  // a tile's lines, then their scales
  unsigned char* values_;

 private:
  // Tokens from the next tile on, one of each half for each lane: -1 behind the last.
  int token_[kHalves];
  int slot_[kHalves];
  int place_[kHalves];  // lines in the pool of the tile whose copies are started
};

}  // namespace triphase::cuda
