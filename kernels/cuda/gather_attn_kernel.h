#pragma once

// The device code of gather_attn.h, included by one source file per element type so that they
// compile side by side.

#include <cmath>
#include <type_traits>

#include "kernels/cuda/dialect.h"
#include "kernels/cuda/gather_attn.h"

namespace triphase::cuda {

// What the kernel needs, checked and with strides worked out by the wrapper.
struct GatherShape {
  const void* q;
  DType q_dtype;
  std::int64_t q_stride;
  float log2_scale;  // scale * log2(e)
  const unsigned char* k;
  const unsigned char* v;
  const float* scales;
  KvPageTables tables;
  int rows;
  int kv_heads;
  int head_dim;
  int group;  // query heads of a row
  int page_shift;
  bool vector_rows;  // a token's head is a multiple of 16 bytes
  const std::int32_t* lengths;
  TokenSource source;
  const TokenRanges* ranges;
  const std::int32_t* tokens;
  const std::int32_t* slots;
  const std::int32_t* list_counts;
  int list_capacity;
  bool list_per_row;
  const unsigned char* host_records;
  const SplitPart* parts;
  int part_count;
  int unit_tokens;
  bool open_block;  // this launch reads the open pool: the row's last tokens only
  bool skip_open;   // this launch reads codes: tokens of the open block are left out
  int result_base;  // of the open block's results
  float* states;
  float* max_sum;
  float* logits;
  int logit_capacity;
};

constexpr int kGatherWarps = 4;
constexpr int kGatherStages = 3;
constexpr int kGatherStageBytes = 4096;
constexpr int kGatherSharedBytes = kGatherWarps * kGatherStages * kGatherStageBytes;
constexpr int kGatherVector = 8;  // channels of one lane
constexpr int kNoPlace = INT32_MIN;
constexpr float kLog2E = 1.44269504088896340736F;

// Eight stored elements as floats; codes come out as 2^23 + code.
template <class E>
__device__ __forceinline__ void load_vector(const unsigned char* shared,
                                            float (&value)[kGatherVector]) {
  if constexpr (sizeof(E) == 1) {
    const uint2 words = *reinterpret_cast<const uint2*>(shared);
    TRIPHASE_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      value[i] = bits_float(byte_permute(words.x, 0x4B000000U, 0x7650U + i));
      value[i + 4] = bits_float(byte_permute(words.y, 0x4B000000U, 0x7650U + i));
    }
  } else {
    const uint4 words = *reinterpret_cast<const uint4*>(shared);
    const unsigned word[4] = {words.x, words.y, words.z, words.w};
    TRIPHASE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpack2<E>(word[i]);
      value[2 * i] = pair.x;
      value[2 * i + 1] = pair.y;
    }
  }
}

// One warp. E: Half, BFloat16 or uint8_t; G: query heads at a time; kLanes: lanes per token, each
// with 8 channels.
template <class E, int G, int kLanes>
class GatherWarp {
 public:
  static constexpr bool kCodes = sizeof(E) == 1;
  static constexpr int kPitch = kLanes * kGatherVector * static_cast<int>(sizeof(E));
  static constexpr int kTile = kGatherStageBytes / (2 * kPitch);  // tokens of a stage
  static constexpr int kGroups = kWarpSize / kLanes;              // tokens side by side
  static constexpr int kSteps = kTile / kGroups;
  static constexpr int kChunks = kPitch / 16;  // 16-byte pieces of a token
  // Tokens of one lane group between updates of its maximum; fewer where registers are short.
  static constexpr int kBatch = kCodes && G > 1 ? 2 : 4;
  static constexpr unsigned kWholeBatch = (1U << kBatch) - 1;
  static_assert(kTile <= kWarpSize && kSteps % kBatch == 0);

  __device__ GatherWarp(const GatherShape& shape, unsigned char* ring, int first_head)
      : shape_(shape), ring_(ring), first_head_(first_head) {}

  __device__ __forceinline__ void run_part(int part) {
    const bool open_block = shape_.open_block;
    const SplitPart walk = open_block ? SplitPart{part, 0, part, 0} : shape_.parts[part];
    for (int row = walk.row_begin; row <= walk.row_end && row < shape_.rows; ++row) {
      const int count = count_of(row);
      int begin = row == walk.row_begin ? walk.unit_begin * shape_.unit_tokens : 0;
      int end = count;
      if (open_block) {
        begin = larger(0, count - (1 << shape_.page_shift));  // an open block has no more
      } else if (row == walk.row_end) {
        end = smaller(count, walk.unit_end * shape_.unit_tokens);
      }
      if (open_block || begin < end) {
        attend(row, begin, end, open_block ? shape_.result_base + row : part + row);
      }
    }
  }

 private:
  __device__ __forceinline__ int list_of(int row) const {
    return shape_.list_per_row ? row : row / shape_.kv_heads;
  }

  __device__ __forceinline__ int count_of(int row) const {
    const int sequence = row / shape_.kv_heads;
    if (shape_.source == TokenSource::kList) return shape_.list_counts[list_of(row)];
    if (shape_.source == TokenSource::kAll) return shape_.lengths[sequence];
    return shape_.ranges[sequence].first.count + shape_.ranges[sequence].second.count;
  }

  // Finds the token of `ordinal` for this lane: place_ is its line in the pool (>= 0), ~record for
  // a host record, or kNoPlace.
  __device__ __forceinline__ void locate(int ordinal, int end) {
    place_ = kNoPlace;
    scale_page_ = -1;
    if (lane_id() >= kTile || ordinal >= end) return;
    int token = ordinal;
    int slot = 0;
    bool has_slot = false;
    if (shape_.source == TokenSource::kList) {
      const std::int64_t at =
          static_cast<std::int64_t>(list_of(row_)) * shape_.list_capacity + ordinal;
      token = shape_.tokens[at];
      if (shape_.slots != nullptr) {
        slot = shape_.slots[at];
        has_slot = true;
      }
    } else if (shape_.source == TokenSource::kRanges) {
      const TokenRanges& ranges = shape_.ranges[sequence_];
      token = ordinal < ranges.first.count
                  ? ranges.first.start + ordinal * ranges.first.stride
                  : ranges.second.start + (ordinal - ranges.first.count) * ranges.second.stride;
    }
    const bool in_open_block = token >= open_begin_;
    if (shape_.open_block ? !in_open_block : shape_.skip_open && in_open_block) return;
    const int block = token >> shape_.page_shift;
    const std::int64_t table =
        static_cast<std::int64_t>(sequence_) * shape_.tables.max_pages + block;
    if constexpr (kCodes) scale_page_ = shape_.tables.scale_pages[table];
    if (has_slot && slot < 0) {
      if (shape_.host_records != nullptr && !shape_.open_block) place_ = slot;
      return;
    }
    int page = 0;
    int offset = 0;
    if (has_slot) {
      page = slot >> shape_.page_shift;
      offset = slot & ((1 << shape_.page_shift) - 1);
    } else {
      page = shape_.open_block ? shape_.tables.open_pages[sequence_] : shape_.tables.pages[table];
      offset = token & ((1 << shape_.page_shift) - 1);
    }
    device_check(page >= 0);
    place_ = ((page * shape_.kv_heads + head_) << shape_.page_shift) + offset;
  }

  // Starts the copies of the tile whose places the lanes hold.
  __device__ __forceinline__ void copy_tile(unsigned char* stage) const {
    const int row_bytes = shape_.head_dim * static_cast<int>(sizeof(E));
    TRIPHASE_UNROLL
    for (int i = 0; i < kTile * kChunks / kWarpSize; ++i) {
      const int chunk = i * kWarpSize + lane_id();
      const int place = shuffle(place_, chunk / kChunks);
      const int column = chunk % kChunks * 16;
      const unsigned char* k_line = shape_.k;
      const unsigned char* v_line = shape_.v;
      if (place >= 0) {
        const std::int64_t at = static_cast<std::int64_t>(place) * row_bytes;
        k_line += at;
        v_line += at;
      } else if (place != kNoPlace) {
        k_line = shape_.host_records +
                 (static_cast<std::int64_t>(~place) * shape_.kv_heads + head_) * 2 * row_bytes;
        v_line = k_line + row_bytes;
      }
      unsigned char* to = stage + chunk * 16;
      if (shape_.vector_rows) {
        const bool valid = place != kNoPlace && column < row_bytes;
        copy_async16(to, k_line + (valid ? column : 0), valid);
        copy_async16(to + kTile * kPitch, v_line + (valid ? column : 0), valid);
      } else {
        const int step = static_cast<int>(sizeof(E));
        for (int byte = 0; byte < 16; byte += step) {
          const bool valid = place != kNoPlace && column + byte < row_bytes;
          for (int j = byte; j < byte + step; ++j) {
            to[j] = valid ? k_line[column + j] : 0;
            to[kTile * kPitch + j] = valid ? v_line[column + j] : 0;
          }
        }
      }
    }
  }

  // This lane's channels of the row's queries, times the scale.
  __device__ __forceinline__ void load_queries() {
    const bool is_f32 = shape_.q_dtype == DType::kF32;
    const bool is_f16 = shape_.q_dtype == DType::kF16;
    TRIPHASE_UNROLL
    for (int g = 0; g < G; ++g) {
      const int head = first_head_ + g;
      const std::int64_t at =
          sequence_ * shape_.q_stride +
          static_cast<std::int64_t>(head_ * shape_.group + head) * shape_.head_dim + channel();
      TRIPHASE_UNROLL
      for (int i = 0; i < kGatherVector; ++i) {
        float value = 0.0F;
        if (head < shape_.group && channel() + i < shape_.head_dim) {
          if (is_f32) {
            value = static_cast<const float*>(shape_.q)[at + i];
          } else {
            const unsigned bits = static_cast<const std::uint16_t*>(shape_.q)[at + i];
            value = is_f16 ? unpack2<Half>(bits).x : bits_float(bits << 16);
          }
        }
        q_[g][i] = value * shape_.log2_scale;
      }
    }
  }

  // For codes: lambda and zero of this lane's channels; the keys' lambda goes into the queries.
  __device__ __forceinline__ void load_scales(int scale_page) {
    loaded_scale_page_ = scale_page;
    const std::int64_t stride = static_cast<std::int64_t>(shape_.head_dim);
    const float* k_scales =
        shape_.scales +
        (static_cast<std::int64_t>(scale_page) * 2 * shape_.kv_heads + head_) * 2 * stride;
    const float* v_scales = k_scales + shape_.kv_heads * 2 * stride;
    load_queries();
    TRIPHASE_UNROLL
    for (int i = 0; i < kGatherVector; ++i) {
      const int c = channel() + i;
      const bool valid = c < shape_.head_dim;
      const float k_lambda = valid ? k_scales[c] : 0.0F;
      k_zero_[i] = 8388608.0F + (valid ? k_scales[stride + c] : 0.0F);
      v_lambda_[i] = valid ? v_scales[c] : 0.0F;
      v_zero_[i] = 8388608.0F + (valid ? v_scales[stride + c] : 0.0F);
      TRIPHASE_UNROLL
      for (int g = 0; g < G; ++g) q_[g][i] *= k_lambda;
    }
  }

  __device__ __forceinline__ int channel() const { return lane_id() % kLanes * kGatherVector; }

  // Scores, softmax and output of one tile. `valid`: bit per token; `scale_page`: of lane's token.
  __device__ __forceinline__ void compute_tile(const unsigned char* stage, unsigned valid,
                                               int scale_page, int ordinal) {
    const int in_group = lane_id() / kLanes;
    TRIPHASE_NO_UNROLL
    for (int batch = 0; batch < kSteps; batch += kBatch) {
      const int first = batch * kGroups + in_group;  // then every kGroups-th token
      unsigned mine = 0;                             // bit u: the batch's token u is there
      TRIPHASE_UNROLL
      for (int u = 0; u < kBatch; ++u) mine |= (valid >> (first + u * kGroups) & 1U) << u;
      if constexpr (!kCodes) {
        compute_batch(stage, first, mine, kWholeBatch, ordinal);
      } else {
        // One pass per block of tokens, nearly always one: all lanes go through every pass.
        int pages[kBatch];
        TRIPHASE_UNROLL
        for (int u = 0; u < kBatch; ++u) {
          pages[u] = shuffle(scale_page, first + u * kGroups);
        }
        unsigned left = kWholeBatch;
        while (ballot(left != 0) != 0) {
          int page = loaded_scale_page_;
          TRIPHASE_UNROLL
          for (int u = kBatch - 1; u >= 0; --u) {
            if ((left & mine) >> u & 1U) page = pages[u];
          }
          if (page != loaded_scale_page_) load_scales(page);
          unsigned pass = left & ~mine;  // what is not there is done with the first pass
          TRIPHASE_UNROLL
          for (int u = 0; u < kBatch; ++u) {
            if (pages[u] == page) pass |= left & mine & 1U << u;
          }
          compute_batch(stage, first, mine & pass, pass, ordinal);
          left &= ~pass;
        }
      }
    }
  }

  // The batch's tokens in `mine`; those of `done` get their logits written.
  __device__ __forceinline__ void compute_batch(const unsigned char* stage, int first,
                                                unsigned mine, unsigned done, int ordinal) {
    const unsigned char* line = stage + channel() * static_cast<int>(sizeof(E));
    float score[kBatch][G];
    TRIPHASE_UNROLL
    for (int u = 0; u < kBatch; ++u) {
      float key[kGatherVector];
      load_vector<E>(line + (first + u * kGroups) * kPitch, key);
      if constexpr (kCodes) {
        TRIPHASE_UNROLL
        for (int i = 0; i < kGatherVector; ++i) key[i] -= k_zero_[i];
      }
      TRIPHASE_UNROLL
      for (int g = 0; g < G; ++g) {
        float sum = 0.0F;
        TRIPHASE_UNROLL
        for (int i = 0; i < kGatherVector; ++i) sum = fma_rn(q_[g][i], key[i], sum);
        TRIPHASE_UNROLL
        for (int step = kLanes / 2; step > 0; step /= 2) sum += shuffle_xor(sum, step);
        score[u][g] = (mine >> u & 1U) != 0 ? sum : -INFINITY;
      }
    }
    if (shape_.logits != nullptr) {
      TRIPHASE_UNROLL
      for (int u = 0; u < kBatch; ++u) {
        if ((done >> u & 1U) == 0) continue;
        write_logits(score[u], ordinal + first + u * kGroups, (mine >> u & 1U) != 0);
      }
    }
    TRIPHASE_UNROLL
    for (int g = 0; g < G; ++g) update_softmax(g, score);
    TRIPHASE_UNROLL
    for (int u = 0; u < kBatch; ++u) {
      float value[kGatherVector];
      load_vector<E>(line + (kTile + first + u * kGroups) * kPitch, value);
      if constexpr (kCodes) {
        TRIPHASE_UNROLL
        for (int i = 0; i < kGatherVector; ++i) value[i] = (value[i] - v_zero_[i]) * v_lambda_[i];
      }
      TRIPHASE_UNROLL
      for (int g = 0; g < G; ++g) {
        TRIPHASE_UNROLL
        for (int i = 0; i < kGatherVector; ++i) {
          output_[g][i] = fma_rn(score[u][g], value[i], output_[g][i]);
        }
      }
    }
  }

  // Turns a batch's scores into weights relative to the new maximum.
  __device__ __forceinline__ void update_softmax(int g, float (&score)[kBatch][G]) {
    float maximum = max_[g];
    TRIPHASE_UNROLL
    for (int u = 0; u < kBatch; ++u) maximum = larger(maximum, score[u][g]);
    const float finite = maximum == -INFINITY ? 0.0F : maximum;
    if (maximum != max_[g]) {
      const float rescale = exp2_fast(max_[g] - finite);
      sum_[g] *= rescale;
      TRIPHASE_UNROLL
      for (int i = 0; i < kGatherVector; ++i) output_[g][i] *= rescale;
      max_[g] = maximum;
    }
    TRIPHASE_UNROLL
    for (int u = 0; u < kBatch; ++u) {
      score[u][g] = exp2_fast(score[u][g] - finite);
      sum_[g] += score[u][g];
    }
  }

  __device__ __forceinline__ void write_logits(const float (&score)[G], int ordinal,
                                               bool is_valid) const {
    if (lane_id() % kLanes != 0 || ordinal >= end_ || (shape_.open_block && !is_valid)) return;
    TRIPHASE_UNROLL
    for (int g = 0; g < G; ++g) {
      const int head = first_head_ + g;
      if (head >= shape_.group) continue;
      shape_
          .logits[(static_cast<std::int64_t>(row_) * shape_.group + head) * shape_.logit_capacity +
                  ordinal] = score[g] * (1.0F / kLog2E);
    }
  }

  __device__ __forceinline__ void attend(int row, int begin, int end, int result) {
    row_ = row;
    sequence_ = row / shape_.kv_heads;
    head_ = row % shape_.kv_heads;
    end_ = end;
    const int length = shape_.lengths[sequence_];
    open_begin_ = length > 0 ? ((length - 1) >> shape_.page_shift) << shape_.page_shift : 0;
    loaded_scale_page_ = -1;
    TRIPHASE_UNROLL
    for (int g = 0; g < G; ++g) {
      max_[g] = -INFINITY;
      sum_[g] = 0.0F;
      TRIPHASE_UNROLL
      for (int i = 0; i < kGatherVector; ++i) output_[g][i] = 0.0F;
    }
    if constexpr (kCodes) {
      // Queries come with the scales of the first block.
      TRIPHASE_UNROLL
      for (int i = 0; i < kGatherVector; ++i) {
        k_zero_[i] = v_zero_[i] = 8388608.0F;
        v_lambda_[i] = 0.0F;
        TRIPHASE_UNROLL
        for (int g = 0; g < G; ++g) q_[g][i] = 0.0F;
      }
    } else {
      load_queries();
    }

    const int tiles = ceil_div(larger(0, end - begin), kTile);
    // Validity and scale pages of the tiles under way: [0] is the one to compute next.
    unsigned valid[kGatherStages - 1];
    int scale_page[kGatherStages - 1];
    TRIPHASE_UNROLL
    for (int i = 0; i < kGatherStages - 1; ++i) {
      valid[i] = 0;
      scale_page[i] = -1;
    }
    locate(begin + lane_id(), end);
    int read = 0;
    int write = 0;
    // The first rounds only start copies: one place in the code for each step.
    TRIPHASE_NO_UNROLL
    for (int tile = 1 - kGatherStages; tile < tiles; ++tile) {
      if (tile >= 0) copy_async_wait<kGatherStages - 2>();
      sync_warp();  // everybody's copies are here, and nobody reads the stage that comes next
      const unsigned next_valid = ballot(place_ != kNoPlace);
      const int next_scale_page = scale_page_;
      if (tile + kGatherStages - 1 < tiles) copy_tile(ring_ + write * kGatherStageBytes);
      copy_async_commit();
      // The places of the tile after that are looked up while this one is computed.
      locate(begin + (tile + kGatherStages) * kTile + lane_id(), end);
      if (tile >= 0) {
        compute_tile(ring_ + read * kGatherStageBytes, valid[0], scale_page[0],
                     begin + tile * kTile);
        read = read + 1 == kGatherStages ? 0 : read + 1;
      }
      TRIPHASE_UNROLL
      for (int i = 0; i + 1 < kGatherStages - 1; ++i) {
        valid[i] = valid[i + 1];
        scale_page[i] = scale_page[i + 1];
      }
      valid[kGatherStages - 2] = next_valid;
      scale_page[kGatherStages - 2] = next_scale_page;
      write = write + 1 == kGatherStages ? 0 : write + 1;
    }
    copy_async_wait<0>();
    sync_warp();  // the ring is free for the next row
    merge_groups();
    write_state(result);
  }

  // Joins the states of the lane groups; afterwards every group holds the whole.
  __device__ __forceinline__ void merge_groups() {
    TRIPHASE_UNROLL
    for (int step = kLanes; step < kWarpSize; step *= 2) {
      TRIPHASE_UNROLL
      for (int g = 0; g < G; ++g) {
        const float other_max = shuffle_xor(max_[g], step);
        const float maximum = larger(max_[g], other_max);
        const float finite = maximum == -INFINITY ? 0.0F : maximum;
        const float mine = exp2_fast(max_[g] - finite);
        const float other = exp2_fast(other_max - finite);
        sum_[g] = sum_[g] * mine + shuffle_xor(sum_[g], step) * other;
        TRIPHASE_UNROLL
        for (int i = 0; i < kGatherVector; ++i) {
          output_[g][i] = output_[g][i] * mine + shuffle_xor(output_[g][i], step) * other;
        }
        max_[g] = maximum;
      }
    }
  }

  __device__ __forceinline__ void write_state(int result) const {
    if (lane_id() >= kLanes) return;
    TRIPHASE_UNROLL
    for (int g = 0; g < G; ++g) {
      const int head = first_head_ + g;
      if (head >= shape_.group) continue;
      const std::int64_t at = static_cast<std::int64_t>(result) * shape_.group + head;
      if (lane_id() == 0) {
        shape_.max_sum[2 * at] = max_[g];
        shape_.max_sum[2 * at + 1] = sum_[g];
      }
      float* to = shape_.states + at * shape_.head_dim + channel();
      TRIPHASE_UNROLL
      for (int i = 0; i < kGatherVector; ++i) {
        if (channel() + i < shape_.head_dim) to[i] = output_[g][i];
      }
    }
  }

  const GatherShape& shape_;
  unsigned char* ring_;
  int first_head_;
  int row_ = 0;
  int sequence_ = 0;
  int head_ = 0;
  int end_ = 0;
  int open_begin_ = 0;
  int place_ = kNoPlace;
  int scale_page_ = -1;
  int loaded_scale_page_ = -1;
  float q_[G][kGatherVector];
  float k_zero_[kCodes ? kGatherVector : 1];
  float v_lambda_[kCodes ? kGatherVector : 1];
  float v_zero_[kCodes ? kGatherVector : 1];
  float max_[G];
  float sum_[G];
  float output_[G][kGatherVector];
};

// More query heads need more registers, so fewer blocks fit.
constexpr int gather_min_blocks(int group) { return group == 1 ? 4 : group == 4 ? 3 : 2; }

// A block is four independent warps; block y: query heads y * G onwards.
template <class E, int G, int kLanes>
__global__ void __launch_bounds__(kGatherWarps* kWarpSize, gather_min_blocks(G))
    gather_attn_kernel(const GatherShape shape) {
  TRIPHASE_DYNAMIC_SHARED(shared);
  const int warp_in_block = uniform_warp_id();
  const int part = static_cast<int>(blockIdx.x) * kGatherWarps + warp_in_block;
  if (part >= shape.part_count) return;
  GatherWarp<E, G, kLanes> warp(shape, shared + warp_in_block * kGatherStages * kGatherStageBytes,
                                static_cast<int>(blockIdx.y) * G);
  warp.run_part(part);
}

template <class E, int G, int kLanes>
void launch_gather(const GatherShape& shape, StreamHandle stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(shape.part_count, kGatherWarps)),
                  static_cast<unsigned>(ceil_div(shape.group, G)));
  TRIPHASE_LAUNCH((gather_attn_kernel<E, G, kLanes>), grid, kGatherWarps * kWarpSize,
                  kGatherSharedBytes, stream, shape);
}

template <class E, int G>
void launch_gather_lanes(const GatherShape& shape, StreamHandle stream) {
  if (shape.head_dim <= 64) {
    launch_gather<E, G, 8>(shape, stream);
  } else if (shape.head_dim <= 128) {
    launch_gather<E, G, 16>(shape, stream);
  } else {
    launch_gather<E, G, 32>(shape, stream);
  }
}

template <class E>
void launch_gather_type(const GatherShape& shape, StreamHandle stream) {
  if (shape.group == 1) {
    launch_gather_lanes<E, 1>(shape, stream);
  } else if (shape.group <= 4) {
    launch_gather_lanes<E, 4>(shape, stream);
  } else {
    launch_gather_lanes<E, 8>(shape, stream);
  }
}

// One per element type, each in its own source file.
void launch_gather_f16(const GatherShape& shape, StreamHandle stream);
void launch_gather_bf16(const GatherShape& shape, StreamHandle stream);
void launch_gather_u8(const GatherShape& shape, StreamHandle stream);

}  // namespace triphase::cuda
