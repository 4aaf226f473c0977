#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/prefill_codes.h"
#include "kernels/cuda/warpgroup_products.h"

// prefill_attention of an INT8 cache by warpgroup products: the arithmetic is that of
// prefill_codes.cu. Their operands lie in shared memory, so codes are copied there as FP16. While
// one product runs, the warpgroup prepares the other one's codes.

namespace triphase::cuda {
namespace {

constexpr int kThreads = kWarpgroupThreads;

template <int kDim>
struct Layout {
  static constexpr int kRows = static_cast<int>(prefill_rows(DType::kInt8, kDim));
  static constexpr int kKeys = 64;
  static constexpr int kPanelElements = kKeys * kDim;  // of K or V
  static constexpr int kTerms = 2;                     // of the partial block
  static constexpr int kQueries = kRows * kDim;        // F32
  static constexpr int kTileBytes = kKeys * kDim;      // codes of K or V
  static constexpr int kStageBytes = 2 * kTileBytes + 2 * kDim * static_cast<int>(sizeof(KvScale));
  static constexpr int kWide = 2 * kDim;  // of K's or V's wide scales
  static constexpr std::size_t kSharedBytes =
      kPanelAlignment + 2 * 2 * static_cast<std::size_t>(kPanelElements) + 4 * kQueries +
      2 * 4 * kWide + 2 * kStageBytes + kRows * sizeof(PrefillSeen);
  static_assert(kRows == kWarpgroupRows);
  static_assert(kTerms == 2);                     // K's or V's lie where codes of both do
  static_assert(2 * kSharedBytes <= 226 * 1024);  // two blocks on a multiprocessor
};

// Writes channels [c, c + 8) of a row, two in a word. Sixteen channels are turned, so that the four
// that a lane has of a product's operands and sums are neighbours: channels 4q .. 4q + 3 lie at
// places 2q, 2q + 1, 2q + 8, 2q + 9.
template <int kRows, class T>
__device__ __forceinline__ void store_channels(T* panels, int row, int c,
                                               const unsigned (&words)[4]) {
  const int group = c / 16 * 16;
  const int piece = c % 16 / 2;
  store8(panels + panel_place<kRows>(row, group) + piece, make_uint2(words[0], words[2]));
  store8(panels + panel_place<kRows>(row, group + 8) + piece, make_uint2(words[1], words[3]));
}

// A warp's 16 rows.
template <int kDim>
class CodeRows {
 public:
  using L = Layout<kDim>;
  static constexpr int kKeys = L::kKeys;
  using Panels = SharedPanels<kKeys>;

  __device__ CodeRows(const PagedWork& work, const PrefillSeen* seen, const float* queries)
      : rows_(work, seen, 0), queries_(queries) {}

  // Queries times the lambda of a tile's keys, and what its zero points take from each score.
  __device__ __forceinline__ void scale_queries(const float* scales) {
    float less[2] = {};
    TRIPHASE_UNROLL
    for (int k = 0; k < kDim / 16; ++k) {
      const uint4 lambda = load_shared16(scales + k * 16 + quarter() * 4);
      const uint4 zero = load_shared16(scales + kDim + k * 16 + quarter() * 4);
      TRIPHASE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const uint4 four = query(k, half);
        float value[4];
        TRIPHASE_UNROLL
        for (int i = 0; i < 4; ++i) {
          value[i] = component(four, i) * component(lambda, i);
          less[half] = fma_rn(value[i], component(zero, i), less[half]);
        }
        query_[k][half] = pack2<Half>(value[0], value[1]);
        query_[k][half + 2] = pack2<Half>(value[2], value[3]);
      }
    }
    TRIPHASE_UNROLL
    for (int half = 0; half < 2; ++half) less_[half] = warp_sum(less[half], 4);
  }
  __device__ __forceinline__ void start_scores(const Half* k_panels) {
    const Panels keys(k_panels);
    products_begin();
    TRIPHASE_UNROLL
    for (int k = 0; k < kDim / 16; ++k) {
      multiply_rows<Half>(score_[0], query_[k], keys.from_column(16 * k), k > 0);
    }
    products_commit();
  }
  // Of the tile of keys from token `first` on; those from `end` on do not count.
  __device__ __forceinline__ void finish_scores(int first, int end) {
    products_wait<0>(score_[0]);
    TRIPHASE_UNROLL
    for (int n = 0; n < kKeys / 8; ++n) {
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) {
        score_[0][n][i] = fma_rn(score_[0][n][i], 1.0F / kCodeUnit, -less_[i / 2]);
      }
    }
    rows_.template mask<kKeys>(first, end, score_);
    float added[1][2];
    rows_.template weigh<kKeys>(score_, added);
    TRIPHASE_UNROLL
    for (int half = 0; half < 2; ++half) added_[half] = added[0][half] * -kCodeUnit;
    TRIPHASE_UNROLL
    for (int k = 0; k < kKeys / 16; ++k) {
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) weight_[k][i] = take_weights<Half>(k, i);
    }
  }
  __device__ __forceinline__ void start_values(const Half* v_panels) {
    const Panels values(v_panels);
    products_begin();
    TRIPHASE_UNROLL
    for (int k = 0; k < kKeys / 16; ++k) {
      multiply_columns<Half>(block_, weight_[k], values.from_row(16 * k), k > 0);
    }
    products_commit();
  }
  // A tile's weighted sums of codes get its scales. Outputs count in units of kCodeUnit.
  __device__ __forceinline__ void finish_values(const float* scales) {
    products_wait<0>(block_);
    TRIPHASE_UNROLL
    for (int group = 0; group < kDim / 16; ++group) {
      const uint4 lambda = load_shared16(scales + group * 16 + quarter() * 4);
      const uint4 zero = load_shared16(scales + kDim + group * 16 + quarter() * 4);
      TRIPHASE_UNROLL
      for (int place = 0; place < 2; ++place) {
        const int n = 2 * group + place;
        TRIPHASE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int channel = 2 * place + i % 2;
          const float steps = fma_rn(component(zero, channel), added_[i / 2], block_[n][i]);
          float& output = rows_.output[0][n][i];
          output = fma_rn(component(lambda, channel), steps, output);
        }
      }
    }
  }
  // After the last tile of codes, before the first of the partial block.
  __device__ __forceinline__ void end_codes() { rows_.scale_outputs(1.0F / kCodeUnit); }

  // Of the partial block: K's terms lie side by side. Products of two second terms count for
  // nothing.
  __device__ __forceinline__ void multiply_terms(const BFloat16* k_terms, int first, int end) {
    const Panels keys(k_terms);
    unsigned terms[L::kTerms][kDim / 16][4];
    TRIPHASE_UNROLL
    for (int k = 0; k < kDim / 16; ++k) {
      TRIPHASE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const uint4 four = query(k, half);
        float value[4] = {component(four, 0), component(four, 1), component(four, 2),
                          component(four, 3)};
        TRIPHASE_UNROLL
        for (int term = 0; term < L::kTerms; ++term) {
          terms[term][k][half] = take_term<BFloat16>(value[0], value[1]);
          terms[term][k][half + 2] = take_term<BFloat16>(value[2], value[3]);
        }
      }
    }
    products_begin();
    TRIPHASE_UNROLL
    for (int k = 0; k < kDim / 16; ++k) {
      TRIPHASE_UNROLL
      for (int term = 0; term < L::kTerms; ++term) {
        TRIPHASE_UNROLL
        for (int of_key = 0; of_key < L::kTerms - term; ++of_key) {
          multiply_rows<BFloat16>(score_[0], terms[term][k],
                                  keys.from_column(of_key * kDim + 16 * k), k + term + of_key > 0);
        }
      }
    }
    products_commit();
    products_wait<0>(score_[0]);
    rows_.template mask<kKeys>(first, end, score_);
    float added[1][2];
    rows_.template weigh<kKeys>(score_, added);
  }
  __device__ __forceinline__ void add_terms(const BFloat16* v_terms) {
    const Panels values(v_terms);
    unsigned terms[L::kTerms][kKeys / 16][4];
    TRIPHASE_UNROLL
    for (int k = 0; k < kKeys / 16; ++k) {
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) {
        TRIPHASE_UNROLL
        for (int term = 0; term < L::kTerms; ++term)
          terms[term][k][i] = take_weights<BFloat16>(k, i);
      }
    }
    products_begin();
    TRIPHASE_UNROLL
    for (int k = 0; k < kKeys / 16; ++k) {
      TRIPHASE_UNROLL
      for (int term = 0; term < L::kTerms; ++term) {
        TRIPHASE_UNROLL
        for (int of_value = 0; of_value < L::kTerms - term; ++of_value) {
          multiply_columns<BFloat16>(rows_.output[0], terms[term][k],
                                     values.from_column(of_value * kDim).from_row(16 * k), true);
        }
      }
    }
    products_commit();
    products_wait<0>(rows_.output[0]);
  }

  __device__ __forceinline__ void store(const PagedAttention& call, const PagedWork& work) {
    rows_.template store<L::kRows>(call, work, [](int columns, int i) {
      return columns / 2 * 16 + quarter() * 4 + columns % 2 * 2 + i;
    });
  }

 private:
  using Rows = PrefillRows<kDim, 1, true>;

  __device__ static int quarter() { return lane_id() % 4; }
  // Four channels of one of this lane's queries.
  __device__ __forceinline__ uint4 query(int k, int half) const {
    return load_shared16(queries_ + query_at<kDim>(rows_.row(0, 0), k * 4 + quarter()) +
                         8 * half * kDim);
  }
  // The leading term of two weights, as A of the product with values: a lane's scores are where
  // these want them. What it leaves is the next one's.
  template <class T>
  __device__ __forceinline__ unsigned take_weights(int k, int i) {
    float* pair = score_[0][2 * k + i / 2] + i % 2 * 2;
    return take_term<T>(pair[0], pair[1]);
  }

  Rows rows_;
  const float* queries_;
  unsigned query_[kDim / 16][4];
  float less_[2];
  typename Rows::template Scores<kKeys> score_;
  float added_[2];  // a tile's weights, in units of -kCodeUnit
  unsigned weight_[kKeys / 16][4];
  float block_[kDim / 8][4];
};

// A tile's codes of K or V as FP16.
template <int kDim>
__device__ __forceinline__ void spread_codes(const unsigned char* codes, Half* panels) {
  using L = Layout<kDim>;
  constexpr int kPieces = kDim / 8;
  constexpr int kLines = kThreads / kPieces;
  static_assert(kLines % 8 == 0);  // a thread's rows are swizzled alike
  const int line = static_cast<int>(threadIdx.x) / kPieces;
  const int c = static_cast<int>(threadIdx.x) % kPieces * 8;
  TRIPHASE_UNROLL
  for (int row = 0; row < L::kKeys; row += kLines) {
    const uint2 eight = load_shared8(codes + (row + line) * kDim + c);
    store_channels<L::kKeys>(panels + row * kPanelColumns, line, c,
                             {half_codes(eight.x, kLowCodes), half_codes(eight.x, kHighCodes),
                              half_codes(eight.y, kLowCodes), half_codes(eight.y, kHighCodes)});
  }
}

// The partial block's tokens [first, first + kKeys), of K or V, in terms side by side: zeros where
// the block does not look.
template <int kDim>
__device__ inline void load_terms(const PagedAttention& call, const PrefillPages& pages,
                                  int partial_page, const void* pool, int first, int end,
                                  BFloat16* panels) {
  using L = Layout<kDim>;
  constexpr int kPieces = kDim / 8;
  TRIPHASE_NO_UNROLL
  for (int i = static_cast<int>(threadIdx.x); i < L::kKeys * kPieces; i += kThreads) {
    const int row = i / kPieces;
    const int c = i % kPieces * 8;
    float value[8] = {};
    if (c < pages.dim() && pages.sees(first + row, end)) {
      read_partial(call, pool, pages.place(partial_page, first + row) + c, value);
    }
    TRIPHASE_UNROLL
    for (int term = 0; term < L::kTerms; ++term) {
      unsigned words[4];
      TRIPHASE_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        words[pair] = take_term<BFloat16>(value[2 * pair], value[2 * pair + 1]);
      }
      store_channels<L::kKeys>(panels, row, term * kDim + c, words);
    }
  }
}

template <int kDim>
__device__ __forceinline__ void attend(const PagedAttention& call, std::int64_t split_tokens,
                                       unsigned char* bytes) {
  using L = Layout<kDim>;
  auto* k_panels = reinterpret_cast<Half*>(bytes);
  Half* v_panels = k_panels + L::kPanelElements;
  auto* queries = reinterpret_cast<float*>(v_panels + L::kPanelElements);
  float* k_scales = queries + L::kQueries;
  float* v_scales = k_scales + L::kWide;
  auto* ring = reinterpret_cast<unsigned char*>(v_scales + L::kWide);
  auto* seen = reinterpret_cast<PrefillSeen*>(ring + 2 * L::kStageBytes);
  const PagedWork work = find_paged_work<L::kRows>(call);
  const PrefillRange range = prefill_range<false>(call, work, split_tokens, L::kKeys);
  const auto own_block =
      static_cast<int>((work.segment.context_tokens - 1) / call.page_tokens * call.page_tokens);
  const int codes_end = smaller(range.end, own_block);
  const int tiles = ceil_div(larger(0, codes_end - range.begin), L::kKeys);
  const PrefillPages pages(call, work, work.begin(0));
  const auto token = [&](int tile) { return range.begin + tile * L::kKeys; };
  const auto stage = [&](int tile) { return ring + tile % 2 * L::kStageBytes; };
  const auto scales = [&](int tile) {
    return reinterpret_cast<KvScale*>(stage(tile) + 2 * L::kTileBytes);
  };
  const auto copy = [&](int tile) {
    if (tile < tiles) {
      copy_codes<kDim, L::kKeys, PitchedTile<kDim>, kThreads>(
          call, pages, token(tile), codes_end, stage(tile), stage(tile) + L::kTileBytes,
          scales(tile));
    }
    copy_async_commit();
  };
  const auto spread_keys = [&](int tile) {
    spread_codes<kDim>(stage(tile), k_panels);
    widen_scales<kDim, kThreads>(scales(tile), k_scales);
  };
  const auto publish = [] {
    publish_shared();
    __syncthreads();
  };
  copy(0);
  load_float_queries<L::kRows, kDim, kThreads>(call, work, queries);
  find_seen<L::kRows, kThreads, false>(call, work, seen);
  copy_async_wait<0>();
  __syncthreads();
  CodeRows<kDim> rows(work, seen, queries);
  if (tiles > 0) spread_keys(0);
  publish();
  TRIPHASE_NO_UNROLL
  for (int tile = 0; tile < tiles; ++tile) {
    rows.scale_queries(k_scales);
    copy(tile + 1);
    rows.start_scores(k_panels);
    spread_codes<kDim>(stage(tile) + L::kTileBytes, v_panels);
    widen_scales<kDim, kThreads>(scales(tile) + kDim, v_scales);
    rows.finish_scores(token(tile), codes_end);
    copy_async_wait<0>();
    publish();
    rows.start_values(v_panels);
    if (tile + 1 < tiles) spread_keys(tile + 1);
    rows.finish_values(v_scales);
    publish();
  }
  rows.end_codes();
  auto* terms = reinterpret_cast<BFloat16*>(bytes);
  TRIPHASE_NO_UNROLL
  for (int first = larger(range.begin, own_block); first < range.end; first += L::kKeys) {
    load_terms<kDim>(call, pages, work.segment.partial_page, call.partial_k, first, range.end,
                     terms);
    publish();
    rows.multiply_terms(terms, first, range.end);
    __syncthreads();
    load_terms<kDim>(call, pages, work.segment.partial_page, call.partial_v, first, range.end,
                     terms);
    publish();
    rows.add_terms(terms);
    __syncthreads();
  }
  // Found once more rather than kept: registers are short.
  rows.store(call, find_paged_work<L::kRows>(call));
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 2)
    prefill_code_warpgroups_kernel(PagedAttention call, std::int64_t split_tokens) {
  TRIPHASE_DYNAMIC_SHARED(bytes);
  if constexpr (kHasWarpgroupProducts) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes);
    attend<kDim>(call, split_tokens, bytes + (0 - address) % kPanelAlignment);
  }
}

}  // namespace

void prefill_code_warpgroups(const PagedAttention& call, dim3 grid, std::int64_t split_tokens,
                             StreamHandle stream) {
  const auto launch = [&]<int kDim>() {
    constexpr std::size_t kShared = Layout<kDim>::kSharedBytes;
    allow_shared_bytes(&prefill_code_warpgroups_kernel<kDim>, kShared, "prefill_attention", [&] {
      return shape_text({{"head_dim", call.head_dim}, {"page_tokens", call.page_tokens}});
    });
    TRIPHASE_LAUNCH((prefill_code_warpgroups_kernel<kDim>), grid, kThreads, kShared, stream, call,
                    split_tokens);
  };
  if (call.head_dim <= 64) return launch.template operator()<64>();
  launch.template operator()<128>();
}

}  // namespace triphase::cuda
