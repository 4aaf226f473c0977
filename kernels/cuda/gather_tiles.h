#pragma once

// gather_attn.h on tensor cores, for three and more query heads of a row: eight heads are the
// narrow side of mma.m16n8k16, 16 tokens (scores) or 16 channels (output) the wide one. Included by
// one source file per element type so that they compile side by side.
//
// Queries and softmax weights are F32; each goes into its product as the sum of two 16-bit terms,
// which keep 22 bits (F16; queries are scaled by a power of two per head, so that the range is no
// matter) or 16 (BF16). INT8 codes are exact in F16: keys' lambda goes into the queries, keys' zero
// points into one constant per head and block, values' scales are applied once per block.
//
// In the products' terms (dialect.h) a lane with row = lane / 4 and pair = 2 * (lane % 4) holds
//   scores   of tokens row and row + 8 for heads pair and pair + 1
//   outputs  of two channels for the same heads
// so what belongs to a head (maximum, sum, factors) is in every lane that needs it.

#include "kernels/cuda/gather_walk.h"
#include "kernels/cuda/launch_check.h"

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
  using Walk::kCodes;
  using Walk::shape_;
  using T = std::conditional_t<std::is_same_v<E, BFloat16>, BFloat16, Half>;
  static constexpr bool kHalf = std::is_same_v<T, Half>;
  static constexpr int kPitch = kDim * static_cast<int>(sizeof(E));
  static constexpr int kTerms = 2;
  static constexpr int kSteps = kDim / 16;    // products along a key
  static constexpr int kOutputs = kDim / 16;  // tiles of 16 channels
  // A weight of 1 counts as 2^10 in F16, so that small ones keep their bits: states are relative to
  // the maximum less this.
  static constexpr float kHeadroom = kHalf ? 10.0F : 0.0F;

 public:
  static constexpr int kQueryBytes = kTerms * kSteps * kWarpSize * 8;

  __device__ GatherTiles(const GatherShape& shape, unsigned char* shared, int first_head)
      : Walk(shape, shared, first_head), queries_(shared + kGatherStages * Walk::kStageBytes) {}

 private:
  // Neighbouring tokens lie at different banks: for a product's eight rows, and for the four tokens
  // that lanes read two pieces of.
  static __device__ __forceinline__ int chunk_of(int token, int chunk) {
    if constexpr (kPitch >= 128) {
      return chunk ^ ((token & 3) << 1 | (token >> 2 & 1));
    } else {
      return chunk ^ ((token >> 1 & 1) << 1 | (token >> 2 & 1));
    }
  }
  static __device__ __forceinline__ const unsigned char* piece(const unsigned char* lines,
                                                               int token, int chunk) {
    return lines + token * kPitch + chunk_of(token, chunk) * 16;
  }
  // Which token the weights' product has at its place 0..15: the places of one lane are tokens 4
  // apart.
  static __device__ __forceinline__ int token_at(int place) {
    return (place & 8) | (place & 1) << 2 | (place >> 1 & 3);
  }
  // Channels of this lane in step `step` along a key, i = 0..3.
  static __device__ __forceinline__ int key_channel(int step, int i) {
    const int lane = lane_id() % 4;
    return step * 16 + (kCodes ? 4 * lane + i : 2 * lane + i % 2 + i / 2 * 8);
  }
  // Channels of this lane in an output tile, half = 0, 1.
  static __device__ __forceinline__ int output_channel(int tile, int half) {
    const int row = lane_id() / 4;
    return kCodes ? tile / 2 * 32 + 4 * row + tile % 2 * 2 + half : tile * 16 + row + 8 * half;
  }

  // Two of a word's codes as F16: 1024 + code by its bits, less 1024.
  static __device__ __forceinline__ unsigned half_codes(unsigned word, unsigned selector) {
    return subtract2_half(byte_permute(word, 0x64646464U, selector), 0x64006400U);
  }

  __device__ __forceinline__ void begin_row() {
    loaded_scale_page_ = -1;
    TRIPHASE_UNROLL
    for (int head = 0; head < 2; ++head) {
      top_[head] = -INFINITY;
      sum_[head] = block_sum_[head] = start_[head] = 0.0F;
      factor_[head] = 1.0F;
    }
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kOutputs; ++tile) {
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) {
        output_[tile][i] = 0.0F;
        if constexpr (kCodes) block_[tile][i] = 0.0F;
      }
    }
    if constexpr (!kCodes) store_queries(nullptr);
  }

  // The queries as this lane gives them to the products (only it reads them again), of head
  // lane / 4; for codes times lambda, `scales` being the block's. Then what its own scores, of the
  // heads pair and pair + 1, need.
  __device__ __forceinline__ void store_queries(const float* scales) {
    const int head = first_head_ + lane_id() / 4;
    const auto value_of = [&](int channel) {
      const float value = this->query(head, channel);
      if constexpr (!kCodes) return value;
      return channel < shape_.cache.head_dim ? value * scales[channel] : 0.0F;
    };
    float most = 0.0F;
    float start = 0.0F;
    TRIPHASE_NO_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int channel = key_channel(step, i);
        const float value = value_of(channel);
        most = larger(most, fabsf(value));
        if constexpr (kCodes) {
          if (channel < shape_.cache.head_dim) {
            start = fma_rn(-value, scales[shape_.cache.head_dim + channel], start);
          }
        }
      }
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
    TRIPHASE_NO_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      float value[4];
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) value[i] = value_of(key_channel(step, i)) * scale;
      TRIPHASE_UNROLL
      for (int term = 0; term < kTerms; ++term) {
        uint2 words;
        words.x = take_term(value[0], value[1]);
        words.y = take_term(value[2], value[3]);
        store8(query_words(step, term), words);
      }
    }
    const int pair = lane_id() % 4 * 2;
    if constexpr (kCodes) start = warp_sum(start, 4);
    TRIPHASE_UNROLL
    for (int i = 0; i < 2; ++i) {
      if constexpr (kHalf) factor_[i] = shuffle(factor, (pair + i) * 4);
      if constexpr (kCodes) start_[i] = shuffle(start, (pair + i) * 4);
    }
  }

  // The leading 16-bit terms of two values, which become what these leave.
  static __device__ __forceinline__ unsigned take_term(float& first, float& second) {
    const unsigned word = pack2<T>(first, second);
    const float2 taken = unpack2<T>(word);
    first -= taken.x;
    second -= taken.y;
    return word;
  }

  __device__ __forceinline__ unsigned char* query_words(int step, int term) const {
    return queries_ + ((term * kSteps + step) * kWarpSize + lane_id()) * 8;
  }

  // The values of the block at hand, with its scales, into the output.
  __device__ __forceinline__ void close_block() {
    float sum[2];
    TRIPHASE_UNROLL
    for (int head = 0; head < 2; ++head) {
      sum[head] = sum_over_tokens(block_sum_[head]);
      block_sum_[head] = 0.0F;
    }
    if (loaded_scale_page_ < 0) return;
    const float* scales = this->scales_of(loaded_scale_page_, 1);
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kOutputs; ++tile) {
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int channel = output_channel(tile, i / 2);
        if (channel < shape_.cache.head_dim) {
          const float value =
              fma_rn(-scales[shape_.cache.head_dim + channel], sum[i % 2], block_[tile][i]);
          output_[tile][i] = fma_rn(scales[channel], value, output_[tile][i]);
        }
        block_[tile][i] = 0.0F;
      }
    }
  }

  // Over the lanes that hold other tokens of the same heads.
  static __device__ __forceinline__ float sum_over_tokens(float value) {
    TRIPHASE_UNROLL
    for (int step = 4; step < kWarpSize; step *= 2) value += shuffle_xor(value, step);
    return value;
  }

  __device__ __forceinline__ void compute_tile(const unsigned char* stage, unsigned valid,
                                               int ordinal) {
    if (valid == 0 && shape_.results.logits == nullptr) return;
    if constexpr (!kCodes) {
      compute_pass(stage, valid, ~0U, ordinal);
    } else {
      // One pass per block of tokens, nearly always one.
      unsigned done = ~valid;
      unsigned left = valid;
      do {
        const int first = left == 0 ? 0 : first_bit(left);
        const int page = shuffle(this->scale_page_now_, first);
        const unsigned pass = ballot(this->scale_page_now_ == page) & left;
        if (ballot(left != 0 && page != loaded_scale_page_) != 0) {
          close_block();
          loaded_scale_page_ = page;
          store_queries(this->scales_of(page, 0));
        }
        done |= pass;
        compute_pass(stage, pass, done, ordinal);
        done = 0;
        left &= ~pass;
      } while (left != 0);
    }
  }

  // The tile's tokens in `mine`; those of `done` get their logits written.
  __device__ __forceinline__ void compute_pass(const unsigned char* stage, unsigned mine,
                                               unsigned done, int ordinal) {
    float score[4] = {};
    float rest[4] = {};
    TRIPHASE_UNROLL_FOUR
    for (int step = 0; step < kSteps; ++step) {
      unsigned key[4];
      load_keys(stage, step, key);
      const uint2 leading = load_shared8(query_words(step, 0));
      const uint2 trailing = load_shared8(query_words(step, 1));
      multiply_tiles<T>(score, key, {leading.x, leading.y});
      multiply_tiles<T>(rest, key, {trailing.x, trailing.y});
    }
    TRIPHASE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int token = lane_id() / 4 + i / 2 * 8;
      const bool is_mine = (mine >> token & 1U) != 0;
      const float sum = score[i] + rest[i];
      score[i] = is_mine ? fma_rn(sum, factor_[i % 2], start_[i % 2]) : -INFINITY;
      if (shape_.results.logits != nullptr && (done >> token & 1U) != 0) {
        this->write_logit(first_head_ + lane_id() % 4 * 2 + i % 2, ordinal + token, score[i],
                          is_mine);
      }
    }
    update_softmax(score);
    add_values(stage + kGatherTileTokens * kPitch, score);
  }

  __device__ __forceinline__ void load_keys(const unsigned char* lines, int step,
                                            unsigned (&key)[4]) const {
    const int lane = lane_id();
    if constexpr (kCodes) {
      TRIPHASE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const unsigned word = load_shared4(piece(lines, lane / 4 + 8 * half, step) + lane % 4 * 4);
        key[half] = half_codes(word, 0x4140U);
        key[half + 2] = half_codes(word, 0x4342U);
      }
    } else {
      load_matrices(key, piece(lines, lane % 16, 2 * step + lane / 16));
    }
  }

  // Turns scores into weights relative to the new maximum.
  __device__ __forceinline__ void update_softmax(float (&score)[4]) {
    TRIPHASE_UNROLL
    for (int head = 0; head < 2; ++head) {
      float top = larger(score[head], score[head + 2]);
      TRIPHASE_UNROLL
      for (int step = 4; step < kWarpSize; step *= 2) top = larger(top, shuffle_xor(top, step));
      top = larger(top_[head], top - kHeadroom);
      // Heads that have seen nothing yet keep weights of 0, not exp of (inf - inf).
      const float base = top == -INFINITY ? 0.0F : top;
      if (top != top_[head]) {
        const float rescale = exp2_fast(top_[head] - base);
        top_[head] = top;
        sum_[head] *= rescale;
        block_sum_[head] *= rescale;
        TRIPHASE_UNROLL
        for (int tile = 0; tile < kOutputs; ++tile) {
          TRIPHASE_UNROLL
          for (int i = head; i < 4; i += 2) {
            output_[tile][i] *= rescale;
            if constexpr (kCodes) block_[tile][i] *= rescale;
          }
        }
      }
      TRIPHASE_UNROLL
      for (int i = head; i < 4; i += 2) {
        score[i] = exp2_fast(score[i] - base);
        sum_[head] += score[i];
        if constexpr (kCodes) block_sum_[head] += score[i];
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
        const unsigned word = take_term(weight[2 * i], weight[2 * i + 1]);
        weights[term][i] = byte_permute(shuffle(word, from), shuffle(word, from + 16), half);
      }
    }
    if constexpr (kCodes) {
      TRIPHASE_UNROLL
      for (int pair = 0; pair < kOutputs / 2; ++pair) {
        // Four channels of tokens lane % 4, + 4, + 8, + 12.
        unsigned word[4];
        TRIPHASE_UNROLL
        for (int i = 0; i < 4; ++i) {
          word[i] =
              load_shared4(piece(lines, lane % 4 + 4 * i, pair * 2 + lane / 16) + lane / 4 % 4 * 4);
        }
        TRIPHASE_UNROLL
        for (int tile = 0; tile < 2; ++tile) {
          unsigned value[4];
          TRIPHASE_UNROLL
          for (int i = 0; i < 2; ++i) {
            const unsigned both =
                byte_permute(word[2 * i], word[2 * i + 1], tile == 0 ? 0x5140U : 0x7362U);
            value[2 * i] = half_codes(both, 0x4140U);
            value[2 * i + 1] = half_codes(both, 0x4342U);
          }
          TRIPHASE_UNROLL
          for (int term = 0; term < kTerms; ++term) {
            multiply_tiles<T>(block_[2 * pair + tile], value, weights[term]);
          }
        }
      }
    } else {
      const int token = token_at(lane % 8 + lane / 16 * 8);
      TRIPHASE_UNROLL
      for (int tile = 0; tile < kOutputs; ++tile) {
        unsigned value[4];
        load_matrices_transposed(value, piece(lines, token, 2 * tile + lane / 8 % 2));
        TRIPHASE_UNROLL
        for (int term = 0; term < kTerms; ++term) {
          multiply_tiles<T>(output_[tile], value, weights[term]);
        }
      }
    }
  }

  __device__ __forceinline__ void end_row(int result) {
    if constexpr (kCodes) close_block();
    TRIPHASE_UNROLL
    for (int head = 0; head < 2; ++head) sum_[head] = sum_over_tokens(sum_[head]);
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
          if (channel < shape_.cache.head_dim) to[channel] = output_[tile][2 * half + i];
        }
      }
    }
  }

  unsigned char* queries_;  // [term][step][lane], 8 bytes each
  int loaded_scale_page_ = -1;
  // State of heads pair and pair + 1.
  float top_[2];     // maximum less kHeadroom
  float sum_[2];     // over this lane's tokens
  float factor_[2];  // undoes the queries' scale
  float start_[2];   // codes: what the zero points add to every score of the block
  float block_sum_[2];
  float output_[kOutputs][4];
  float block_[kCodes ? kOutputs : 1][4];  // codes: weighted sums of the block at hand
};

// A block is one warp; block y: query heads y * 8 onwards.
template <class E, int kDim>
__global__ void __launch_bounds__(kWarpSize, static_cast<int>(gather_mma_blocks(kDim)))
    gather_tiles_kernel(const GatherShape shape) {
  TRIPHASE_DYNAMIC_SHARED(shared);
  GatherTiles<E, kDim> warp(shape, shared, static_cast<int>(blockIdx.y) * kGatherTileHeads);
  warp.run_part(static_cast<int>(blockIdx.x));
}

template <class E, int kDim>
void launch_gather_tiles(const GatherShape& shape, StreamHandle stream) {
  constexpr auto kBytes =
      static_cast<std::size_t>(gather_mma_block_bytes(kDim, static_cast<int>(sizeof(E))));
  static_assert(kBytes == kGatherStages * GatherTiles<E, kDim>::kStageBytes +
                              GatherTiles<E, kDim>::kQueryBytes);
  const dim3 grid(static_cast<unsigned>(shape.part_count),
                  static_cast<unsigned>(ceil_div(shape.group, kGatherTileHeads)));
  allow_shared_bytes(&gather_tiles_kernel<E, kDim>, kBytes, "gather_attn", [&] {
    return shape_text({{"rows", shape.rows},
                       {"group", shape.group},
                       {"head_dim", shape.cache.head_dim},
                       {"parts", shape.part_count}});
  });
  TRIPHASE_LAUNCH((gather_tiles_kernel<E, kDim>), grid, kWarpSize, kBytes, stream, shape);
}

}  // namespace triphase::cuda
