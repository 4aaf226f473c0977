#pragma once

// gather_attn.h on tensor cores: eight query heads of a row are the narrow side of mma.m16n8k16, 16
// tokens (scores) or 16 channels (output) the wide one. Even one head takes fewer instructions so
// than on the other cores (tools/check_kernel_loops.py), most of them for INT8. Included by one
// source file per element type so that they compile side by side.
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
  using Walk::kCodes;
  using Walk::shape_;
  using T = std::conditional_t<std::is_same_v<E, BFloat16>, BFloat16, Half>;
  static constexpr bool kHalf = std::is_same_v<T, Half>;
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
  // What an element counts in the products.
  static constexpr float kUnit = kCodes ? kCodeUnit : 1.0F;

 public:
  static constexpr int kQueryBytes = kTerms * kSteps * kWarpSize * 8;
  static constexpr int kOutputBytes = kCodes ? kOutputs * kWarpSize * 16 : 0;

  __device__ GatherTiles(const GatherShape& shape, unsigned char* shared, int first_head)
      : Walk(shape, shared, first_head), queries_(shared + kGatherStages * Walk::kStageBytes) {}

 private:
  // Neighbouring tokens lie at different banks: for a product's eight rows, and for the four tokens
  // that lanes read two pieces of.
  static __device__ __forceinline__ int swizzle(int token) {
    if constexpr (kPitch >= 128) return (token & 3) << 1 | (token >> 2 & 1);
    return (token >> 1 & 1) << 1 | (token >> 2 & 1);
  }
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
    return step * 16 + (kCodes ? 4 * lane + i : 2 * lane + i % 2 + i / 2 * 8);
  }
  // Channels of this lane in an output tile, half = 0, 1.
  static __device__ __forceinline__ int output_channel(int tile, int half) {
    const int row = lane_id() / 4;
    return kCodes ? tile / 2 * 32 + 4 * row + tile % 2 * 2 + half : tile * 16 + row + 8 * half;
  }

  __device__ __forceinline__ void begin_row() {
    loaded_page_ = -1;
    TRIPHASE_UNROLL
    for (int head = 0; head < 2; ++head) {
      top_[head] = closed_top_[head] = -INFINITY;
      sum_[head] = block_sum_[head] = start_[head] = 0.0F;
      factor_[head] = 1.0F;
    }
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kOutputs; ++tile) {
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) sums_[tile][i] = 0.0F;
      if constexpr (kCodes) store16(output_words(tile / 2, tile % 2), make_uint4(0U, 0U, 0U, 0U));
    }
    if constexpr (!kCodes) store_queries();
  }

  // Columns of a head, and heads of a block, lie side by side.
  __device__ __forceinline__ int head_of(int column) const {
    return first_head_ + (column & ((1 << shape_.head_shift) - 1));
  }
  __device__ __forceinline__ int slot_of(int column) const { return column >> shape_.head_shift; }

  // Four channels of this lane's column, lane / 4, in a step along a key, for codes times the
  // block's lambda. What a column without a head or block gets is nobody's score.
  __device__ __forceinline__ void load_queries(int step, const float* scales,
                                               float (&value)[4]) const {
    const float* from = this->queries_of(smaller(head_of(lane_id() / 4), shape_.group - 1));
    if constexpr (kCodes) {
      uint4 query = make_uint4(0U, 0U, 0U, 0U);
      uint4 lambda = query;
      if (key_channel(step, 0) < shape_.cache.head_dim) {
        query = load16(from + key_channel(step, 0));
        lambda = load16(scales + key_channel(step, 0));
      }
      value[0] = bits_float(query.x) * bits_float(lambda.x);
      value[1] = bits_float(query.y) * bits_float(lambda.y);
      value[2] = bits_float(query.z) * bits_float(lambda.z);
      value[3] = bits_float(query.w) * bits_float(lambda.w);
    } else {
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
  }

  // The queries as this lane gives them to the products (only it reads them again). Then what its
  // own scores, of the columns pair and pair + 1, need.
  __device__ __forceinline__ void store_queries() {
    const float* scales = nullptr;  // [lambda, zero][head_dim]
    if constexpr (kCodes) scales = this->scales_of(larger(loaded_page_, 0), 0);
    float held[kHeld ? kSteps : 1][4];
    float most = 0.0F;
    float start = 0.0F;
    TRIPHASE_UNROLL_BY(kRounds)
    for (int step = 0; step < kSteps; ++step) {
      float(&value)[4] = held[kHeld ? step : 0];
      load_queries(step, scales, value);
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) most = larger(most, fabsf(value[i]));
      if constexpr (kCodes) {
        uint4 zero = make_uint4(0U, 0U, 0U, 0U);
        if (key_channel(step, 0) < shape_.cache.head_dim) {
          zero = load16(scales + shape_.cache.head_dim + key_channel(step, 0));
        }
        start = fma_rn(-value[0], bits_float(zero.x), start);
        start = fma_rn(-value[1], bits_float(zero.y), start);
        start = fma_rn(-value[2], bits_float(zero.z), start);
        start = fma_rn(-value[3], bits_float(zero.w), start);
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
    TRIPHASE_UNROLL_BY(kRounds)
    for (int step = 0; step < kSteps; ++step) {
      float(&value)[4] = held[kHeld ? step : 0];
      if constexpr (!kHeld) load_queries(step, scales, value);
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
    factor *= shape_.q.log2_scale / kUnit;
    if constexpr (kCodes) start = warp_sum(start, 4) * shape_.q.log2_scale;
    const int pair = lane_id() % 4 * 2;
    TRIPHASE_UNROLL
    for (int i = 0; i < 2; ++i) {
      factor_[i] = shuffle(factor, (pair + i) * 4);
      if constexpr (kCodes) start_[i] = shuffle(start, (pair + i) * 4);
    }
  }

  __device__ __forceinline__ unsigned char* query_words(int step, int term) const {
    return queries_ + ((term * kSteps + step) * kWarpSize + lane_id()) * 8;
  }

  // Codes: this lane's outputs of channels output_channel(2 * pair, 0..) in column `column`.
  __device__ __forceinline__ unsigned char* output_words(int pair, int column) const {
    return queries_ + kQueryBytes + ((pair * 2 + column) * kWarpSize + lane_id()) * 16;
  }

  // The weighted sums of the columns' blocks, with their scales, into the output, which counts in
  // units of kUnit.
  __device__ __forceinline__ void close_blocks() {
    TRIPHASE_UNROLL
    for (int column = 0; column < 2; ++column) {
      const float sum = sum_over_tokens(block_sum_[column]) * kUnit;
      block_sum_[column] = 0.0F;
      // The output counts from the maximum it was last made with.
      const float base = top_[column] == -INFINITY ? 0.0F : top_[column];
      const float factor = exp2_fast(closed_top_[column] - base);
      closed_top_[column] = top_[column];
      const int page = shuffle(loaded_page_, (lane_id() % 4 * 2 + column) * 4);
      const float* scales = this->scales_of(larger(page, 0), 1);
      TRIPHASE_UNROLL
      for (int pair = 0; pair < kOutputs / 2; ++pair) {
        const int channel = output_channel(2 * pair, 0);
        if (page < 0 || channel >= shape_.cache.head_dim) continue;
        const uint4 lambda = load16(scales + channel);
        const uint4 zero = load16(scales + shape_.cache.head_dim + channel);
        float(&low)[4] = sums_[2 * pair];
        float(&high)[4] = sums_[2 * pair + 1];
        uint4 output = load_shared16(output_words(pair, column));
        add_block(lambda.x, zero.x, sum, factor, low[column], output.x);
        add_block(lambda.y, zero.y, sum, factor, low[column + 2], output.y);
        add_block(lambda.z, zero.z, sum, factor, high[column], output.z);
        add_block(lambda.w, zero.w, sum, factor, high[column + 2], output.w);
        store16(output_words(pair, column), output);
      }
    }
  }

  static __device__ __forceinline__ void add_block(unsigned lambda, unsigned zero, float sum,
                                                   float factor, float& block, unsigned& output) {
    const float value = fma_rn(-bits_float(zero), sum, block);
    output = float_bits(fma_rn(bits_float(lambda), value, factor * bits_float(output)));
    block = 0.0F;
  }

  // The finished output, where it is without codes.
  __device__ __forceinline__ void load_output() {
    TRIPHASE_UNROLL
    for (int pair = 0; pair < kOutputs / 2; ++pair) {
      TRIPHASE_UNROLL
      for (int column = 0; column < 2; ++column) {
        const uint4 output = load_shared16(output_words(pair, column));
        sums_[2 * pair][column] = bits_float(output.x) / kUnit;
        sums_[2 * pair][column + 2] = bits_float(output.y) / kUnit;
        sums_[2 * pair + 1][column] = bits_float(output.z) / kUnit;
        sums_[2 * pair + 1][column + 2] = bits_float(output.w) / kUnit;
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
    if (valid == 0) return;
    if constexpr (!kCodes) {
      compute_pass(stage, (valid >> lane_id() & 1U) != 0 ? 0 : -1, ordinal);
    } else {
      // One pass for as many blocks as the columns hold, nearly always one.
      unsigned left = valid;
      do {
        const int slot = take_blocks(left);
        compute_pass(stage, slot, ordinal);
        left &= ~ballot(slot >= 0);
      } while (left != 0);
    }
  }

  // Gives the columns to the first blocks of the tokens `left`, which ascend. Returns the slot of
  // this lane's token, or -1: none in this pass.
  __device__ __forceinline__ int take_blocks(unsigned left) {
    const int page = this->scale_page_now_;
    const int before = shuffle(page, larger(lane_id() - 1, 0));
    const bool mine = (left >> lane_id() & 1U) != 0;
    const unsigned starts = ballot(mine && (lane_id() == first_bit(left) || page != before));
    const int rank = count_bits(starts & (0xFFFFFFFFU >> (kWarpSize - 1 - lane_id()))) - 1;
    // The page of this lane's column: of the start whose rank is the column's slot.
    const int own = slot_of(lane_id() / 4);
    unsigned of_own = starts;
    TRIPHASE_UNROLL
    for (int bit = 0; bit < 3; ++bit) {
      const unsigned set = ballot((rank >> bit & 1) != 0);
      of_own &= (own >> bit & 1) != 0 ? set : ~set;
    }
    // Three bits say no more than eight ranks; further ones come in another pass.
    of_own &= ballot(rank < kGatherTileHeads);
    const int needed = shuffle(page, larger(first_bit(of_own), 0));
    const bool other = of_own != 0 && needed != loaded_page_;
    if (ballot(other) != 0) {
      close_blocks();
      if (other) loaded_page_ = needed;
      store_queries();
    }
    return mine && rank < kGatherTileHeads >> shape_.head_shift ? rank : -1;
  }

  // `slot`: of this lane's token, -1 where it does not count.
  __device__ __forceinline__ void compute_pass(const unsigned char* stage, int slot, int ordinal) {
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
    const int slots[2] = {shuffle(slot, lane_id() / 4), shuffle(slot, lane_id() / 4 + 8)};
    TRIPHASE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int column = lane_id() % 4 * 2 + i % 2;
      const bool is_mine = slots[i / 2] == slot_of(column);
      const float sum = score[i] + rest[i];
      score[i] = is_mine ? fma_rn(sum, factor_[i % 2], start_[i % 2]) : -INFINITY;
      if (is_mine && shape_.results.logits != nullptr) {
        this->write_logit(head_of(column), ordinal + lane_id() / 4 + i / 2 * 8, score[i]);
      }
    }
    update_softmax(score);
    add_values(stage + kGatherTileTokens * kPitch, score);
  }

  __device__ __forceinline__ void load_keys(const unsigned char* lines, int step,
                                            unsigned (&key)[4]) const {
    const int lane = lane_id();
    if constexpr (kCodes) {
      const int first = piece(lane / 4, 0) + lane % 4 * 4;
      TRIPHASE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const unsigned word = load_shared4(lines + other_piece(first, 8 * half, step));
        key[half] = half_codes(word, kLowCodes);
        key[half + 2] = half_codes(word, kHighCodes);
      }
    } else {
      load_matrices(key, lines + other_piece(piece(lane % 16, lane / 16), 0, 2 * step));
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
        rescale(head, exp2_fast(top_[head] - base));
        top_[head] = top;
      }
      TRIPHASE_UNROLL
      for (int i = head; i < 4; i += 2) {
        score[i] = exp2_fast(score[i] - base);
        sum_[head] += score[i];
        if constexpr (kCodes) block_sum_[head] += score[i];
      }
    }
  }

  __device__ __forceinline__ void rescale(int head, float factor) {
    sum_[head] *= factor;
    block_sum_[head] *= factor;
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
    if constexpr (kCodes) {
      const int first = piece(lane % 4, lane / 16) + lane / 4 % 4 * 4;
      TRIPHASE_UNROLL
      for (int pair = 0; pair < kOutputs / 2; ++pair) {
        // Four channels of tokens lane % 4, + 4, + 8, + 12.
        unsigned word[4];
        TRIPHASE_UNROLL
        for (int i = 0; i < 4; ++i) {
          word[i] = load_shared4(lines + other_piece(first, 4 * i, 2 * pair));
        }
        TRIPHASE_UNROLL
        for (int tile = 0; tile < 2; ++tile) {
          unsigned value[4];
          TRIPHASE_UNROLL
          for (int i = 0; i < 2; ++i) {
            const unsigned both =
                byte_permute(word[2 * i], word[2 * i + 1], tile == 0 ? 0x5140U : 0x7362U);
            value[2 * i] = half_codes(both, kLowCodes);
            value[2 * i + 1] = half_codes(both, kHighCodes);
          }
          TRIPHASE_UNROLL
          for (int term = 0; term < kTerms; ++term) {
            multiply_tiles<T>(sums_[2 * pair + tile], value, weights[term]);
          }
        }
      }
    } else {
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
  }

  __device__ __forceinline__ void end_row(int result) {
    TRIPHASE_UNROLL
    for (int i = 0; i < 2; ++i) sum_[i] = sum_over_tokens(sum_[i]);
    if constexpr (kCodes) {
      close_blocks();
      load_output();
      merge_columns();
    }
    TRIPHASE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int column = lane_id() % 4 * 2 + i;
      const int head = head_of(column);
      if (slot_of(column) > 0 || head >= shape_.group) continue;
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

  // Joins the columns of each head; afterwards all of them hold the whole.
  __device__ __forceinline__ void merge_columns() {
    if (shape_.head_shift == 0) {
      const Joined joined = join(0, top_[1], sum_[1]);
      TRIPHASE_UNROLL
      for (int tile = 0; tile < kOutputs; ++tile) {
        TRIPHASE_UNROLL
        for (int i = 0; i < 4; i += 2) {
          sums_[tile][i] = sums_[tile][i] * joined.own + sums_[tile][i + 1] * joined.other;
        }
      }
    }
    // Columns 2 and 4 further are in other lanes.
    TRIPHASE_NO_UNROLL
    for (int step = shape_.head_shift < 2 ? 1 : 2; step < 4 && shape_.head_shift < 3; step *= 2) {
      TRIPHASE_UNROLL
      for (int column = 0; column < 2; ++column) {
        const float top = shuffle_xor(top_[column], step);
        const Joined joined = join(column, top, shuffle_xor(sum_[column], step));
        TRIPHASE_UNROLL
        for (int tile = 0; tile < kOutputs; ++tile) {
          TRIPHASE_UNROLL
          for (int i = column; i < 4; i += 2) {
            const float other = shuffle_xor(sums_[tile][i], step);
            sums_[tile][i] = sums_[tile][i] * joined.own + other * joined.other;
          }
        }
      }
    }
  }

  // What the outputs of this column and of another one count in both together.
  struct Joined {
    float own;
    float other;
  };
  __device__ __forceinline__ Joined join(int column, float other_top, float other_sum) {
    const float top = larger(top_[column], other_top);
    const float base = top == -INFINITY ? 0.0F : top;
    const Joined joined{exp2_fast(top_[column] - base), exp2_fast(other_top - base)};
    sum_[column] = sum_[column] * joined.own + other_sum * joined.other;
    top_[column] = top;
    return joined;
  }

  // [term][step][lane], 8 bytes each; codes: then the output [pair of tiles][column][lane], 16
  // each.
  unsigned char* queries_;
  int loaded_page_ = -1;  // codes: scales of column lane / 4
  // State of columns pair and pair + 1.
  float top_[2];     // maximum less kHeadroom
  float sum_[2];     // over this lane's tokens
  float factor_[2];  // undoes the queries' scale
  float start_[2];   // codes: what the zero points add to every score of the block
  float block_sum_[2];
  float closed_top_[2];      // codes: that of the output
  float sums_[kOutputs][4];  // the output; codes: weighted sums of the blocks at hand
};

template <class E, int kDim>
constexpr int kGatherBlocks = static_cast<int>(gather_mma_blocks(kDim, sizeof(E)));

// A block is one warp; block y: query heads y * 8 onwards.
template <class E, int kDim>
__global__ void __launch_bounds__(kWarpSize, kGatherBlocks<E, kDim>)
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
                              GatherTiles<E, kDim>::kQueryBytes +
                              GatherTiles<E, kDim>::kOutputBytes);
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

template <class E>
void launch_gather_type(const GatherShape& shape, StreamHandle stream) {
  if (shape.cache.head_dim <= 64) {
    launch_gather_tiles<E, 64>(shape, stream);
  } else if (shape.cache.head_dim <= 128) {
    launch_gather_tiles<E, 128>(shape, stream);
  } else {
    launch_gather_tiles<E, 256>(shape, stream);
  }
}

}  // namespace triphase::cuda
