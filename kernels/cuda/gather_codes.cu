// gather_attn over INT8 keys and values, on tensor cores that multiply bytes.
//
// A query times the block's lambda becomes a 31-bit integer, a softmax weight one of 32 bits. Their
// four bytes are columns of products with the codes (multiply_codes): nothing is rounded that F32
// would keep, and no code is converted. Keys' zero points add one constant to a head's scores in a
// block; values' scales are applied once to a block's finished sums.
//
// A warp takes tiles of up to 64 tokens of one block, and a product has columns of a pair of heads.
// Lists have few tokens in a block: up to 32 of two blocks make a tile, and a product has columns
// of one head for this pair of blocks; a token counts in those of its own block. (Lists of groups
// of heads: gather_code_groups.cu.) In the products' terms (dialect.h) a lane with row = lane / 4
// and quarter = lane % 4 holds
//   scores   of tokens row + 8 i, of the head or block quarter / 2 of each pair
//   outputs  of channels 32 group + 4 row + 0..3, in two parts: those of the weights' low bytes in
//            lanes of even quarters, those of the high bytes in lanes of odd ones

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/gather_code_queries.h"

namespace triphase::cuda {
namespace {

constexpr float kUnit = 4294967296.0F;  // 2^32: a weight of 1
// Integers below 2^22 added to these bits are mantissas of floats around 1.5 * 2^23.
constexpr int kMagicBits = 0x4B400000;
constexpr float kMagic = 12582912.0F;

// Sizes: as of CodeQueries.
template <int kDim, int kPairs, bool kListed>
class GatherCodes : public CodeQueries<GatherCodes<kDim, kPairs, kListed>, kDim, kPairs, kListed> {
  using Base = CodeQueries<GatherCodes, kDim, kPairs, kListed>;
  using Tiles = CodeTiles<GatherCodes, kDim, kListed ? 2 : 0>;
  friend Tiles;
  using Base::first_head_;
  using Base::head_of;
  using Base::kSteps;
  using Tiles::keys_;
  using Tiles::kHalves;
  using Tiles::kTileTokens;
  using Tiles::shape_;
  using Tiles::swizzle;
  using Tiles::values_;

 public:
  static constexpr int kScores = kTileTokens / 8;  // of a lane and head
  static constexpr int kGroups = kDim / 32;        // of 32 channels of the output
  // Where registers are short: a lane's values are loaded row after row, not many at once.
  static constexpr bool kRowByRow = kPairs > 1 && kDim > 128;

  using Base::Base;

 private:
  __device__ __forceinline__ void begin_heads() {
    this->begin_queries();
    TRIPHASE_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) {
      top_[pair] = -INFINITY;
      sum_[pair] = 0.0F;
      TRIPHASE_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        TRIPHASE_UNROLL
        for (int i = 0; i < 4; ++i) output_[pair][group][i] = 0.0F;
      }
    }
    sync_warp();
  }

  // A tile's weights as columns of bytes, what a head's earlier outputs count by, and the sum over
  // the half that this lane has scores of.
  struct Weights {
    unsigned words[kPairs][kHalves][2];
    float rescale[kPairs];
    float sum[kPairs];
  };

  // Tokens of a tile that this lane has scores of, where it has any.
  struct OwnTokens {
    int begin;
    int end;
  };
  __device__ __forceinline__ OwnTokens own_tokens(const CodeTile& tile) const {
    if (!kListed) return {this->window_begin_ - tile.begin, tile.count};
    return lane_id() % 4 < 2 ? OwnTokens{0, tile.in_first} : OwnTokens{tile.in_first, tile.count};
  }

  template <bool kFull>
  __device__ __forceinline__ void weigh_tile(const CodeTile& tile, Weights& weights) {
    TRIPHASE_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) {
      float score[kScores];
      multiply_keys<kFull>(tile.count, pair, score);
      if constexpr (!kListed) this->cap(score);
      if (shape_.results.scores != nullptr) write_scores(pair, tile, score);
      weights.rescale[pair] = weigh<kFull>(pair, own_tokens(tile), score, weights.sum[pair]);
      spread(score, weights.words[pair]);
    }
  }

  template <bool kFull>
  __device__ __forceinline__ void multiply_keys(int count, int pair,
                                                float (&score)[kScores]) const {
    typename Base::Queries queries;
    this->template scale_queries<kFull>(pair, queries);
    const float low = lane_id() % 2 == 0 ? 1.0F : 65536.0F;  // what this lane's bytes count
    const int row = lane_id() % 16;
    const unsigned char* first = keys_ + row * kDim;
    const int chunk = lane_id() / 16 ^ swizzle(row);
    TRIPHASE_UNROLL
    for (int rows = 0; rows < kTileTokens / 16; ++rows) {
      score[2 * rows] = score[2 * rows + 1] = -INFINITY;
      if ((kListed || !kFull) && 16 * rows >= count) continue;
      int product[4];
      begin_sum(product);
      TRIPHASE_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        unsigned key[4];
        load_matrices(key, first + rows * 16 * kDim + (chunk ^ 2 * step) * 16);
        multiply_codes<true>(product, key, {queries.words[2 * step], queries.words[2 * step + 1]});
      }
      TRIPHASE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float high = finished(product[2 * half + 1]) * 256.0F;
        float both = (finished(product[2 * half]) + high) * low;
        both += shuffle_xor(both, 1);
        score[2 * rows + half] = fma_rn(both, queries.factor, queries.start);
      }
    }
  }

  // Sums of 64 weights' bytes, and of keys of 128 channels, stay below 2^22.
  static constexpr bool kSumsAreSmall = kDim <= 128 && kTileTokens <= 64;
  static __device__ __forceinline__ void begin_sum(int (&sum)[4]) {
    TRIPHASE_UNROLL
    for (int i = 0; i < 4; ++i) sum[i] = kSumsAreSmall ? kMagicBits : 0;
  }
  static __device__ __forceinline__ float finished(int sum) {
    if constexpr (kSumsAreSmall) return bits_float(static_cast<unsigned>(sum)) - kMagic;
    return static_cast<float>(sum);
  }

  __device__ __forceinline__ void write_scores(int pair, const CodeTile& tile,
                                               const float (&score)[kScores]) const {
    if (lane_id() % 2 != 0) return;
    const int head = first_head_ + head_of(pair, lane_id() % 4 / 2);
    const OwnTokens own = own_tokens(tile);
    TRIPHASE_UNROLL
    for (int i = 0; i < kScores; ++i) {
      const int token = 8 * i + lane_id() / 4;
      if (token < own.begin || token >= own.end) continue;
      this->write_score(head, tile.begin + token, score[i]);
    }
  }

  // Turns scores into weights relative to the new maximum. Returns what earlier outputs count by;
  // `sum`: of the own weights.
  template <bool kFull>
  __device__ __forceinline__ float weigh(int pair, OwnTokens own, float (&score)[kScores],
                                         float& sum) {
    float top = top_[pair];
    TRIPHASE_UNROLL
    for (int i = 0; i < kScores; ++i) {
      const int token = 8 * i + lane_id() / 4;
      if ((kListed || !kFull) && token < own.begin) score[i] = -INFINITY;
      if ((kListed || !kFull) && token >= own.end) score[i] = -INFINITY;
      top = largest(top, score[i]);
    }
    TRIPHASE_UNROLL
    for (int step = kListed ? 2 : 4; step < kWarpSize; step *= 2) {
      top = largest(top, shuffle_xor(top, step));
    }
    const float base = top == -INFINITY ? 0.0F : top;
    const float rescale = exp2_fast(top_[pair] - base);
    top_[pair] = top;
    sum = 0.0F;
    TRIPHASE_UNROLL
    for (int i = 0; i < kScores; ++i) {
      score[i] = exp2_fast(score[i] - base);
      sum += score[i];
    }
    TRIPHASE_UNROLL
    for (int step = 4; step < kWarpSize; step *= 2) sum += shuffle_xor(sum, step);
    sum_[pair] = fma_rn(sum_[pair], rescale, kListed ? sum + shuffle_xor(sum, 2) : sum);
    return rescale;
  }

  // Weights as columns of bytes, as this lane gives them to the products: byte lane / 4 % 4 of the
  // half lane / 16. A word has tokens row, + 8, + 16, + 24 of the half, row lane % 4 or that + 4.
  __device__ __forceinline__ void spread(const float (&weight)[kScores],
                                         unsigned (&words)[kHalves][2]) const {
    const auto byte = static_cast<unsigned>(lane_id() % 2 * 2);
    const unsigned of_two = byte | (byte + 4U) << 4 | (byte + 1U) << 8 | (byte + 5U) << 12;
    const int source = lane_id() % 4 * 4 + lane_id() / 16 * 2 + lane_id() / 8 % 2;
    const bool second = lane_id() / 4 % 2 != 0;
    TRIPHASE_UNROLL
    for (int half = 0; half < kHalves; ++half) {
      unsigned fixed[4];
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) fixed[i] = round_to_unsigned(weight[4 * half + i] * kUnit);
      const unsigned low = byte_permute(fixed[0], fixed[1], of_two);
      const unsigned high = byte_permute(fixed[2], fixed[3], of_two);
      const unsigned bytes[2] = {byte_permute(low, high, 0x5410U),
                                 byte_permute(low, high, 0x7632U)};
      TRIPHASE_UNROLL
      for (int rows = 0; rows < 2; ++rows) {
        const unsigned even = shuffle(bytes[0], source + 16 * rows);
        const unsigned odd = shuffle(bytes[1], source + 16 * rows);
        words[half][rows] = second ? odd : even;
      }
    }
  }

  template <bool kFull>
  __device__ __forceinline__ void add_values(int count, const Weights& weights) {
    const int row = lane_id() / 4;
    const int quarter = lane_id() % 4;
    const KvScale* scales = Base::scales_of_half(values_, quarter / 2) + 4 * row;
    // What the two bytes of this lane count, and whose lanes take the zero points.
    const float low = quarter % 2 == 0 ? 1.0F / kUnit : 65536.0F / kUnit;
    const float high = low * 256.0F;
    const bool takes_zero = quarter % 2 != 0;
    TRIPHASE_UNROLL
    for (int group = 0; group < kGroups; ++group) {
      unsigned value[kHalves][2][4];  // [half][tokens quarter.., quarter + 4..][channel]
      if constexpr (kRowByRow) sync_warp();
      load_values<kFull>(values_, group, count, value);
      uint4 own = make_uint4(0U, 0U, 0U, 0U);
      if (this->template has_channel<kFull>(32 * group + 4 * row)) {
        own = load_shared16(scales + 32 * group);
      }
      const float lambdas[4] = {kv_lambda(own.x), kv_lambda(own.y), kv_lambda(own.z),
                                kv_lambda(own.w)};
      const float zeros[4] = {kv_zero(own.x), kv_zero(own.y), kv_zero(own.z), kv_zero(own.w)};
      TRIPHASE_UNROLL
      for (int pair = 0; pair < kPairs; ++pair) {
        const float minus = takes_zero ? -weights.sum[pair] : 0.0F;
        TRIPHASE_UNROLL
        for (int two = 0; two < 4; two += 2) {
          int product[4];
          begin_sum(product);
          TRIPHASE_UNROLL
          for (int half = 0; half < kHalves; ++half) {
            if (!kFull && 32 * half >= count) break;
            multiply_codes<false>(product,
                                  {value[half][0][two], value[half][0][two + 1],
                                   value[half][1][two], value[half][1][two + 1]},
                                  {weights.words[pair][half][0], weights.words[pair][half][1]});
          }
          TRIPHASE_UNROLL
          for (int i = 0; i < 2; ++i) {
            float block = finished(product[2 * i]) * low;
            block = fma_rn(finished(product[2 * i + 1]), high, block);
            block = fma_rn(minus, zeros[two + i], block);
            float& output = output_[pair][group][two + i];
            output = fma_rn(lambdas[two + i], block, weights.rescale[pair] * output);
          }
        }
      }
    }
  }

  // Four channels of this lane's tokens, as words of four tokens each.
  template <bool kFull>
  __device__ __forceinline__ void load_values(const unsigned char* lines, int group, int count,
                                              unsigned (&value)[kHalves][2][4]) const {
    TRIPHASE_UNROLL
    for (int rows = 0; rows < 2; ++rows) {
      if constexpr (kRowByRow) sync_warp();
      const int row = lane_id() % 4 + 4 * rows;
      const unsigned char* from = lines + row * kDim +
                                  ((lane_id() / 16 ^ swizzle(row)) ^ 2 * group) * 16 +
                                  lane_id() / 4 % 4 * 4;
      TRIPHASE_UNROLL
      for (int half = 0; half < kHalves; ++half) {
        if (!kFull && 32 * half >= count) break;
        unsigned word[4];
        TRIPHASE_UNROLL
        for (int i = 0; i < 4; ++i) word[i] = load_shared4(from + (32 * half + 8 * i) * kDim);
        const unsigned low[2] = {byte_permute(word[0], word[1], 0x5140U),
                                 byte_permute(word[2], word[3], 0x5140U)};
        const unsigned high[2] = {byte_permute(word[0], word[1], 0x7362U),
                                  byte_permute(word[2], word[3], 0x7362U)};
        value[half][rows][0] = byte_permute(low[0], low[1], 0x5410U);
        value[half][rows][1] = byte_permute(low[0], low[1], 0x7632U);
        value[half][rows][2] = byte_permute(high[0], high[1], 0x5410U);
        value[half][rows][3] = byte_permute(high[0], high[1], 0x7632U);
      }
    }
  }

  __device__ __forceinline__ void end_row(int result) const {
    const int row = lane_id() / 4;
    TRIPHASE_UNROLL
    for (int pair = 0; pair < kPairs; ++pair) {
      const int head = first_head_ + head_of(pair, lane_id() % 4 / 2);
      const std::int64_t at = static_cast<std::int64_t>(result) * shape_.group + head;
      const bool there = head < shape_.group && lane_id() % (kListed ? 4 : 2) == 0;
      if (there && row == 0) {
        shape_.results.max_sum[2 * at] = top_[pair];
        shape_.results.max_sum[2 * at + 1] = sum_[pair];
      }
      float* to = shape_.results.states + at * shape_.cache.head_dim;
      TRIPHASE_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        float both[4];
        TRIPHASE_UNROLL
        for (int i = 0; i < 4; ++i) {
          both[i] = output_[pair][group][i] + shuffle_xor(output_[pair][group][i], 1);
          if (kListed) both[i] += shuffle_xor(both[i], 2);
        }
        const int channel = 32 * group + 4 * row;
        if (there && channel < shape_.cache.head_dim) {
          store16(to + channel, make_uint4(float_bits(both[0]), float_bits(both[1]),
                                           float_bits(both[2]), float_bits(both[3])));
        }
      }
    }
  }

  // State of each pair: of the head that this lane has scores of.
  float top_[kPairs];
  float sum_[kPairs];
  float output_[kPairs][kGroups][4];
};

// A block is one warp; block y: query heads y * GatherCodes::kHeads onwards.
template <int kDim, int kPairs, bool kListed>
constexpr int kBlocks = static_cast<int>(GatherCodeWarp{kDim, kPairs, kListed}.resident());

template <int kDim, int kPairs, bool kListed>
__global__ void __launch_bounds__(kWarpSize, kBlocks<kDim, kPairs, kListed>)
    gather_codes_kernel(const GatherShape shape) {
  using Warp = GatherCodes<kDim, kPairs, kListed>;
  TRIPHASE_DYNAMIC_SHARED(shared);
  Warp warp(shape, shared, static_cast<int>(blockIdx.y) * Warp::kHeads);
  run_gather_part(warp, static_cast<int>(blockIdx.x));
}

template <int kDim, int kPairs, bool kListed>
void launch_codes(const GatherShape& shape, StreamHandle stream) {
  using Warp = GatherCodes<kDim, kPairs, kListed>;
  allow_gather_bytes(&gather_codes_kernel<kDim, kPairs, kListed>, Warp::kSharedBytes, shape);
  TRIPHASE_LAUNCH((gather_codes_kernel<kDim, kPairs, kListed>), gather_grid(shape, Warp::kHeads),
                  kWarpSize, Warp::kSharedBytes, stream, shape);
}

// No kernel is made for numbers that gather_code_warp() never gives.
template <int kDim>
void launch_dim(const GatherShape& shape, StreamHandle stream) {
  const bool listed = shape.source == TokenSource::kList;
  const GatherCodeWarp warp = gather_code_warp(kDim, shape.group, listed);
  if (warp.listed) return launch_codes<kDim, 1, true>(shape, stream);
  if (warp.pairs == 1) return launch_codes<kDim, 1, false>(shape, stream);
  if (warp.pairs == 2) return launch_codes<kDim, 2, false>(shape, stream);
  if constexpr (kDim <= 128) launch_codes<kDim, 4, false>(shape, stream);
}

}  // namespace

void launch_gather_codes(const GatherShape& shape, StreamHandle stream) {
  for_head_dim(shape.cache.head_dim, [&]<int kDim>() { launch_dim<kDim>(shape, stream); });
}

}  // namespace triphase::cuda
