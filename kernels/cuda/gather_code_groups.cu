// gather_attn over lists of INT8 keys and values, for several query heads of a KV head: on tensor
// cores that multiply 16-bit values.
//
// A list has few tokens in a block, so what is done once a block counts most. A query times the
// block's lambda becomes the sum of two F16 terms, and so does a softmax weight; they keep 22 bits.
// Codes go into the products as they are (tensor_operands.h). Keys' zero points add one constant to
// a head's scores in a block; values' scales are applied once to a block's finished sums.
//
// A warp takes tiles of up to 32 tokens of one block. A product has the two terms of four heads, a
// set, as columns. In the products' terms (dialect.h) a lane with row = lane / 4 and quarter =
// lane % 4 holds, for head `quarter` of each set,
//   scores   of tokens token_at(row) and token_at(row + 8) of every 16
//   outputs  of channels 16 tile + 2 row, + 1
// so what belongs to a head (maximum, sum, factor) is in every lane that needs it.

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/gather_code_tiles.h"
#include "kernels/cuda/tensor_operands.h"

namespace triphase::cuda {
namespace {

// kSets: of four query heads.
template <int kDim, int kSets>
class CodeGroups : public CodeTiles<CodeGroups<kDim, kSets>, kDim, 1> {
  using Tiles = CodeTiles<CodeGroups, kDim, 1>;
  friend Tiles;
  using Tiles::keys_;
  using Tiles::kTileTokens;
  using Tiles::shape_;
  using Tiles::swizzle;
  using Tiles::values_;

  static constexpr GatherGroupWarp kSizes{kDim, kSets};
  static constexpr int kSetHeads = static_cast<int>(GatherGroupWarp::kSetHeads);
  static constexpr int kRowTiles = kTileTokens / 16;
  static constexpr int kSteps = kDim / 16;    // products along a key
  static constexpr int kOutputs = kDim / 16;  // tiles of 16 channels
  // As of GatherTiles: a weight of 1 counts as 2^10.
  static constexpr float kHeadroom = 10.0F;
  static constexpr int kStepBytes = static_cast<int>(GatherGroupWarp::kStepBytes);

 public:
  static constexpr int kHeads = static_cast<int>(kSizes.heads());
  static constexpr int kSharedBytes = static_cast<int>(kSizes.bytes());

  __device__ CodeGroups(const GatherShape& shape, unsigned char* shared, int first_head)
      : Tiles(shape, shared),
        first_head_(first_head),
        queries_(reinterpret_cast<float*>(shared + 2 * Tiles::kSideBytes)),
        terms_(shared + 2 * Tiles::kSideBytes + kHeads * kDim * 4) {
    static_assert(2 * Tiles::kSideBytes + kHeads * kDim * 4 + kSets * kSteps * kStepBytes ==
                  kSharedBytes);
  }

 private:
  // Which token of 16 the products have at a row. Whether as rows of keys or, two of them side by
  // side, as columns of values: eight that are read together lie at different banks.
  static __device__ __forceinline__ int token_at(int row) {
    return row < 4 ? row : row < 8 ? row + 8 : row - 4;
  }

  __device__ __forceinline__ void begin_heads() {
    TRIPHASE_UNROLL
    for (int set = 0; set < kSets; ++set) {
      top_[set] = -INFINITY;
      sum_[set] = 0.0F;
      TRIPHASE_UNROLL
      for (int tile = 0; tile < kOutputs; ++tile) {
        output_[set][tile][0] = output_[set][tile][1] = 0.0F;
      }
      TRIPHASE_NO_UNROLL
      for (int head = 0; head < kSetHeads; ++head) {
        const float factor = store_query(set * kSetHeads + head);
        if (lane_id() % kSetHeads == head) factor_[set] = factor;
      }
    }
    sync_warp();
  }

  // A query times the power of two that brings its largest to 2^13..2^14, and what undoes it, the
  // softmax's factor included. A head behind the group's last is that one again, nobody's score.
  __device__ __forceinline__ float store_query(int head) const {
    const float* from = this->queries_of(smaller(first_head_ + head, shape_.group - 1));
    uint4 query[kPieces];
    float most = 0.0F;
    TRIPHASE_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
      const int c = (piece * kWarpSize + lane_id()) * 4;
      query[piece] = c < shape_.cache.head_dim ? load16(from + c) : make_uint4(0U, 0U, 0U, 0U);
      most = largest(most,
                     largest(fabsf(bits_float(query[piece].x)), fabsf(bits_float(query[piece].y))));
      most = largest(most,
                     largest(fabsf(bits_float(query[piece].z)), fabsf(bits_float(query[piece].w))));
    }
    const int field = smaller(267 - static_cast<int>(float_bits(warp_max(most)) >> 23), 253);
    const float scale = bits_float(static_cast<unsigned>(field) << 23);
    TRIPHASE_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
      const int c = (piece * kWarpSize + lane_id()) * 4;
      if (c >= kDim) continue;
      store16(queries_ + head * kDim + c,
              make_uint4(float_bits(bits_float(query[piece].x) * scale),
                         float_bits(bits_float(query[piece].y) * scale),
                         float_bits(bits_float(query[piece].z) * scale),
                         float_bits(bits_float(query[piece].w) * scale)));
    }
    return bits_float(static_cast<unsigned>(254 - field) << 23) * shape_.q.log2_scale;
  }

  // A tile's weights as this lane gives them to the products, and their sums.
  struct Weights {
    unsigned words[kSets][kRowTiles][2];
    float sum[kSets];
  };

  template <bool kFull>
  __device__ __forceinline__ void weigh_tile(const CodeTile& tile, Weights& weights) {
    float score[kSets][kRowTiles][2];
    multiply_keys<kFull>(tile.count, score);
    TRIPHASE_UNROLL
    for (int set = 0; set < kSets; ++set) {
      if (shape_.results.scores != nullptr) write_scores(set, tile, score[set]);
      weights.sum[set] = weigh(set, tile.count, score[set]);
      spread(tile.count, score[set], weights.words[set]);
    }
  }

  // Of a set's queries times the lambdas of the tile's keys, whose terms are in shared memory.
  struct Scaled {
    float start;   // what a score is more than the product
    float factor;  // what the product counts in
  };

  // Every lane scales a few words of four channels; words of a set go through its heads.
  static constexpr int kPieces = kDim <= 128 ? 1 : kDim / 128;  // channels of a lane, in fours
  static constexpr int kSlots = kDim / 32 / kPieces;            // heads of a lane
  static __device__ __forceinline__ int channel_of(int piece) {
    return (lane_id() % (kDim / 4) + piece * kWarpSize) * 4;
  }
  static __device__ __forceinline__ int head_of(int slot) {
    return kSlots == kSetHeads ? slot : 2 * slot + lane_id() / 16;
  }

  template <bool kFull>
  __device__ __forceinline__ void scale_queries(Scaled (&scaled)[kSets]) const {
    float lambda[kPieces][4];
    float zero[kPieces][4];
    float most = 0.0F;
    TRIPHASE_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
      const int c = channel_of(piece);
      uint4 words = make_uint4(0U, 0U, 0U, 0U);
      if (this->template has_channel<kFull>(c)) {
        words = load_shared16(Tiles::scales_at(keys_, 0) + c);
      }
      const unsigned scales[4] = {words.x, words.y, words.z, words.w};
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) {
        lambda[piece][i] = kv_lambda(scales[i]);
        zero[piece][i] = kv_zero(scales[i]);
        most = largest(most, fabsf(lambda[piece][i]));
      }
    }
    TRIPHASE_UNROLL
    for (int step = 1; step < kWarpSize; step *= 2) most = largest(most, shuffle_xor(most, step));
    // The power of two that brings the largest lambda to 1..2, and its inverse.
    const int field = smaller(254 - static_cast<int>(float_bits(most) >> 23), 253);
    const float by = bits_float(static_cast<unsigned>(field) << 23);
    const float inverse = bits_float(static_cast<unsigned>(254 - field) << 23);
    TRIPHASE_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) lambda[piece][i] *= by;
    }
    TRIPHASE_UNROLL
    for (int set = 0; set < kSets; ++set) {
      float start[kSlots] = {};
      TRIPHASE_UNROLL
      for (int slot = 0; slot < kSlots; ++slot) {
        TRIPHASE_UNROLL
        for (int piece = 0; piece < kPieces; ++piece) {
          const int c = channel_of(piece);
          float value[4];
          load_floats(queries_ + (set * kSetHeads + head_of(slot)) * kDim + c, value);
          TRIPHASE_UNROLL
          for (int i = 0; i < 4; ++i) {
            value[i] *= lambda[piece][i];
            start[slot] = fma_rn(-value[i], zero[piece][i], start[slot]);
          }
          uint4 terms;
          terms.x = take_term<Half>(value[0], value[1]);
          terms.y = take_term<Half>(value[2], value[3]);
          terms.z = pack2<Half>(value[0], value[1]);
          terms.w = pack2<Half>(value[2], value[3]);
          store16(terms_at(set, c / 16, head_of(slot)) + c % 16 * 4, terms);
        }
      }
      const float factor = factor_[set] * inverse;
      scaled[set] = {over_channels(start) * factor, factor * (1.0F / kCodeUnit)};
    }
    sync_warp();
  }

  static __device__ __forceinline__ void load_floats(const float* from, float (&value)[4]) {
    const uint4 words = load_shared16(from);
    value[0] = bits_float(words.x);
    value[1] = bits_float(words.y);
    value[2] = bits_float(words.z);
    value[3] = bits_float(words.w);
  }

  // Of 16 channels of a head: [four channels][term][channel].
  __device__ __forceinline__ unsigned char* terms_at(int set, int step, int head) const {
    return terms_ + (set * kSteps + step) * kStepBytes + head * 64;
  }

  // The sum over all lanes, of the head that this lane has scores of. Lanes first swap what is of
  // each other's heads.
  static __device__ __forceinline__ float over_channels(const float (&own)[kSlots]) {
    const bool odd = lane_id() % 2 != 0;
    float sum = odd ? own[1] : own[0];
    sum += shuffle_xor(odd ? own[0] : own[1], 1);
    if constexpr (kSlots == kSetHeads) {
      float other = odd ? own[3] : own[2];
      other += shuffle_xor(odd ? own[2] : own[3], 1);
      const bool upper = lane_id() / 2 % 2 != 0;
      const float given = upper ? sum : other;
      sum = (upper ? other : sum) + shuffle_xor(given, 2);
      TRIPHASE_UNROLL
      for (int step = 4; step < kWarpSize; step *= 2) sum += shuffle_xor(sum, step);
      return sum;
    } else {
      TRIPHASE_UNROLL
      for (int step = 2; step < 16; step *= 2) sum += shuffle_xor(sum, step);
      return shuffle(sum, lane_id() / 2 % 2 + lane_id() % 2 * 16);
    }
  }

  template <bool kFull>
  __device__ __forceinline__ void multiply_keys(int count,
                                                float (&score)[kSets][kRowTiles][2]) const {
    Scaled scaled[kSets];
    scale_queries<kFull>(scaled);
    uint2 query[kSets][kSteps];
    TRIPHASE_UNROLL
    for (int set = 0; set < kSets; ++set) {
      TRIPHASE_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        query[set][step] = load_shared8(terms_at(set, step, lane_id() / 8) + lane_id() % 4 * 16 +
                                        lane_id() / 4 % 2 * 8);
      }
    }
    const int token = token_at(lane_id() % 16);
    const unsigned char* first = keys_ + token * kDim;
    const int chunk = lane_id() / 16 ^ swizzle(token);
    TRIPHASE_UNROLL
    for (int rows = 0; rows < kRowTiles; ++rows) {
      TRIPHASE_UNROLL
      for (int set = 0; set < kSets; ++set) {
        score[set][rows][0] = score[set][rows][1] = -INFINITY;
      }
      if (16 * rows >= count) continue;
      float product[kSets][2][4] = {};  // two sums, so that products need not wait for each other
      TRIPHASE_UNROLL
      for (int step = 0; step < kSteps; step += 2) {
        unsigned code[4];
        load_matrices(code, first + rows * 16 * kDim + (chunk ^ step) * 16);
        TRIPHASE_UNROLL
        for (int i = 0; i < 2; ++i) {
          const unsigned key[4] = {
              half_codes(code[2 * i], kLowCodes), half_codes(code[2 * i + 1], kLowCodes),
              half_codes(code[2 * i], kHighCodes), half_codes(code[2 * i + 1], kHighCodes)};
          TRIPHASE_UNROLL
          for (int set = 0; set < kSets; ++set) {
            const uint2 terms = query[set][step + i];
            multiply_tiles<Half>(product[set][kSets == 1 ? i : 0], key, {terms.x, terms.y});
          }
        }
      }
      TRIPHASE_UNROLL
      for (int set = 0; set < kSets; ++set) {
        TRIPHASE_UNROLL
        for (int half = 0; half < 2; ++half) {
          const float(&sums)[2][4] = product[set];
          float both = sums[0][2 * half] + sums[0][2 * half + 1];
          if (kSets == 1) both += sums[1][2 * half] + sums[1][2 * half + 1];
          const bool there = own_token(rows, half) < count;
          score[set][rows][half] =
              there ? fma_rn(both, scaled[set].factor, scaled[set].start) : -INFINITY;
        }
      }
    }
  }

  static __device__ __forceinline__ int own_token(int rows, int half) {
    return 16 * rows + token_at(lane_id() / 4 + 8 * half);
  }

  __device__ __forceinline__ void write_scores(int set, const CodeTile& tile,
                                               const float (&score)[kRowTiles][2]) const {
    TRIPHASE_UNROLL
    for (int rows = 0; rows < kRowTiles; ++rows) {
      TRIPHASE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int token = own_token(rows, half);
        if (token >= tile.count) continue;
        this->write_score(first_head_ + set * kSetHeads + lane_id() % 4, tile.begin + token,
                          score[rows][half]);
      }
    }
  }

  // Turns scores into weights relative to the new maximum. Returns the tile's sum.
  __device__ __forceinline__ float weigh(int set, int count, float (&score)[kRowTiles][2]) {
    float top = -INFINITY;
    TRIPHASE_UNROLL
    for (int rows = 0; rows < kRowTiles; ++rows) {
      top = largest(top, largest(score[rows][0], score[rows][1]));
    }
    TRIPHASE_UNROLL
    for (int step = 4; step < kWarpSize; step *= 2) top = largest(top, shuffle_xor(top, step));
    top = largest(top_[set], top - kHeadroom);
    const float base = top == -INFINITY ? 0.0F : top;
    if (top != top_[set]) {
      const float factor = exp2_fast(top_[set] - base);
      top_[set] = top;
      rescale(set, factor);
    }
    float sum = 0.0F;
    TRIPHASE_UNROLL
    for (int rows = 0; rows < kRowTiles; ++rows) {
      if (16 * rows >= count) break;
      TRIPHASE_UNROLL
      for (int half = 0; half < 2; ++half) {
        score[rows][half] = exp2_fast(score[rows][half] - base);
        sum += score[rows][half];
      }
    }
    TRIPHASE_UNROLL
    for (int step = 4; step < kWarpSize; step *= 2) sum += shuffle_xor(sum, step);
    sum_[set] += sum;
    return sum;
  }

  __device__ __forceinline__ void rescale(int set, float factor) {
    sum_[set] *= factor;
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kOutputs; ++tile) {
      output_[set][tile][0] *= factor;
      output_[set][tile][1] *= factor;
    }
  }

  // Weights as columns of terms: this lane gives those of head lane / 8, its first or second terms.
  // A word has those of token_at(quarter) and token_at(quarter + 8), or 4 rows further.
  __device__ __forceinline__ void spread(int count, float (&weight)[kRowTiles][2],
                                         unsigned (&words)[kRowTiles][2]) const {
    const int source = lane_id() % 4 * 4 + lane_id() / 8;
    const bool second = lane_id() / 4 % 2 != 0;
    TRIPHASE_UNROLL
    for (int rows = 0; rows < kRowTiles; ++rows) {
      if (16 * rows >= count) break;
      const unsigned leading = take_term<Half>(weight[rows][0], weight[rows][1]);
      const unsigned trailing = pack2<Half>(weight[rows][0], weight[rows][1]);
      TRIPHASE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const unsigned first = shuffle(leading, source + 16 * i);
        const unsigned other = shuffle(trailing, source + 16 * i);
        words[rows][i] = second ? other : first;
      }
    }
  }

  // A word of load_matrices_transposed has two neighbouring channels of two tokens: rows r and
  // r + 8 of the product are channels 2 r and 2 r + 1. Outputs count in units of kCodeUnit.
  template <bool kFull>
  __device__ __forceinline__ void add_values(int count, const Weights& weights) {
    const int place = lane_id() % 8;
    const int token = token_at(lane_id() / 8 % 2 * 4 + place / 2 + place % 2 * 8);
    const unsigned char* first = values_ + token * kDim;
    const int chunk = lane_id() / 16 ^ swizzle(token);
    TRIPHASE_UNROLL
    for (int two = 0; two < kOutputs; two += 2) {
      float product[kSets][2][4] = {};
      TRIPHASE_UNROLL
      for (int rows = 0; rows < kRowTiles; ++rows) {
        if (16 * rows >= count) break;
        unsigned code[4];
        load_matrices_transposed(code, first + rows * 16 * kDim + (chunk ^ two) * 16);
        TRIPHASE_UNROLL
        for (int i = 0; i < 2; ++i) {
          const unsigned value[4] = {
              half_codes(code[2 * i], kEvenCodes), half_codes(code[2 * i], kOddCodes),
              half_codes(code[2 * i + 1], kEvenCodes), half_codes(code[2 * i + 1], kOddCodes)};
          TRIPHASE_UNROLL
          for (int set = 0; set < kSets; ++set) {
            const unsigned(&word)[2] = weights.words[set][rows];
            multiply_tiles<Half>(product[set][i], value, {word[0], word[1]});
          }
        }
      }
      TRIPHASE_UNROLL
      for (int i = 0; i < 2; ++i) add_tile<kFull>(two + i, product, i, weights.sum);
    }
  }

  template <bool kFull>
  __device__ __forceinline__ void add_tile(int tile, const float (&product)[kSets][2][4], int i,
                                           const float (&sum)[kSets]) {
    const int c = output_channel(tile);
    uint2 scales = make_uint2(0U, 0U);
    if (this->template has_channel<kFull>(c)) {
      scales = load_shared8(Tiles::scales_at(values_, 0) + c);
    }
    TRIPHASE_UNROLL
    for (int set = 0; set < kSets; ++set) {
      const float minus = sum[set] * -kCodeUnit;
      const float(&terms)[4] = product[set][i];
      float(&output)[2] = output_[set][tile];
      const float even = fma_rn(minus, kv_zero(scales.x), terms[0] + terms[1]);
      const float odd = fma_rn(minus, kv_zero(scales.y), terms[2] + terms[3]);
      output[0] = fma_rn(kv_lambda(scales.x), even, output[0]);
      output[1] = fma_rn(kv_lambda(scales.y), odd, output[1]);
    }
  }

  static __device__ __forceinline__ int output_channel(int tile) {
    return 16 * tile + lane_id() / 4 * 2;
  }

  __device__ __forceinline__ void end_row(int result) const {
    TRIPHASE_UNROLL
    for (int set = 0; set < kSets; ++set) {
      const int head = first_head_ + set * kSetHeads + lane_id() % 4;
      if (head >= shape_.group) continue;
      const std::int64_t at = static_cast<std::int64_t>(result) * shape_.group + head;
      if (lane_id() < 4) {
        shape_.results.max_sum[2 * at] = top_[set];
        shape_.results.max_sum[2 * at + 1] = sum_[set];
      }
      float* to = shape_.results.states + at * shape_.cache.head_dim;
      TRIPHASE_UNROLL
      for (int tile = 0; tile < kOutputs; ++tile) {
        const int c = output_channel(tile);
        if (c >= shape_.cache.head_dim) continue;
        store8(to + c, make_uint2(float_bits(output_[set][tile][0] * (1.0F / kCodeUnit)),
                                  float_bits(output_[set][tile][1] * (1.0F / kCodeUnit))));
      }
    }
  }

  int first_head_;
  float* queries_;        // [head][kDim]
  unsigned char* terms_;  // terms_at()
  // State of head `quarter` of each set.
  float factor_[kSets];  // undoes a query's scale
  float top_[kSets];     // maximum less kHeadroom
  float sum_[kSets];
  float output_[kSets][kOutputs][2];
};

template <int kDim, int kSets>
constexpr int kBlocks = static_cast<int>(GatherGroupWarp{kDim, kSets}.resident());

// A block is one warp; block y: query heads y * CodeGroups::kHeads onwards.
template <int kDim, int kSets>
__global__ void __launch_bounds__(kWarpSize, kBlocks<kDim, kSets>)
    gather_code_groups_kernel(const GatherShape shape) {
  using Warp = CodeGroups<kDim, kSets>;
  TRIPHASE_DYNAMIC_SHARED(shared);
  Warp warp(shape, shared, static_cast<int>(blockIdx.y) * Warp::kHeads);
  run_gather_part(warp, static_cast<int>(blockIdx.x));
}

template <int kDim, int kSets>
void launch_groups(const GatherShape& shape, StreamHandle stream) {
  using Warp = CodeGroups<kDim, kSets>;
  allow_gather_bytes(&gather_code_groups_kernel<kDim, kSets>, Warp::kSharedBytes, shape);
  TRIPHASE_LAUNCH((gather_code_groups_kernel<kDim, kSets>), gather_grid(shape, Warp::kHeads),
                  kWarpSize, Warp::kSharedBytes, stream, shape);
}

// No kernel is made for numbers that gather_group_warp() never gives.
template <int kDim>
void launch_dim(const GatherShape& shape, StreamHandle stream) {
  if constexpr (kDim <= 128) {
    if (gather_group_warp(kDim, shape.group).sets == 2)
      return launch_groups<kDim, 2>(shape, stream);
  }
  launch_groups<kDim, 1>(shape, stream);
}

}  // namespace

void launch_gather_code_groups(const GatherShape& shape, StreamHandle stream) {
  for_head_dim(shape.cache.head_dim, [&]<int kDim>() { launch_dim<kDim>(shape, stream); });
}

}  // namespace triphase::cuda
