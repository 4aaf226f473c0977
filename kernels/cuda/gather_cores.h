#pragma once

// gather_attn.h on CUDA cores, for one or two query heads of a row: memory's speed asks for little
// arithmetic there. Included by one source file per element type so that they compile side by side.
//
// A warp streams tiles of 4 KiB (K and V of 4 to 32 tokens). Scores are summed over the lanes that
// share a token; each group of lanes keeps its own running (max, sum, output), merged at the end of
// a row. Codes are used as code - zero (exact), with lambda folded into the query for keys.

#include "kernels/cuda/gather_walk.h"

namespace triphase::cuda {

constexpr int kGatherWarps = static_cast<int>(kGatherCoreWarps);
constexpr int kGatherCoreStage = static_cast<int>(kGatherCoreStageBytes);
constexpr int kGatherVector = 8;  // channels of one lane

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

// Tokens of a stage with so many bytes each.
constexpr int gather_core_tokens(int pitch) { return kGatherCoreStage / (2 * pitch); }

// G: query heads at a time; kLanes: lanes per token, each with 8 channels.
template <class E, int G, int kLanes>
class GatherCores
    : public GatherWalk<GatherCores<E, G, kLanes>, E, kLanes * kGatherVector * sizeof(E),
                        gather_core_tokens(kLanes* kGatherVector * sizeof(E))> {
  using Walk = GatherWalk<GatherCores, E, kLanes * kGatherVector * sizeof(E),
                          gather_core_tokens(kLanes* kGatherVector * sizeof(E))>;
  friend Walk;
  using Walk::first_head_;
  using Walk::kCodes;
  using Walk::kTile;
  using Walk::shape_;
  static constexpr int kPitch = kLanes * kGatherVector * static_cast<int>(sizeof(E));
  static constexpr int kGroups = kWarpSize / kLanes;  // tokens side by side
  static constexpr int kSteps = kTile / kGroups;
  // Tokens of one lane group between updates of its maximum; fewer where registers are short.
  static constexpr int kBatch = kCodes && G > 1 ? 2 : 4;
  static constexpr unsigned kWholeBatch = (1U << kBatch) - 1;
  static_assert(kSteps % kBatch == 0);

 public:
  using Walk::Walk;

 private:
  static __device__ __forceinline__ int chunk_of(int, int chunk) { return chunk; }

  __device__ __forceinline__ void begin_row() {
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
  }

  __device__ __forceinline__ void end_row(int result) {
    merge_groups();
    write_state(result);
  }

  // This lane's channels of the row's queries, times the scale.
  __device__ __forceinline__ void load_queries() {
    TRIPHASE_UNROLL
    for (int g = 0; g < G; ++g) {
      TRIPHASE_UNROLL
      for (int i = 0; i < kGatherVector; ++i) {
        q_[g][i] = this->query(first_head_ + g, channel() + i);
      }
    }
  }

  // For codes: lambda and zero of this lane's channels; the keys' lambda goes into the queries.
  __device__ __forceinline__ void load_scales(int scale_page) {
    loaded_scale_page_ = scale_page;
    const float* k_scales = this->scales_of(scale_page, 0);
    const float* v_scales = this->scales_of(scale_page, 1);
    load_queries();
    TRIPHASE_UNROLL
    for (int i = 0; i < kGatherVector; ++i) {
      const int c = channel() + i;
      const bool valid = c < shape_.cache.head_dim;
      const float k_lambda = valid ? k_scales[c] : 0.0F;
      k_zero_[i] = 8388608.0F + (valid ? k_scales[shape_.cache.head_dim + c] : 0.0F);
      v_lambda_[i] = valid ? v_scales[c] : 0.0F;
      v_zero_[i] = 8388608.0F + (valid ? v_scales[shape_.cache.head_dim + c] : 0.0F);
      TRIPHASE_UNROLL
      for (int g = 0; g < G; ++g) q_[g][i] *= k_lambda;
    }
  }

  __device__ __forceinline__ int channel() const { return lane_id() % kLanes * kGatherVector; }

  // Scores, softmax and output of one tile.
  __device__ __forceinline__ void compute_tile(const unsigned char* stage, unsigned valid,
                                               int ordinal) {
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
          pages[u] = shuffle(this->scale_page_now_, first + u * kGroups);
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
    if (shape_.results.logits != nullptr) {
      TRIPHASE_UNROLL
      for (int u = 0; u < kBatch; ++u) {
        if ((done >> u & 1U) == 0) continue;
        if (lane_id() % kLanes != 0) continue;
        TRIPHASE_UNROLL
        for (int g = 0; g < G; ++g) {
          this->write_logit(first_head_ + g, ordinal + first + u * kGroups, score[u][g],
                            (mine >> u & 1U) != 0);
        }
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
        shape_.results.max_sum[2 * at] = max_[g];
        shape_.results.max_sum[2 * at + 1] = sum_[g];
      }
      float* to = shape_.results.states + at * shape_.cache.head_dim + channel();
      TRIPHASE_UNROLL
      for (int i = 0; i < kGatherVector; ++i) {
        if (channel() + i < shape_.cache.head_dim) to[i] = output_[g][i];
      }
    }
  }

  int loaded_scale_page_ = -1;
  float q_[G][kGatherVector];
  float k_zero_[kCodes ? kGatherVector : 1];
  float v_lambda_[kCodes ? kGatherVector : 1];
  float v_zero_[kCodes ? kGatherVector : 1];
  float max_[G];
  float sum_[G];
  float output_[G][kGatherVector];
};

// A block is independent warps; block y: query heads y * G onwards.
template <class E, int G, int kLanes>
__global__ void __launch_bounds__(kGatherWarps* kWarpSize, static_cast<int>(gather_core_blocks(G)))
    gather_cores_kernel(const GatherShape shape) {
  TRIPHASE_DYNAMIC_SHARED(shared);
  const int warp_in_block = uniform_warp_id();
  const int part = static_cast<int>(blockIdx.x) * kGatherWarps + warp_in_block;
  if (part >= shape.part_count) return;
  GatherCores<E, G, kLanes> warp(shape, shared + warp_in_block * kGatherStages * kGatherCoreStage,
                                 static_cast<int>(blockIdx.y) * G);
  warp.run_part(part);
}

template <class E, int G, int kLanes>
void launch_gather_cores(const GatherShape& shape, StreamHandle stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(shape.part_count, kGatherWarps)),
                  static_cast<unsigned>(ceil_div(shape.group, G)));
  TRIPHASE_LAUNCH((gather_cores_kernel<E, G, kLanes>), grid, kGatherWarps * kWarpSize,
                  static_cast<std::size_t>(kGatherCoreBlockBytes), stream, shape);
}

}  // namespace triphase::cuda
