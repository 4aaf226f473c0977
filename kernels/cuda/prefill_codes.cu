#include <type_traits>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/prefill_codes.h"

// prefill_attention of an INT8 cache. Codes are exact in FP16, with their bits as a subnormal:
// 2^-24 of the code. A block's lambda of K goes into the queries, which are rounded to FP16 after
// it; its zero points into a constant for each row. A block's weighted sums of V's codes are
// complete before they get its scales. So no code is dequantized.
//
// The partial block is of F16 or BF16: two BF16 terms hold either, and so are queries and weights
// split, for three times the arithmetic.

namespace triphase::cuda {
namespace {

constexpr int kRows = static_cast<int>(prefill_rows(DType::kInt8, 64));
constexpr int kTerms = 2;  // of the partial block

template <int kDim, int kKeys>
struct Layout {
  static constexpr int kThreads = kDim > 128 ? 128 : 64;
  static constexpr int kRowTiles = kRows / 16 / (kThreads / kWarpSize);
  static constexpr int kPitch = kDim + 16;  // so that eight rows lie in other banks
  static constexpr int kTileBytes = kKeys * kPitch;
  static constexpr int kStageBytes = 2 * kTileBytes + 2 * kDim * static_cast<int>(sizeof(KvScale));
  static constexpr int kQueryBytes = kRows * kDim * 4;
  static constexpr int kWideBytes = 4 * kDim * 4;  // WideScales
  static constexpr int kSharedBytes =
      kQueryBytes + kWideBytes + 2 * kStageBytes + kRows * static_cast<int>(sizeof(PrefillSeen));
  // Of the partial block, in the ring's memory: [K, V][term][key][kPartialPitch].
  static constexpr int kPartialKeys = kKeys / 2;
  static constexpr int kPartialPitch = kDim + 8;
  static constexpr int kTermElements = kPartialKeys * kPartialPitch;
  static_assert(2 * kTerms * kTermElements * 2 <= 2 * kStageBytes);
};

template <int kDim, int kKeys>
class CodeWarp {
 public:
  using L = Layout<kDim, kKeys>;
  using Rows = PrefillRows<kDim, L::kRowTiles, true>;
  using Scores = typename Rows::template Scores<kKeys>;
  using PartialScores = typename Rows::template Scores<L::kPartialKeys>;

  __device__ CodeWarp(const PagedWork& work, const PrefillSeen* seen, int listed_from,
                      const float* queries)
      : rows_(work, seen, listed_from), queries_(queries) {}

  // Adds a tile of codes that starts at token `first`, whose scales are wide; tokens from `end` on
  // do not count.
  __device__ __forceinline__ void attend(const PagedAttention& call, const unsigned char* stage,
                                         int first, int end) {
    Scores score = {};
    multiply_codes(stage, scales(), score);
    rows_.template cap<kKeys>(call, score);
    rows_.template mask<kKeys>(first, end, score);
    float added[L::kRowTiles][2];
    rows_.template weigh<kKeys>(score, added);
    add_codes(stage + L::kTileBytes, scales() + 2 * kDim, score, added);
  }

  // After the last tile of codes, before the first of the partial block.
  __device__ __forceinline__ void end_codes() { rows_.scale_outputs(1.0F / kCodeUnit); }

  // Of the partial block, or listed tokens.
  template <bool kOfList>
  __device__ __forceinline__ void attend_partial(const PagedAttention& call,
                                                 const BFloat16* k_terms, const BFloat16* v_terms,
                                                 int first, int end) {
    PartialScores score = {};
    multiply_partial(k_terms, score);
    rows_.template cap<L::kPartialKeys>(call, score);
    if constexpr (kOfList) {
      rows_.template mask_listed<L::kPartialKeys>(end - first, score);
    } else {
      rows_.template mask<L::kPartialKeys>(first, end, score);
    }
    float added[L::kRowTiles][2];
    rows_.template weigh<L::kPartialKeys>(score, added);
    add_partial(v_terms, score);
  }

  __device__ __forceinline__ void store(const PagedAttention& call, const PagedWork& work) {
    rows_.template store<kRows>(call, work, [](int columns, int i) {
      return columns / 2 * 16 + lane_id() % 4 * 4 + 2 * i + columns % 2;
    });
  }

 private:
  // A tile's wide ones lie behind the queries.
  __device__ __forceinline__ const float* scales() const { return queries_ + kRows * kDim; }

  // A word of load_matrices has four neighbouring channels of a key. The product takes the first
  // two at its places pair, pair + 1 and the others eight further: so do the queries.
  __device__ __forceinline__ void multiply_codes(const unsigned char* k_tile, const float* scales,
                                                 Scores& score) {
    const unsigned char* keys = k_tile + lane_id() * L::kPitch;
    const int row = rows_.row(0, 0);
    const int quarter = lane_id() % 4;
    float start[L::kRowTiles][2] = {};
    TRIPHASE_UNROLL_BY(2)
    for (int k = 0; k < kDim / 16; ++k) {
      const uint4 lambda = load_shared16(scales + k * 16 + quarter * 4);
      const uint4 zero = load_shared16(scales + kDim + k * 16 + quarter * 4);
      const float* from = queries_ + query_at<kDim>(row, k * 4 + quarter);
      unsigned query[L::kRowTiles][4];
      TRIPHASE_UNROLL
      for (int tile = 0; tile < L::kRowTiles; ++tile) {
        TRIPHASE_UNROLL
        for (int half = 0; half < 2; ++half) {
          const uint4 four = load_shared16(from + (16 * tile + 8 * half) * kDim);
          float value[4];
          TRIPHASE_UNROLL
          for (int i = 0; i < 4; ++i) {
            value[i] = component(four, i) * component(lambda, i);
            start[tile][half] = fma_rn(value[i], component(zero, i), start[tile][half]);
          }
          query[tile][half] = pack2<Half>(value[0], value[1]);
          query[tile][half + 2] = pack2<Half>(value[2], value[3]);
        }
      }
      TRIPHASE_UNROLL
      for (int four = 0; four < kKeys / 32; ++four) {
        unsigned codes[4];
        load_matrices(codes, keys + four * 32 * L::kPitch + k * 16);
        TRIPHASE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const unsigned low = half_codes(codes[i], kLowCodes);
          const unsigned high = half_codes(codes[i], kHighCodes);
          TRIPHASE_UNROLL
          for (int tile = 0; tile < L::kRowTiles; ++tile) {
            multiply_tiles<Half>(score[tile][four * 4 + i], query[tile], {low, high});
          }
        }
      }
    }
    TRIPHASE_UNROLL
    for (int tile = 0; tile < L::kRowTiles; ++tile) {
      TRIPHASE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float less = warp_sum(start[tile][half], 4);
        TRIPHASE_UNROLL
        for (int at = 0; at < kKeys / 8; ++at) {
          TRIPHASE_UNROLL
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            score[tile][at][i] = fma_rn(score[tile][at][i], 1.0F / kCodeUnit, -less);
          }
        }
      }
    }
  }

  // The weights of 16 keys from 16 * k on, in terms that add up to them: A of the next product. A
  // lane's are where it wants them, since scores' columns are values' rows.
  template <class T, int kCount, int kOf>
  __device__ __forceinline__ static void pack_weights(
      const typename Rows::template Scores<kOf>& weight, int k,
      unsigned (&packed)[kCount][L::kRowTiles][4]) {
    TRIPHASE_UNROLL
    for (int tile = 0; tile < L::kRowTiles; ++tile) {
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* pair = weight[tile][2 * k + i / 2] + i % 2 * 2;
        float first = pair[0];
        float second = pair[1];
        TRIPHASE_UNROLL
        for (int term = 0; term < kCount; ++term) {
          packed[term][tile][i] = take_term<T>(first, second);
        }
      }
    }
  }

  // A word of load_matrices_transposed has two neighbouring channels of two keys: even channels go
  // into one product, odd ones into another. Outputs count in units of kCodeUnit.
  __device__ __forceinline__ void add_codes(const unsigned char* v_tile, const float* scales,
                                            const Scores& weight,
                                            const float (&added)[L::kRowTiles][2]) {
    const unsigned char* values = v_tile + lane_id() * L::kPitch;
    unsigned weights[kKeys / 16][1][L::kRowTiles][4];
    float sum[L::kRowTiles][2];
    TRIPHASE_UNROLL
    for (int tile = 0; tile < L::kRowTiles; ++tile) {
      TRIPHASE_UNROLL
      for (int half = 0; half < 2; ++half) sum[tile][half] = added[tile][half] * -kCodeUnit;
    }
    TRIPHASE_UNROLL
    for (int k = 0; k < kKeys / 16; ++k) {
      pack_weights<Half, 1, kKeys>(weight, k, weights[k]);
    }
    TRIPHASE_UNROLL
    for (int group = 0; group < kDim / 16; ++group) {
      float block[L::kRowTiles][2][4] = {};
      TRIPHASE_UNROLL
      for (int four = 0; four < kKeys / 32; ++four) {
        unsigned codes[4];
        load_matrices_transposed(codes, values + four * 32 * L::kPitch + group * 16);
        TRIPHASE_UNROLL
        for (int k = 0; k < 2; ++k) {
          const unsigned even[2] = {half_codes(codes[2 * k], kEvenCodes),
                                    half_codes(codes[2 * k + 1], kEvenCodes)};
          const unsigned odd[2] = {half_codes(codes[2 * k], kOddCodes),
                                   half_codes(codes[2 * k + 1], kOddCodes)};
          TRIPHASE_UNROLL
          for (int tile = 0; tile < L::kRowTiles; ++tile) {
            multiply_tiles<Half>(block[tile][0], weights[2 * four + k][0][tile], even);
            multiply_tiles<Half>(block[tile][1], weights[2 * four + k][0][tile], odd);
          }
        }
      }
      const uint4 lambda = load_shared16(scales + group * 16 + lane_id() % 4 * 4);
      const uint4 zero = load_shared16(scales + kDim + group * 16 + lane_id() % 4 * 4);
      TRIPHASE_UNROLL
      for (int tile = 0; tile < L::kRowTiles; ++tile) {
        TRIPHASE_UNROLL
        for (int odd = 0; odd < 2; ++odd) {
          TRIPHASE_UNROLL
          for (int i = 0; i < 4; ++i) {
            const int channel = i % 2 * 2 + odd;
            float& output = rows_.output[tile][2 * group + odd][i];
            const float steps =
                fma_rn(component(zero, channel), sum[tile][i / 2], block[tile][odd][i]);
            output = fma_rn(component(lambda, channel), steps, output);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void multiply_partial(const BFloat16* k_terms, PartialScores& score) {
    const BFloat16* keys =
        k_terms + (tile_right() + lane_id() % 8) * L::kPartialPitch + tile_down() / 8 * 8;
    TRIPHASE_UNROLL_BY(2)
    for (int k = 0; k < kDim / 16; ++k) {
      unsigned query[kTerms][L::kRowTiles][4];
      TRIPHASE_UNROLL
      for (int tile = 0; tile < L::kRowTiles; ++tile) {
        TRIPHASE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int c = k * 16 + i / 2 * 8 + lane_id() % 4 * 2;
          const uint2 pair =
              load_shared8(queries_ + query_at<kDim>(rows_.row(tile, i % 2), c / 4) + c % 4);
          float first = bits_float(pair.x);
          float second = bits_float(pair.y);
          TRIPHASE_UNROLL
          for (int term = 0; term < kTerms; ++term)
            query[term][tile][i] = take_term<BFloat16>(first, second);
        }
      }
      TRIPHASE_UNROLL
      for (int pair = 0; pair < L::kPartialKeys / 16; ++pair) {
        TRIPHASE_UNROLL
        for (int of_key = 0; of_key < kTerms; ++of_key) {
          unsigned key[4];
          load_matrices(key,
                        keys + of_key * L::kTermElements + pair * 16 * L::kPartialPitch + k * 16);
          TRIPHASE_UNROLL
          for (int term = 0; term < kTerms - of_key; ++term) {
            TRIPHASE_UNROLL
            for (int tile = 0; tile < L::kRowTiles; ++tile) {
              multiply_tiles<BFloat16>(score[tile][2 * pair], query[term][tile], {key[0], key[1]});
              multiply_tiles<BFloat16>(score[tile][2 * pair + 1], query[term][tile],
                                       {key[2], key[3]});
            }
          }
        }
      }
    }
  }

  __device__ __forceinline__ void add_partial(const BFloat16* v_terms,
                                              const PartialScores& weight) {
    const BFloat16* values = v_terms + tile_down() * L::kPartialPitch + tile_right();
    TRIPHASE_UNROLL
    for (int k = 0; k < L::kPartialKeys / 16; ++k) {
      unsigned weights[kTerms][L::kRowTiles][4];
      pack_weights<BFloat16, kTerms, L::kPartialKeys>(weight, k, weights);
      TRIPHASE_UNROLL
      for (int group = 0; group < kDim / 16; ++group) {
        TRIPHASE_UNROLL
        for (int of_value = 0; of_value < kTerms; ++of_value) {
          unsigned value[4];
          load_matrices_transposed(
              value, values + of_value * L::kTermElements + k * 16 * L::kPartialPitch + group * 16);
          TRIPHASE_UNROLL
          for (int term = 0; term < kTerms - of_value; ++term) {
            TRIPHASE_UNROLL
            for (int tile = 0; tile < L::kRowTiles; ++tile) {
              float(&output)[kDim / 8][4] = rows_.output[tile];
              multiply_tiles<BFloat16>(output[2 * group], weights[term][tile],
                                       {value[0], value[1]});
              multiply_tiles<BFloat16>(output[2 * group + 1], weights[term][tile],
                                       {value[2], value[3]});
            }
          }
        }
      }
    }
  }

  Rows rows_;
  const float* queries_;
};

template <int kDim, int kKeys, bool kListed>
class CodeTiles {
 public:
  using L = Layout<kDim, kKeys>;

  __device__ CodeTiles(const PagedAttention& call, const PagedWork& work)
      : call_(call),
        pages_(call, work, seen_from<kListed>(call, work, 0)),
        head_(work.head),
        partial_page_(work.segment.partial_page) {}

  // Starts to copy codes and scales of the tokens [first, first + kKeys), all of one block.
  __device__ __forceinline__ void copy(int first, int end, unsigned char* stage) const {
    copy_codes<kDim, kKeys, PitchedTile<L::kPitch>, L::kThreads>(
        call_, pages_, first, end, stage, stage + L::kTileBytes,
        reinterpret_cast<KvScale*>(stage + 2 * L::kTileBytes));
  }

  // Loads K and V of the partial block's tokens [first, first + kPartialKeys), or of the listed
  // ones, in terms: zeros where the block does not look. Channels of V lie as its codes give them
  // to the outputs, even ones of 16 before odd ones.
  template <bool kOfList>
  __device__ void load_partial(int first, int end, BFloat16* k_terms, BFloat16* v_terms) const {
    TRIPHASE_NO_UNROLL
    for (int i = static_cast<int>(threadIdx.x); i < L::kPartialKeys * (kDim / 8);
         i += L::kThreads) {
      const int line = i / (kDim / 8);
      const int c = i % (kDim / 8) * 8;
      float k[8] = {};
      float v[8] = {};
      if constexpr (kOfList) {
        if (c < pages_.dim() && first + line < end) {
          const std::int64_t at = (head_ * call_.listed.room + first + line) * pages_.dim() + c;
          read_floats(call_.listed.k, at, k);
          read_floats(call_.listed.v, at, v);
        }
      } else if (c < pages_.dim() && pages_.sees(first + line, end)) {
        const std::int64_t at = pages_.place(partial_page_, first + line) + c;
        read_partial(call_, call_.partial_k, at, k);
        read_partial(call_, call_.partial_v, at, v);
      }
      TRIPHASE_UNROLL
      for (int term = 0; term < kTerms; ++term) {
        const int to = term * L::kTermElements + line * L::kPartialPitch;
        uint4 words;
        words.x = take_term<BFloat16>(k[0], k[1]);
        words.y = take_term<BFloat16>(k[2], k[3]);
        words.z = take_term<BFloat16>(k[4], k[5]);
        words.w = take_term<BFloat16>(k[6], k[7]);
        store16(k_terms + to + c, words);
        const int even = c / 16 * 16 + c % 16 / 2;
        store8(v_terms + to + even,
               make_uint2(take_term<BFloat16>(v[0], v[2]), take_term<BFloat16>(v[4], v[6])));
        store8(v_terms + to + even + 8,
               make_uint2(take_term<BFloat16>(v[1], v[3]), take_term<BFloat16>(v[5], v[7])));
      }
    }
  }

 private:
  __device__ static void read_floats(const void* pool, std::int64_t at, float (&value)[8]) {
    TRIPHASE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const uint4 four = load16(static_cast<const float*>(pool) + at + 4 * half);
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) value[4 * half + i] = component(four, i);
    }
  }
  const PagedAttention& call_;
  PrefillPages pages_;
  int head_;
  int partial_page_;
};

// kListed: the call has listed tokens.
template <int kDim, int kKeys, bool kListed>
__global__ void __launch_bounds__(kDim > 128 ? 128 : 64, kDim > 128 ? 1 : 3)
    prefill_codes_kernel(PagedAttention call, std::int64_t split_tokens) {
  using L = Layout<kDim, kKeys>;
  TRIPHASE_DYNAMIC_SHARED(bytes);
  auto* queries = reinterpret_cast<float*>(bytes);
  float* scales = queries + kRows * kDim;
  unsigned char* ring = bytes + L::kQueryBytes + L::kWideBytes;
  auto* seen = reinterpret_cast<PrefillSeen*>(ring + 2 * L::kStageBytes);
  const PagedWork work = find_paged_work<kRows>(call);
  const PrefillRange range = prefill_range<kListed>(call, work, split_tokens, kKeys);
  const auto own_block =
      static_cast<int>((work.segment.context_tokens - 1) / call.page_tokens * call.page_tokens);
  const int codes_end = smaller(range.end, own_block);

  load_float_queries<kRows, kDim, L::kThreads>(call, work, queries);
  find_seen<kRows, L::kThreads, kListed>(call, work, seen);
  const CodeTiles<kDim, kKeys, kListed> tiles(call, work);
  const auto copy = [&](int first, int stage) {
    if (first < codes_end) tiles.copy(first, codes_end, ring + stage * L::kStageBytes);
    copy_async_commit();
  };
  copy(range.begin, 0);
  CodeWarp<kDim, kKeys> rows(work, seen, kListed ? static_cast<int>(call.listed.all_from) : 0,
                             queries);
  // Warps beyond a short prompt's rows only copy.
  const bool has_rows = uniform_warp_id() * L::kRowTiles * 16 < work.rows;
  int stage = 0;
  TRIPHASE_NO_UNROLL
  for (int first = range.begin; first < codes_end; first += kKeys) {
    copy(first + kKeys, 1 - stage);
    copy_async_wait<1>();
    __syncthreads();
    const auto* narrow =
        reinterpret_cast<const KvScale*>(ring + stage * L::kStageBytes + 2 * L::kTileBytes);
    widen_scales<kDim, L::kThreads>(narrow, scales);
    widen_scales<kDim, L::kThreads>(narrow + kDim, scales + 2 * kDim);
    __syncthreads();
    if (has_rows) rows.attend(call, ring + stage * L::kStageBytes, first, codes_end);
    stage = 1 - stage;
    __syncthreads();
  }
  copy_async_wait<0>();
  rows.end_codes();

  auto* k_terms = reinterpret_cast<BFloat16*>(ring);
  BFloat16* v_terms = k_terms + kTerms * L::kTermElements;
  const auto attend_partial = [&](auto listed, int first, int end) {
    constexpr bool kOfList = decltype(listed)::value;
    TRIPHASE_NO_UNROLL
    for (; first < end; first += L::kPartialKeys) {
      tiles.template load_partial<kOfList>(first, end, k_terms, v_terms);
      __syncthreads();
      if (has_rows) rows.template attend_partial<kOfList>(call, k_terms, v_terms, first, end);
      __syncthreads();
    }
  };
  if constexpr (kListed) attend_partial(std::true_type(), range.list_begin, range.list_end);
  attend_partial(std::false_type(), larger(range.begin, own_block), range.end);
  // Found once more rather than kept: registers are short.
  if (has_rows) rows.store(call, find_paged_work<kRows>(call));
}

}  // namespace

void prefill_codes(const PagedAttention& call, dim3 grid, std::int64_t split_tokens,
                   StreamHandle stream) {
  const auto launch = [&]<int kDim, int kKeys, bool kListed>() {
    constexpr int kShared = Layout<kDim, kKeys>::kSharedBytes;
    static_assert(kShared == prefill_shared_bytes(DType::kInt8, kDim, kKeys));
    allow_shared_bytes(
        &prefill_codes_kernel<kDim, kKeys, kListed>, kShared, "prefill_attention", [&] {
          return shape_text({{"head_dim", call.head_dim}, {"page_tokens", call.page_tokens}});
        });
    TRIPHASE_LAUNCH((prefill_codes_kernel<kDim, kKeys, kListed>), grid,
                    (Layout<kDim, kKeys>::kThreads), kShared, stream, call, split_tokens);
  };
  for_head_dim(call.head_dim, [&]<int kDim>() {
    const bool long_pages = call.page_tokens >= 64;
    if (call.listed.counts != nullptr) {
      if (long_pages) return launch.template operator()<kDim, 64, true>();
      return launch.template operator()<kDim, 32, true>();
    }
    if (long_pages) return launch.template operator()<kDim, 64, false>();
    launch.template operator()<kDim, 32, false>();
  });
}

}  // namespace triphase::cuda
