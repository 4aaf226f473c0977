#pragma once

// Of the kernels of gather_attn.h: the walk over a plan's rows and, for 16-bit caches, the stream
// of their tokens through a ring of stages in shared memory. A warp works alone; no block barriers.

#include <cmath>
#include <type_traits>

#include "kernels/cuda/dialect.h"
#include "kernels/cuda/gather_attn.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/soft_cap.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {

struct GatherQueries {
  const float* data;
  std::int64_t stride;
  float log2_scale;  // scale * log2(e)
  float cap;         // as in GatherAttnArgs
  float inverse_cap;
};

struct GatherCache {
  const unsigned char* k;
  const unsigned char* v;
  const KvScale* scales;
  KvPageTables tables;
  int kv_heads;
  int head_dim;
  int page_shift;
  bool whole_pieces;  // a token's head is a multiple of 16 bytes, not of 8 alone
};

struct GatherLists {
  const std::int32_t* tokens;
  const std::int32_t* slots;
  const std::int32_t* counts;
  int capacity;
  bool per_row;
};

struct GatherResults {
  float* states;
  float* max_sum;
  float* scores;
  int score_capacity;
};

// What the kernel needs, checked and with strides worked out by the wrapper.
struct GatherShape {
  GatherQueries q;
  GatherCache cache;
  int rows;
  int group;  // query heads of a KV head
  const std::int32_t* lengths;
  TokenSource source;
  int window;
  GatherLists list;
  const SplitPart* parts;
  int part_count;
  int unit_tokens;
  bool partial_block;  // this launch reads the partial pages: the row's last tokens only
  int result_base;     // of the partial block's results
  GatherResults results;
};

constexpr int kGatherStages = static_cast<int>(kGatherRingStages);
constexpr int kNoPlace = -1;

// Piece c of a token's line of kPitch bytes lies at c ^ gather_swizzle(token), which is linear: the
// eight lines that load_matrices reads together, and the four that lanes read two pieces of, lie at
// different banks.
template <int kPitch>
__device__ __forceinline__ int gather_swizzle(int token) {
  if constexpr (kPitch >= 128) return (token & 3) << 1 | (token >> 2 & 1);
  return (token >> 1 & 1) << 1 | (token >> 2 & 1);
}

// What a warp knows of the row that it attends.
class GatherRow {
 public:
  __device__ explicit GatherRow(const GatherShape& shape) : shape_(shape) {}

  [[nodiscard]] __device__ const GatherShape& shape() const { return shape_; }
  // Tokens of a row, those of its partial block included.
  [[nodiscard]] __device__ __forceinline__ int count_of(int row) const {
    const int sequence = row / shape_.cache.kv_heads;
    if (shape_.source == TokenSource::kList) return shape_.list.counts[list_of(row)];
    return shape_.lengths[sequence];
  }
  // The first of them that the plan's unit 0 of the row has.
  [[nodiscard]] __device__ __forceinline__ int begin_of(int count) const {
    return window_begin(count, shape_.window) / shape_.unit_tokens * shape_.unit_tokens;
  }

 protected:
  __device__ __forceinline__ int list_of(int row) const {
    return shape_.list.per_row ? row : row / shape_.cache.kv_heads;
  }

  __device__ __forceinline__ void begin_row(int row) {
    row_ = row;
    sequence_ = row / shape_.cache.kv_heads;
    head_ = row % shape_.cache.kv_heads;
    const int length = shape_.lengths[sequence_];
    partial_begin_ =
        length > 0 ? ((length - 1) >> shape_.cache.page_shift) << shape_.cache.page_shift : 0;
    window_begin_ = window_begin(length, shape_.window);
    table_begin_ = sequence_ * shape_.cache.tables.max_pages;
    list_begin_ = static_cast<std::int64_t>(list_of(row)) * shape_.list.capacity;
  }

  // [head_dim] of a query head of the row's group.
  [[nodiscard]] __device__ __forceinline__ const float* queries_of(int head) const {
    return shape_.q.data + sequence_ * shape_.q.stride +
           static_cast<std::int64_t>(head_ * shape_.group + head) * shape_.cache.head_dim;
  }

  // [head_dim] of the head's K (0) or V (1) in a block.
  [[nodiscard]] __device__ __forceinline__ const KvScale* scales_of(int scale_page,
                                                                    int which) const {
    return shape_.cache.scales +
           ((static_cast<std::int64_t>(scale_page) * 2 + which) * shape_.cache.kv_heads + head_) *
               shape_.cache.head_dim;
  }

  // Caps scores where there is a soft cap: before any is masked.
  template <int kScores>
  __device__ __forceinline__ void cap(float (&score)[kScores]) const {
    if (shape_.q.cap == 0.0F) return;
    TRIPHASE_UNROLL
    for (int i = 0; i < kScores; ++i) {
      score[i] = soft_capped(score[i], shape_.q.cap, shape_.q.inverse_cap);
    }
  }

  __device__ __forceinline__ void write_score(int head, int ordinal, float score) const {
    if (head >= shape_.group) return;
    shape_.results.scores[(static_cast<std::int64_t>(row_) * shape_.group + head) *
                              shape_.results.score_capacity +
                          ordinal] = score;
  }

  const GatherShape& shape_;
  int row_ = 0;
  int sequence_ = 0;
  int head_ = 0;
  int table_begin_ = 0;  // of the row's pages
  int partial_begin_ = 0;
  int window_begin_ = 0;
  std::int64_t list_begin_ = 0;
};

// Walks over a part's rows: warp.attend(row, begin, end, result) for tokens [begin, end) of each.
template <class Warp>
__device__ __forceinline__ void run_gather_part(Warp& warp, int part) {
  const GatherShape& shape = warp.shape();
  const bool partial_block = shape.partial_block;
  const SplitPart walk = partial_block ? SplitPart{part, 0, part, 0} : shape.parts[part];
  for (int row = walk.row_begin; row <= walk.row_end && row < shape.rows; ++row) {
    const int count = warp.count_of(row);
    const int first = warp.begin_of(count);
    int begin = first + (row == walk.row_begin ? walk.unit_begin * shape.unit_tokens : 0);
    int end = count;
    if (partial_block) {
      begin = larger(0, count - (1 << shape.cache.page_shift));  // a partial block has no more
    } else if (row == walk.row_end) {
      end = smaller(count, first + walk.unit_end * shape.unit_tokens);
    }
    if (partial_block || begin < end) {
      warp.attend(row, begin, end, partial_block ? shape.result_base + row : part + row);
    }
  }
}

// One warp. E: Half or BFloat16. A stage of the ring holds K, then V, of kTokens tokens, kPitch
// bytes each; what lies beyond a head's channels or belongs to no token is zero. Kernel:
//   static int swizzle(int token)               piece c of a line lies at c ^ swizzle(token), which
//                                               is linear: swizzle(a ^ b) = swizzle(a) ^ swizzle(b)
//   void begin_heads()                          the row is set
//   void compute_tile(stage, valid, ordinal)    valid: bit per token
//   void end_row(int result)
template <class Kernel, class E, int kPitch, int kTokens>
class GatherWalk : public GatherRow {
 public:
  static constexpr int kStageBytes = 2 * kTokens * kPitch;
  static constexpr int kChunks = kPitch / 16;  // 16-byte pieces of a token
  static_assert(kTokens <= kWarpSize && kTokens * kChunks % kWarpSize == 0 &&
                kGatherUnitTokens % kTokens == 0);

  __device__ GatherWalk(const GatherShape& shape, unsigned char* ring, int first_head)
      : GatherRow(shape), ring_(ring), first_head_(first_head) {}

  // Tokens [begin, end) of the row's, by ordinal.
  __device__ __forceinline__ void attend(int row, int begin, int end, int result) {
    begin_row(row);
    self().begin_heads();

    const int tiles = ceil_div(larger(0, end - begin), kTokens);
    // Validity of the tiles under way: [0] is the one to compute next.
    unsigned valid[kGatherStages - 1] = {};
    look_up(begin + lane_id(), end);
    locate();
    look_up(begin + kTokens + lane_id(), end);
    int read = 0;
    int write = 0;
    // The first rounds only start copies: one place in the code for each step.
    TRIPHASE_NO_UNROLL
    for (int tile = 1 - kGatherStages; tile < tiles; ++tile) {
      if (tile >= 0) copy_async_wait<kGatherStages - 2>();
      sync_warp();  // everybody's copies are here, and nobody reads the stage that comes next
      const unsigned next_valid = ballot(place_ != kNoPlace);
      if (tile + kGatherStages - 1 < tiles) copy_tile(ring_ + write * kStageBytes);
      copy_async_commit();
      // While this one is computed, the places of the tile after that are read, and which tokens
      // the one behind it has: two reads of which one needs the other's result.
      locate();
      look_up(begin + (tile + kGatherStages + 1) * kTokens + lane_id(), end);
      if (tile >= 0) {
        self().compute_tile(ring_ + read * kStageBytes, valid[0], begin + tile * kTokens);
        read = read + 1 == kGatherStages ? 0 : read + 1;
      }
      TRIPHASE_UNROLL
      for (int i = 0; i + 1 < kGatherStages - 1; ++i) valid[i] = valid[i + 1];
      valid[kGatherStages - 2] = next_valid;
      write = write + 1 == kGatherStages ? 0 : write + 1;
    }
    copy_async_wait<0>();
    sync_warp();  // the ring is free for the next row
    self().end_row(result);
  }

 private:
  // Starts to read which token `ordinal` is: this lane's of a tile to come.
  __device__ __forceinline__ void look_up(int ordinal, int end) {
    token_ = kNoPlace;
    if (lane_id() >= kTokens || ordinal >= end) return;
    token_ = ordinal;
    if (shape_.source != TokenSource::kList) return;
    const std::int64_t entry = list_begin_ + ordinal;
    token_ = shape_.list.tokens[entry];
    if (shape_.list.slots != nullptr) slot_ = shape_.list.slots[entry];
  }

  // Finds that token: place_ is its line in the pool, or kNoPlace.
  __device__ __forceinline__ void locate() {
    place_ = kNoPlace;
    if (token_ < (shape_.partial_block ? larger(partial_begin_, window_begin_) : window_begin_)) {
      return;
    }
    const int shift = shape_.cache.page_shift;
    int slot = token_ & ((1 << shift) - 1);
    if (shape_.partial_block) {
      slot += shape_.cache.tables.partial_pages[sequence_] << shift;
    } else if (shape_.source == TokenSource::kList && shape_.list.slots != nullptr) {
      slot = slot_;
    } else {
      slot += shape_.cache.tables.pages[table_begin_ + (token_ >> shift)] << shift;
    }
    device_check(slot >= 0);
    const int page = slot >> shift;
    place_ = slot + ((page * (shape_.cache.kv_heads - 1) + head_) << shift);
  }

  // Starts the copies of the tile whose places the lanes hold.
  __device__ __forceinline__ void copy_tile(unsigned char* stage) const {
    // A lane's pieces lie at one column of tokens kStride apart.
    constexpr int kStride = kWarpSize / kChunks;
    const int first = lane_id() / kChunks;
    const int chunk = lane_id() % kChunks;
    const int row_bytes = shape_.cache.head_dim * static_cast<int>(sizeof(E));
    const bool inside = chunk * 16 < row_bytes;
    const unsigned char* k = shape_.cache.k + (inside ? chunk * 16 : 0);
    const unsigned char* v = shape_.cache.v + (inside ? chunk * 16 : 0);
    if (!shape_.cache.whole_pieces || ballot(lane_id() < kTokens && place_ < 0) != 0) {
      copy_ragged_tile(stage, k, v);
      return;
    }
    const int place_in_stage = first * kPitch + (chunk ^ Kernel::swizzle(first)) * 16;
    TRIPHASE_UNROLL
    for (int token = 0; token < kTokens; token += kStride) {
      const auto place = static_cast<unsigned>(shuffle(place_, first + token));
      const std::uint64_t at = std::uint64_t{place} * static_cast<unsigned>(row_bytes);
      unsigned char* to = stage + (place_in_stage ^ Kernel::swizzle(token) * 16) + token * kPitch;
      copy_async16(to, k + at, inside);
      copy_async16(to + kTokens * kPitch, v + at, inside);
    }
  }

  // Likewise, where some tokens are not there or a line ends within a piece.
  __device__ __forceinline__ void copy_ragged_tile(unsigned char* stage, const unsigned char* k,
                                                   const unsigned char* v) const {
    constexpr int kStride = kWarpSize / kChunks;
    const int chunk = lane_id() % kChunks;
    const int row_bytes = shape_.cache.head_dim * static_cast<int>(sizeof(E));
    TRIPHASE_NO_UNROLL
    for (int token = lane_id() / kChunks; token < kTokens; token += kStride) {
      const int place = shuffle(place_, token);
      const std::int64_t at = place < 0 ? 0 : static_cast<std::int64_t>(place) * row_bytes;
      const int left = place < 0 ? 0 : row_bytes - chunk * 16;
      unsigned char* to = stage + token * kPitch + (chunk ^ Kernel::swizzle(token)) * 16;
      if (shape_.cache.whole_pieces) {
        copy_async16(to, k + at, left > 0);
        copy_async16(to + kTokens * kPitch, v + at, left > 0);
      } else {
        TRIPHASE_UNROLL
        for (int half = 0; half < 16; half += 8) {
          const bool valid = left > half;
          copy_async8(to + half, k + (valid ? at + half : 0), valid);
          copy_async8(to + kTokens * kPitch + half, v + (valid ? at + half : 0), valid);
        }
      }
    }
  }

  __device__ __forceinline__ Kernel& self() { return static_cast<Kernel&>(*this); }

  int token_ = kNoPlace;  // of the tile to locate next
  int slot_ = 0;
  int place_ = kNoPlace;

 protected:
  unsigned char* ring_;
  int first_head_;
};

// Of a launch: a block is one warp; block x: a part of the plan, block y: the next `heads` query
// heads of each group.
inline dim3 gather_grid(const GatherShape& shape, int heads) {
  return dim3(static_cast<unsigned>(shape.part_count),
              static_cast<unsigned>(ceil_div(shape.group, heads)));
}
inline void allow_gather_bytes(void (*kernel)(GatherShape), int bytes, const GatherShape& shape) {
  allow_shared_bytes(kernel, static_cast<std::size_t>(bytes), "gather_attn", [&] {
    return shape_text({{"rows", shape.rows},
                       {"group", shape.group},
                       {"head_dim", shape.cache.head_dim},
                       {"parts", shape.part_count}});
  });
}

// One per element type, each in its own source file; INT8 has another for lists of groups of heads.
void launch_gather_f16(const GatherShape& shape, StreamHandle stream);
void launch_gather_bf16(const GatherShape& shape, StreamHandle stream);
void launch_gather_codes(const GatherShape& shape, StreamHandle stream);
void launch_gather_code_groups(const GatherShape& shape, StreamHandle stream);

}  // namespace triphase::cuda
