#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/prefill_rows.h"
#include "kernels/cuda/tensor_operands.h"
#include "kernels/cuda/warpgroup_products.h"

// prefill_attention of a 16-bit cache by warpgroup products. As in FlashAttention-3 (arXiv
// 2407.08608, section 3.2) a tile's softmax runs beside a product: that of the tile before it with
// its values. Queries, keys and values come from shared memory, weights from registers. The
// arithmetic is that of prefill_attention.cu, with longer tiles.

namespace triphase::cuda {
namespace {

constexpr int kThreads = 2 * kWarpgroupThreads;

// T: elements of the cache and operands of the products. kDim: columns in shared memory, zeros from
// head_dim on.
template <class T, int kDim>
struct Layout {
  static constexpr DType kType = std::is_same_v<T, Half> ? DType::kF16 : DType::kBF16;
  static constexpr int kTerms = kType == DType::kBF16 ? 2 : 1;  // that add up to a query or weight
  static constexpr int kRows = static_cast<int>(prefill_rows(kType, kDim));
  static constexpr int kKeys = 128;
  static constexpr int kStages = 2;
  static constexpr int kQueryElements = kTerms * kRows * kDim;
  static constexpr int kTileElements = kKeys * kDim;  // K or V
  static constexpr std::size_t kSharedBytes =
      2 * (static_cast<std::size_t>(kQueryElements) + 2 * kStages * kTileElements) +
      kRows * sizeof(PrefillSeen) + kPanelAlignment;
  static_assert(kRows == kThreads / kWarpgroupThreads * kWarpgroupRows);

  struct Place {
    __device__ __forceinline__ static int at(int token, int channel) {
      return panel_place<kKeys>(token, channel);
    }
  };
};

// A warp's 16 rows. Scores of a tile are made while the values of the one before it are added.
template <class T, int kDim>
class WarpRows {
 public:
  using L = Layout<T, kDim>;
  static constexpr int kKeys = L::kKeys;

  __device__ WarpRows(const PagedWork& work, const PrefillSeen* seen, const T* queries)
      : rows_(work, seen, 0),
        queries_(SharedPanels<L::kRows>(queries).from_row(uniform_warp_id() / 4 * kWarpgroupRows)) {
  }

  __device__ __forceinline__ void start_scores(const T* k_tile) {
    const SharedPanels<kKeys> keys(k_tile);
    products_begin();
    TRIPHASE_UNROLL
    for (int term = 0; term < L::kTerms; ++term) {
      TRIPHASE_UNROLL
      for (int c = 0; c < kDim; c += 16) {
        multiply_rows<T>(score_[0], queries_.from_column(term * kDim + c), keys.from_column(c),
                         term + c > 0);
      }
    }
    products_commit();
  }
  __device__ __forceinline__ void start_values(const T* v_tile) {
    const SharedPanels<kKeys> values(v_tile);
    products_begin();
    TRIPHASE_UNROLL
    for (int token = 0; token < kKeys; token += 16) {
      TRIPHASE_UNROLL
      for (int term = 0; term < L::kTerms; ++term) {
        multiply_columns<T>(rows_.output[0], weight_[term][token / 16], values.from_row(token),
                            true);
      }
    }
    products_commit();
  }

  // Of the tile of keys from token `first` on; those from `end` on do not count. kBeside: values
  // are on their way too.
  template <bool kBeside>
  __device__ __forceinline__ void finish_scores(int first, int end) {
    products_wait<kBeside ? 1 : 0>(score_[0]);
    rows_.template mask<kKeys>(first, end, score_);
    rows_.template weigh_beside<kKeys>(score_, [&] { finish_values(); });
    TRIPHASE_UNROLL
    for (int k = 0; k < kKeys / 16; ++k) {
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) {
        float* pair = score_[0][2 * k + i / 2] + i % 2 * 2;
        TRIPHASE_UNROLL
        for (int term = 0; term < L::kTerms; ++term) {
          weight_[term][k][i] = take_term<T>(pair[0], pair[1]);
        }
      }
    }
  }
  __device__ __forceinline__ void finish_values() { products_wait<0>(rows_.output[0]); }

  __device__ __forceinline__ void store(const PagedAttention& call, const PagedWork& work) {
    rows_.template store<L::kRows>(
        call, work, [](int columns, int i) { return columns * 8 + lane_id() % 4 * 2 + i; });
  }

 private:
  using Rows = PrefillRows<kDim, 1, false>;

  Rows rows_;
  SharedPanels<L::kRows> queries_;
  typename Rows::template Scores<kKeys> score_;
  // Operands of the product with values: a lane's scores are where these want them.
  unsigned weight_[L::kTerms][kKeys / 16][4];
};

template <class T, int kDim>
__device__ inline void load_queries(const PagedAttention& call, const PagedWork& work, T* queries) {
  using L = Layout<T, kDim>;
  load_prefill_queries<L::kRows, kDim, kThreads>(
      call, work, [&](int row, int c, const float(&value)[4]) {
        float left[4] = {value[0], value[1], value[2], value[3]};
        TRIPHASE_UNROLL
        for (int term = 0; term < L::kTerms; ++term) {
          const unsigned low = take_term<T>(left[0], left[1]);
          const unsigned high = take_term<T>(left[2], left[3]);
          store8(queries + panel_place<L::kRows>(row, term * kDim + c), uint2{low, high});
        }
      });
}

// What a block does: keys and values have two places each. While scores of one tile and values of
// the one before it are multiplied, the next keys and values arrive.
template <class T, int kDim>
__device__ __forceinline__ void attend(const PagedAttention& call, std::int64_t split_tokens,
                                       unsigned char* bytes) {
  using L = Layout<T, kDim>;
  using Copy = PrefillCopy<T, kDim, L::kKeys, typename L::Place, kThreads, 16>;
  auto* queries = reinterpret_cast<T*>(bytes);
  T* keys = queries + L::kQueryElements;
  T* values = keys + L::kStages * L::kTileElements;
  auto* seen = reinterpret_cast<PrefillSeen*>(values + L::kStages * L::kTileElements);
  const PagedWork work = find_paged_work<L::kRows>(call);
  const PrefillRange range = prefill_range<false>(call, work, split_tokens, L::kKeys);
  const PrefillPages pages(call, work, work.begin(0));
  const auto place = [](T* tiles, int tile) {
    return tiles + tile % L::kStages * L::kTileElements;
  };
  const auto token = [&](int tile) { return range.begin + tile * L::kKeys; };
  const auto copy = [&](const void* from, T* tiles, int tile) {
    if (token(tile) >= range.end) return;
    Copy::template copy<1>(pages, token(tile), range.end, {{from, place(tiles, tile)}});
  };
  copy(call.k, keys, 0);
  copy_async_commit();
  copy(call.k, keys, 1);
  copy(call.v, values, 0);
  copy_async_commit();
  load_queries<T, kDim>(call, work, queries);
  find_seen<L::kRows, kThreads, false>(call, work, seen);
  copy_async_wait<1>();
  publish_shared();
  __syncthreads();

  WarpRows<T, kDim> rows(work, seen, queries);
  // A warpgroup beyond a short prompt's rows only copies.
  const bool has_rows = uniform_warp_id() / 4 * kWarpgroupRows < work.rows;
  const int tiles = ceil_div(larger(0, range.end - range.begin), L::kKeys);
  // Before the values of a tile are added: they and the next keys are there, and what the next
  // copies overwrite has been multiplied.
  const auto next_tiles = [&](int tile) {
    copy_async_wait<0>();
    publish_shared();
    __syncthreads();
    copy(call.k, keys, tile + 2);
    copy(call.v, values, tile + 1);
    copy_async_commit();
  };
  if (has_rows && tiles > 0) {
    rows.start_scores(place(keys, 0));
    rows.template finish_scores<false>(token(0), range.end);
  }
  TRIPHASE_NO_UNROLL
  for (int tile = 0; tile < tiles; ++tile) {
    next_tiles(tile);
    if (!has_rows) continue;
    const bool more = tile + 1 < tiles;
    if (more) rows.start_scores(place(keys, tile + 1));
    rows.start_values(place(values, tile));
    if (more) {
      rows.template finish_scores<true>(token(tile + 1), range.end);
    } else {
      rows.finish_values();
    }
  }
  copy_async_wait<0>();
  if (!has_rows) return;
  // Found once more rather than kept: registers are short.
  rows.store(call, find_paged_work<L::kRows>(call));
}

template <class T, int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    prefill_warpgroups_kernel(PagedAttention call, std::int64_t split_tokens) {
  TRIPHASE_DYNAMIC_SHARED(bytes);
  if constexpr (kHasWarpgroupProducts) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes);
    attend<T, kDim>(call, split_tokens, bytes + (0 - address) % kPanelAlignment);
  }
}

}  // namespace

void prefill_warpgroups(const PagedAttention& call, dim3 grid, std::int64_t split_tokens,
                        StreamHandle stream) {
  const auto launch = [&]<class T, int kDim>() {
    constexpr std::size_t kShared = Layout<T, kDim>::kSharedBytes;
    allow_shared_bytes(&prefill_warpgroups_kernel<T, kDim>, kShared, "prefill_attention", [&] {
      return shape_text({{"head_dim", call.head_dim}, {"page_tokens", call.page_tokens}});
    });
    TRIPHASE_LAUNCH((prefill_warpgroups_kernel<T, kDim>), grid, kThreads, kShared, stream, call,
                    split_tokens);
  };
  const auto launch_dim = [&]<class T>() {
    if (call.head_dim <= 64) return launch.template operator()<T, 64>();
    launch.template operator()<T, 128>();
  };
  if (call.dtype == DType::kF16) return launch_dim.template operator()<Half>();
  launch_dim.template operator()<BFloat16>();
}

}  // namespace triphase::cuda
