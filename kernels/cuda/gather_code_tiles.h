#pragma once

// The tokens of gather_codes.cu and gather_code_groups.cu on their way: tiles of one INT8 block, or
// of two, with their scales, into the warp's shared memory. Included by kernels only.

#include "kernels/cuda/gather_walk.h"

namespace triphase::cuda {

// Tokens of one block, or of two: `in_first` of the first one, then those of the second.
struct CodeTile {
  int begin = 0;  // ordinal
  int count = 0;  // 0: none are left
  int in_first = 0;
  int scale_pages[2] = {};  // of one block: the same
};

// kDim: channels of a line in shared memory. kListBlocks: blocks of a tile of a list; 0: all tokens
// are attended. Kernel:
//   void begin_heads()                       the row is set
//   struct Weights                           of a tile's tokens
//   void weigh_tile<kFull>(tile, weights)    makes them from the tile's keys
//   void add_values<kFull>(count, weights)   adds the values of its tokens
//   void end_row(int result)
// kFull: all channels of a line are there, and but for lists all tokens of the tile.
template <class Kernel, int kDim, int kListBlocks>
class CodeTiles : public GatherRow {
 public:
  static constexpr bool kListed = kListBlocks > 0;
  static constexpr int kTileTokens = kListed ? 32 : 64;
  static constexpr int kHalves = kTileTokens / 32;
  static constexpr int kLineBytes = kTileTokens * kDim;  // K or V of a tile
  static constexpr int kTileBlocks = kListed ? kListBlocks : 1;
  static constexpr int kSideBytes =
      kLineBytes + kTileBlocks * kDim * static_cast<int>(sizeof(KvScale));

  __device__ CodeTiles(const GatherShape& shape, unsigned char* shared)
      : GatherRow(shape), keys_(shared), values_(shared + kSideBytes) {}

  // Tokens [begin, end) of the row's, by ordinal. Keys of a tile come while values of the one
  // before are used, its values while its keys are: each has one place, and more warps have room.
  __device__ __forceinline__ void attend(int row, int begin, int end, int result) {
    begin_row(row);
    if (!kListed) end = smaller(end, partial_begin_);
    auto& kernel = static_cast<Kernel&>(*this);
    kernel.begin_heads();
    look_up(begin, end);
    CodeTile tile = find_tile(begin, end);
    copy_side(tile, 0);
    copy_side(tile, 1);
    look_up(tile.begin + tile.count, end);
    TRIPHASE_NO_UNROLL
    while (tile.count > 0) {
      const bool whole = (kListed || (tile.count == kTileTokens && tile.begin >= window_begin_)) &&
                         shape_.cache.head_dim == kDim;
      typename Kernel::Weights weights;
      copy_async_wait<1>();
      sync_warp();  // everybody's copies of keys are here
      if (whole) {
        weigh_whole_tile(kernel, tile, weights);
      } else {
        weigh_part_of_tile(kernel, tile, weights);
      }
      sync_warp();  // nobody reads the keys any more
      const CodeTile next = find_tile(tile.begin + tile.count, end);
      copy_side(next, 0);
      copy_async_wait<1>();
      sync_warp();
      if (whole) {
        add_whole_tile(kernel, tile, weights);
      } else {
        add_part_of_tile(kernel, tile, weights);
      }
      sync_warp();
      copy_side(next, 1);
      look_up(next.begin + next.count, end);
      tile = next;
    }
    copy_async_wait<0>();
    sync_warp();
    kernel.end_row(result);
  }

 protected:
  template <bool kFull>
  __device__ __forceinline__ bool has_channel(int c) const {
    return kFull || c < shape_.cache.head_dim;
  }
  // [head_dim] of a side's keys or values, in one of the tile's blocks.
  static __device__ __forceinline__ const KvScale* scales_at(const unsigned char* side, int block) {
    return reinterpret_cast<const KvScale*>(side + kLineBytes) + block * kDim;
  }

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

  // The tokens from `first` on that lie in its block, those of a list in the next one too, and
  // where.
  __device__ __forceinline__ CodeTile find_tile(int first, int end) {
    if (first >= end) return {first};
    const int shift = shape_.cache.page_shift;
    const std::int32_t* scale_pages = shape_.cache.tables.scale_pages + table_begin_;
    if constexpr (kListed) {
      // Tokens ascend: behind the first of the partial block all are in it.
      const int token = token_[0] < partial_begin_ ? token_[0] : -1;
      const int own = token >> shift;  // -1: none
      const int block = shuffle(own, 0);
      if (block < 0) return {first};
      const int in_first = count_bits(ballot(own == block));
      int count = in_first;
      int second = block;
      if constexpr (kTileBlocks == 2) {
        const int next = shuffle(own, smaller(in_first, kWarpSize - 1));
        if (next >= 0) second = next;
        if (second != block) count += count_bits(ballot(own == second));
      }
      const bool has_slots = shape_.list.slots != nullptr;
      place_[0] = place_of(has_slots ? slot_[0] : own < 0 ? 0 : slot_of(token));
      return {first, count, in_first, {scale_pages[block], scale_pages[second]}};
    }
    const int tile = smaller(kTileTokens, 1 << shift);
    const int count = smaller(end, (first | (tile - 1)) + 1) - first;
    const int page = slot_of(first) >> shift << shift;
    TRIPHASE_UNROLL
    for (int half = 0; half < kHalves; ++half) {
      place_[half] = place_of(page + ((first + 32 * half + lane_id()) & ((1 << shift) - 1)));
    }
    const int scale_page = scale_pages[first >> shift];
    return {first, count, count, {scale_page, scale_page}};
  }

  // Starts the copies of a tile's keys (0) or values (1), with their scales; none of an empty tile.
  __device__ __forceinline__ void copy_side(const CodeTile& tile, int side) const {
    if (tile.count > 0) {
      unsigned char* to = side == 0 ? keys_ : values_;
      const unsigned char* pool = side == 0 ? shape_.cache.k : shape_.cache.v;
      const bool whole = shape_.cache.head_dim == kDim;
      TRIPHASE_UNROLL
      for (int block = 0; block < kTileBlocks; ++block) {
        copy_scales(scales_of(tile.scale_pages[block], side),
                    to + kLineBytes + block * kDim * sizeof(KvScale), whole);
      }
      if (!whole) {
        copy_lines(pool, tile.count, to);
      } else if (kListed) {
        copy_scattered(pool, tile.count, to);
      } else {
        copy_stretch(pool, tile.count, to);
      }
    }
    copy_async_commit();
  }

  // whole: of kDim channels.
  __device__ __forceinline__ void copy_scales(const KvScale* from, unsigned char* to,
                                              bool whole) const {
    from += lane_id() * 4;
    to += lane_id() * 16;
    if (whole) {
      TRIPHASE_UNROLL
      for (int piece = 0; piece < kDim / 4; piece += kWarpSize) {
        if (kDim / 4 % kWarpSize == 0 || piece + lane_id() < kDim / 4) {
          copy_async16(to + piece * 16, from + piece * 4, true);
        }
      }
      return;
    }
    TRIPHASE_NO_UNROLL
    for (int piece = 0; piece < shape_.cache.head_dim / 4 - lane_id(); piece += kWarpSize) {
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

  // Whole lines that lie anywhere.
  __device__ __forceinline__ void copy_scattered(const unsigned char* pool, int count,
                                                 unsigned char* lines) const {
    const int token = lane_id() / kChunks;
    const int chunk = lane_id() % kChunks;
    const unsigned char* from = pool + chunk * 16;
    const int place = token * kDim + (chunk ^ swizzle(token)) * 16;
    TRIPHASE_UNROLL
    for (int first = 0; first < kTileTokens; first += kStride) {
      if (first >= count) break;
      const auto line = static_cast<unsigned>(shuffle(place_[0], first + token));
      copy_async16(lines + (place ^ swizzle(first) * 16) + first * kDim,
                   from + std::uint64_t{line} * kDim, first + token < count);
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
  // By names of their own for tools/check_kernel_loops.py, which counts whole tiles.
  template <class Weights>
  static __device__ __forceinline__ void weigh_whole_tile(Kernel& kernel, const CodeTile& tile,
                                                          Weights& weights) {
    kernel.template weigh_tile<true>(tile, weights);
  }
  template <class Weights>
  static __device__ __forceinline__ void weigh_part_of_tile(Kernel& kernel, const CodeTile& tile,
                                                            Weights& weights) {
    kernel.template weigh_tile<false>(tile, weights);
  }
  template <class Weights>
  static __device__ __forceinline__ void add_whole_tile(Kernel& kernel, const CodeTile& tile,
                                                        const Weights& weights) {
    kernel.template add_values<true>(tile.count, weights);
  }
  template <class Weights>
  static __device__ __forceinline__ void add_part_of_tile(Kernel& kernel, const CodeTile& tile,
                                                          const Weights& weights) {
    kernel.template add_values<false>(tile.count, weights);
  }

  // Of a token of the row, by its page table.
  __device__ __forceinline__ int slot_of(int token) const {
    const int shift = shape_.cache.page_shift;
    const int page = shape_.cache.tables.pages[table_begin_ + (token >> shift)];
    return (page << shift) + (token & ((1 << shift) - 1));
  }
  // The line in the pool of a slot's token and the row's head.
  __device__ __forceinline__ int place_of(int slot) const {
    const int shift = shape_.cache.page_shift;
    return slot + (((slot >> shift) * (shape_.cache.kv_heads - 1) + head_) << shift);
  }

  // Tokens from the next tile on, one of each half for each lane: -1 behind the last.
  int token_[kHalves];
  int slot_[kHalves];
  int place_[kHalves];  // lines in the pool of the tile whose copies are started
};

}  // namespace triphase::cuda
