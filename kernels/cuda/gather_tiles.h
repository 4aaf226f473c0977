#pragma once

// gather_attn.h over 16-bit caches on tensor cores: eight query heads of a row are the narrow side
// of mma.m16n8k16, 16 tokens (scores) or 16 channels (output) the wide one. Even one head takes
// fewer instructions so than on the other cores (tools/check_kernel_loops.py). Included by one
// source file per element type so that they compile side by side. INT8: gather_codes.cu.
//
// Queries and softmax weights are F32; each goes into its product as the sum of two 16-bit terms,
// which keep 22 bits (F16; queries are scaled by a power of two per head, so that the range is no
// matter) or 16 (BF16).
//
// In the products' terms (dialect.h) a lane with row = lane / 4 and pair = 2 * (lane % 4) holds
//   scores   of tokens row and row + 8 for heads pair and pair + 1
//   outputs  of two channels for the same heads
// so what belongs to a head (maximum, sum, factors) is in every lane that needs it.

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/gather_walk.h"
#include "kernels/cuda/tensor_operands.h"

namespace triphase::cuda {

constexpr int kGatherTileTokens = static_cast<int>(kGatherMmaTokens);
constexpr int kGatherTileHeads = static_cast<int>(kGatherMmaHeads);

// kDim: channels, zeros from head_dim on.
template <class E, int kDim>
class GatherTiles
    : public GatherWalk<GatherTiles<E, kDim>, E, kDim * sizeof(E), kGatherTileTokens> {
  using Walk = GatherWalk<GatherTiles, E, kDim * sizeof(E), kGatherTileTokens>;
  friend Walk;
  using Walk::first_head_;
  using Walk::shape_;
  using T = E;
  static constexpr bool kHalf = std::is_same_v<E, Half>;
  static constexpr int kPitch = kDim * static_cast<int>(sizeof(E));
  static constexpr int kTerms = 2;
  static constexpr int kSteps = kDim / 16;    // products along a key
  static constexpr int kOutputs = kDim / 16;  // tiles of 16 channels
  // Whether scaled queries are kept in registers between the two times that they are wanted.
  static constexpr bool kHeld = kSteps <= 8;
  static constexpr int kRounds = kHeld ? kSteps : 2;
  // A weight of 1 counts as 2^10 in F16, so that small ones keep their bits: states are relative to
  // the maximum less this.
  static constexpr float kHeadroom = kHalf ? 10.0F : 0.0F;

 public:
  static constexpr int kQueryBytes = kTerms * kSteps * kWarpSize * 8;

  __device__ GatherTiles(const GatherShape& shape, unsigned char* shared, int first_head)
      : Walk(shape, shared, first_head), queries_(shared + kGatherStages * Walk::kStageBytes) {}

 private:
  static __device__ __forceinline__ int swizzle(int token) { return gather_swizzle<kPitch>(token); }
  // Where a token's piece lies in the lines of K or V. Those of other tokens and pieces are that of
  // a lane's first ones with constants put in: other_piece().
  static __device__ __forceinline__ int piece(int token, int chunk) {
    return token * kPitch + (chunk ^ swizzle(token)) * 16;
  }
  // `token` and `chunk`: further by so much, in bits that the first ones' do not have.
  static __device__ __forceinline__ int other_piece(int first, int token, int chunk) {
    return (first ^ (chunk ^ swizzle(token)) * 16) + token * kPitch;
  }
  // Which token the weights' product has at its place 0..15: the places of one lane are tokens 4
  // apart.
  static __device__ __forceinline__ int token_at(int place) {
    return (place & 8) | (place & 1) << 2 | (place >> 1 & 3);
  }
  // Channels of this lane in step `step` along a key, i = 0..3.
  static __device__ __forceinline__ int key_channel(int step, int i) {
    const int lane = lane_id() % 4;
    return step * 16 + 2 * lane + i % 2 + i / 2 * 8;
  }
  // Channels of this lane in an output tile, half = 0, 1.
  static __device__ __forceinline__ int output_channel(int tile, int half) {
    const int row = lane_id() / 4;
    return tile * 16 + row + 8 * half;
  }

  __device__ __forceinline__ void begin_heads() {
    TRIPHASE_UNROLL
    for (int head = 0; head < 2; ++head) {
      top_[head] = -INFINITY;
      sum_[head] = 0.0F;
      factor_[head] = 1.0F;
    }
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kOutputs; ++tile) {
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) sums_[tile][i] = 0.0F;
    }
    store_queries();
  }

  // Four channels of this lane's column, lane / 4, in a step along a key. What a column without a
  // head gets is nobody's score.
  __device__ __forceinline__ void load_queries(int step, float (&value)[4]) const {
    const float* from = this->queries_of(smaller(first_head_ + lane_id() / 4, shape_.group - 1));
    TRIPHASE_UNROLL
    for (int half = 0; half < 4; half += 2) {
      uint2 query = make_uint2(0U, 0U);
      if (key_channel(step, half) < shape_.cache.head_dim) {
        query = load8(from + key_channel(step, half));
      }
      value[half] = bits_float(query.x);
      value[half + 1] = bits_float(query.y);
    }
  }

  // The queries as this lane gives them to the products (only it reads them again). Then what its
  // own scores, of the columns pair and pair + 1, need.
  __device__ __forceinline__ void store_queries() {
    float held[kHeld ? kSteps : 1][4];
    float most = 0.0F;
    TRIPHASE_UNROLL_BY(kRounds)
    for (int step = 0; step < kSteps; ++step) {
      float(&value)[4] = held[kHeld ? step : 0];
      load_queries(step, value);
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) most = largest(most, fabsf(value[i]));
    }
    float scale = 1.0F;
    float factor = 1.0F;
    if constexpr (kHalf) {
      // The power of two that brings the largest to 2^14..2^15, and its inverse.
      most = warp_max(most, 4);
      const int field = smaller(268 - static_cast<int>(float_bits(most) >> 23), 253);
      scale = bits_float(static_cast<unsigned>(field) << 23);
      factor = bits_float(static_cast<unsigned>(254 - field) << 23);
    }
    TRIPHASE_UNROLL_BY(kRounds)
    for (int step = 0; step < kSteps; ++step) {
      float(&value)[4] = held[kHeld ? step : 0];
      if constexpr (!kHeld) load_queries(step, value);
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) value[i] *= scale;
      TRIPHASE_UNROLL
      for (int term = 0; term < kTerms; ++term) {
        uint2 words;
        words.x = take_term<T>(value[0], value[1]);
        words.y = take_term<T>(value[2], value[3]);
        store8(query_words(step, term), words);
      }
    }
    // The softmax's factor too, which queries are read without.
    factor *= shape_.q.log2_scale;
    const int pair = lane_id() % 4 * 2;
    TRIPHASE_UNROLL
    for (int i = 0; i < 2; ++i) factor_[i] = shuffle(factor, (pair + i) * 4);
  }

  __device__ __forceinline__ unsigned char* query_words(int step, int term) const {
    return queries_ + ((term * kSteps + step) * kWarpSize + lane_id()) * 8;
  }

  // Over the lanes that hold other tokens of the same heads.
  static __device__ __forceinline__ float sum_over_tokens(float value) {
    TRIPHASE_UNROLL
    for (int step = 4; step < kWarpSize; step *= 2) value += shuffle_xor(value, step);
    return value;
  }

  __device__ __forceinline__ void compute_tile(const unsigned char* stage, unsigned valid,
                                               int ordinal) {
    if (valid == 0) return;
    float score[4] = {};
    float rest[4] = {};
    TRIPHASE_UNROLL_BY(4)
    for (int step = 0; step < kSteps; ++step) {
      unsigned key[4];
      load_keys(stage, step, key);
      const uint2 leading = load_shared8(query_words(step, 0));
      const uint2 trailing = load_shared8(query_words(step, 1));
      multiply_tiles<T>(score, key, {leading.x, leading.y});
      multiply_tiles<T>(rest, key, {trailing.x, trailing.y});
    }
    TRIPHASE_UNROLL
    for (int i = 0; i < 4; ++i) score[i] = (score[i] + rest[i]) * factor_[i % 2];
    this->cap(score);
    TRIPHASE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int token = lane_id() / 4 + i / 2 * 8;
      const bool counts = (valid >> token & 1U) != 0;
      if (!counts) score[i] = -INFINITY;
      if (counts && shape_.results.scores != nullptr) {
        this->write_score(first_head_ + lane_id() % 4 * 2 + i % 2, ordinal + token, score[i]);
      }
    }
    update_softmax(score);
    add_values(stage + kGatherTileTokens * kPitch, score);
  }

  __device__ __forceinline__ void load_keys(const unsigned char* lines, int step,
                                            unsigned (&key)[4]) const {
    const int lane = lane_id();
    load_matrices(key, lines + other_piece(piece(lane % 16, lane / 16), 0, 2 * step));
  }

  // Turns scores into weights relative to the new maximum.
  __device__ __forceinline__ void update_softmax(float (&score)[4]) {
    TRIPHASE_UNROLL
    for (int head = 0; head < 2; ++head) {
      float top = largest(score[head], score[head + 2]);
      TRIPHASE_UNROLL
      for (int step = 4; step < kWarpSize; step *= 2) top = largest(top, shuffle_xor(top, step));
      top = largest(top_[head], top - kHeadroom);
      // Heads that have seen nothing yet keep weights of 0, not exp of (inf - inf).
      const float base = top == -INFINITY ? 0.0F : top;
      if (top != top_[head]) {
        rescale(head, exp2_fast(top_[head] - base));
        top_[head] = top;
      }
      TRIPHASE_UNROLL
      for (int i = head; i < 4; i += 2) {
        score[i] = exp2_fast(score[i] - base);
        sum_[head] += score[i];
      }
    }
  }

  __device__ __forceinline__ void rescale(int head, float factor) {
    sum_[head] *= factor;
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kOutputs; ++tile) {
      TRIPHASE_UNROLL
      for (int i = head; i < 4; i += 2) {
        sums_[tile][i] *= factor;
      }
    }
  }

  __device__ __forceinline__ void add_values(const unsigned char* lines, float (&weight)[4]) {
    const int lane = lane_id();
    // From tokens by rows to heads by rows: this lane's weights are of head lane / 4.
    const int from = lane % 4 * 4 + lane / 8;
    const unsigned half = lane / 4 % 2 != 0 ? 0x7632U : 0x5410U;
    unsigned weights[kTerms][2];
    TRIPHASE_UNROLL
    for (int term = 0; term < kTerms; ++term) {
      TRIPHASE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const unsigned word = take_term<T>(weight[2 * i], weight[2 * i + 1]);
        weights[term][i] = byte_permute(shuffle(word, from), shuffle(word, from + 16), half);
      }
    }
    const int first = piece(token_at(lane % 8 + lane / 16 * 8), lane / 8 % 2);
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kOutputs; ++tile) {
      unsigned value[4];
      load_matrices_transposed(value, lines + other_piece(first, 0, 2 * tile));
      TRIPHASE_UNROLL
      for (int term = 0; term < kTerms; ++term) {
        multiply_tiles<T>(sums_[tile], value, weights[term]);
      }
    }
  }

  __device__ __forceinline__ void end_row(int result) {
    TRIPHASE_UNROLL
    for (int i = 0; i < 2; ++i) sum_[i] = sum_over_tokens(sum_[i]);
    TRIPHASE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int head = first_head_ + lane_id() % 4 * 2 + i;
      if (head >= shape_.group) continue;
      const std::int64_t at = static_cast<std::int64_t>(result) * shape_.group + head;
      if (lane_id() < 4) {
        shape_.results.max_sum[2 * at] = top_[i];
        shape_.results.max_sum[2 * at + 1] = sum_[i];
      }
      float* to = shape_.results.states + at * shape_.cache.head_dim;
      TRIPHASE_UNROLL
      for (int tile = 0; tile < kOutputs; ++tile) {
        TRIPHASE_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int channel = output_channel(tile, half);
          if (channel < shape_.cache.head_dim) to[channel] = sums_[tile][2 * half + i];
        }
      }
    }
  }

  unsigned char* queries_;  // [term][step][lane], 8 bytes each
  // State of columns pair and pair + 1.
  float top_[2];             // maximum less kHeadroom
  float sum_[2];             // over this lane's tokens
  float factor_[2];          // undoes the queries' scale
  float sums_[kOutputs][4];  // the output
};

template <class E, int kDim>
constexpr int kGatherBlocks = static_cast<int>(gather_mma_blocks(kDim));

// A block is one warp; block y: query heads y * 8 onwards.
template <class E, int kDim>
__global__ void __launch_bounds__(kWarpSize, kGatherBlocks<E, kDim>)
    gather_tiles_kernel(const GatherShape shape) {
  TRIPHASE_DYNAMIC_SHARED(shared);
  GatherTiles<E, kDim> warp(shape, shared, static_cast<int>(blockIdx.y) * kGatherTileHeads);
  run_gather_part(warp, static_cast<int>(blockIdx.x));
}

template <class E, int kDim>
void launch_gather_tiles(const GatherShape& shape, StreamHandle stream) {
  constexpr auto kBytes = static_cast<int>(gather_mma_block_bytes(kDim));
  static_assert(kBytes == kGatherStages * GatherTiles<E, kDim>::kStageBytes +
                              GatherTiles<E, kDim>::kQueryBytes);
  allow_gather_bytes(&gather_tiles_kernel<E, kDim>, kBytes, shape);
  // The launch for full blocks writes other results than that for partial ones.
  TRIPHASE_LAUNCH((gather_tiles_kernel<E, kDim>), gather_grid(shape, kGatherTileHeads), kWarpSize,
                  kBytes, LaunchOn(stream, shape.partial_block), shape);
}

template <class E>
void launch_gather_type(const GatherShape& shape, StreamHandle stream) {
  for_head_dim(shape.cache.head_dim,
               [&]<int kDim>() { launch_gather_tiles<E, kDim>(shape, stream); });
}

}  // namespace triphase::cuda
