#include <string>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/prefill_rows.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 128;
// Beside a row's elements, so that the eight rows of a tile of load_matrices lie in other banks.
constexpr int kPad = static_cast<int>(kPrefillRowPad);

// T: elements of the cache and operands of the products. kDim: columns in shared memory, zeros from
// head_dim on.
template <class T, int kDim, int kTileKeys>
struct Layout {
  static constexpr int kKeys = kTileKeys;
  static constexpr DType kType = std::is_same_v<T, Half> ? DType::kF16 : DType::kBF16;
  // Terms of T that add up to a query or weight.
  static constexpr int kTerms = kType == DType::kBF16 ? 2 : 1;
  static constexpr int kStages = 2;
  static constexpr int kRows = static_cast<int>(prefill_rows(kType, kDim));
  static constexpr int kRowTiles = kRows / 16 / (kThreads / kWarpSize);
  static constexpr int kPitch = kDim + kPad;
  static constexpr int kQueryElements = kTerms * kRows * kPitch;
  static constexpr int kTileElements = kKeys * kPitch;  // K or V
  static constexpr std::size_t kSharedBytes =
      2 * (static_cast<std::size_t>(kQueryElements) + kStages * 2 * kTileElements) +
      kRows * sizeof(PrefillSeen);
};

// The part of a value that its first `term` terms in T leave.
template <class T>
__device__ inline float term_of(float value, int term) {
  return term == 0 ? value : value - to_float(from_float<T>(value));
}

template <class T, int kDim, int kKeys>
class RowWarp {
 public:
  using L = Layout<T, kDim, kKeys>;
  using Rows = PrefillRows<kDim, L::kRowTiles, false>;
  using Scores = typename Rows::template Scores<kKeys>;

  __device__ RowWarp(const PagedWork& work, const PrefillSeen* seen, int listed_from,
                     const T* queries)
      : rows_(work, seen, listed_from),
        queries_(queries + (rows_.first_row() + tile_down()) * L::kPitch + tile_right()) {}

  // Adds a tile of keys that starts at token `first`, or at listed token `first`; those from `end`
  // on do not count.
  __device__ __forceinline__ void attend(const PagedAttention& call, const T* k_tile,
                                         const T* v_tile, bool listed, int first, int end) {
    Scores score = {};
    multiply_keys(k_tile, score);
    rows_.template cap<kKeys>(call, score);
    if (listed) {
      rows_.template mask_listed<kKeys>(end - first, score);
    } else {
      rows_.template mask<kKeys>(first, end, score);
    }
    float added[L::kRowTiles][2];
    rows_.template weigh<kKeys>(score, added);
    add_values(v_tile, score);
  }

  __device__ __forceinline__ void store(const PagedAttention& call, const PagedWork& work) {
    rows_.template store<L::kRows>(
        call, work, [](int columns, int i) { return columns * 8 + lane_id() % 4 * 2 + i; });
  }

 private:
  __device__ __forceinline__ void multiply_keys(const T* k_tile, Scores& score) {
    const T* keys = k_tile + (tile_right() + lane_id() % 8) * L::kPitch + lane_id() / 8 % 2 * 8;
    TRIPHASE_UNROLL
    for (int k = 0; k < kDim / 16; ++k) {
      unsigned query[L::kTerms][L::kRowTiles][4];
      TRIPHASE_UNROLL
      for (int term = 0; term < L::kTerms; ++term) {
        TRIPHASE_UNROLL
        for (int tile = 0; tile < L::kRowTiles; ++tile) {
          load_matrices(query[term][tile],
                        queries_ + (term * L::kRows + tile * 16) * L::kPitch + k * 16);
        }
      }
      TRIPHASE_UNROLL
      for (int pair = 0; pair < kKeys / 16; ++pair) {
        unsigned key[4];
        load_matrices(key, keys + pair * 16 * L::kPitch + k * 16);
        TRIPHASE_UNROLL
        for (int term = 0; term < L::kTerms; ++term) {
          TRIPHASE_UNROLL
          for (int tile = 0; tile < L::kRowTiles; ++tile) {
            multiply_tiles<T>(score[tile][2 * pair], query[term][tile], {key[0], key[1]});
            multiply_tiles<T>(score[tile][2 * pair + 1], query[term][tile], {key[2], key[3]});
          }
        }
      }
    }
  }

  // A lane's weights are where the next product wants them: scores' columns are values' rows.
  __device__ __forceinline__ void add_values(const T* v_tile, const Scores& weight) {
    const T* values = v_tile + tile_down() * L::kPitch + tile_right();
    TRIPHASE_UNROLL
    for (int k = 0; k < kKeys / 16; ++k) {
      unsigned weights[L::kTerms][L::kRowTiles][4];
      TRIPHASE_UNROLL
      for (int term = 0; term < L::kTerms; ++term) {
        TRIPHASE_UNROLL
        for (int tile = 0; tile < L::kRowTiles; ++tile) {
          TRIPHASE_UNROLL
          for (int i = 0; i < 4; ++i) {
            const float* pair = weight[tile][2 * k + i / 2] + i % 2 * 2;
            weights[term][tile][i] = pack2<T>(term_of<T>(pair[0], term), term_of<T>(pair[1], term));
          }
        }
      }
      TRIPHASE_UNROLL
      for (int pair = 0; pair < kDim / 16; ++pair) {
        unsigned value[4];
        load_matrices_transposed(value, values + k * 16 * L::kPitch + pair * 16);
        TRIPHASE_UNROLL
        for (int term = 0; term < L::kTerms; ++term) {
          TRIPHASE_UNROLL
          for (int tile = 0; tile < L::kRowTiles; ++tile) {
            float(&output)[kDim / 8][4] = rows_.output[tile];
            multiply_tiles<T>(output[2 * pair], weights[term][tile], {value[0], value[1]});
            multiply_tiles<T>(output[2 * pair + 1], weights[term][tile], {value[2], value[3]});
          }
        }
      }
    }
  }

  Rows rows_;
  const T* queries_;
};

template <class T, int kDim, int kKeys>
__device__ inline void load_queries(const PagedAttention& call, const PagedWork& work, T* queries) {
  using L = Layout<T, kDim, kKeys>;
  const auto store = [&](int row, int c, const float(&value)[4]) {
    TRIPHASE_UNROLL
    for (int term = 0; term < L::kTerms; ++term) {
      const uint2 words{pack2<T>(term_of<T>(value[0], term), term_of<T>(value[1], term)),
                        pack2<T>(term_of<T>(value[2], term), term_of<T>(value[3], term))};
      store8(queries + (term * L::kRows + row) * L::kPitch + c, words);
    }
  };
  load_prefill_queries<L::kRows, kDim, kThreads>(call, work, store);
}

// kListed: the call has listed tokens.
template <class T, int kDim, int kKeys, bool kListed>
__global__ void __launch_bounds__(kThreads, kDim > 128 ? 1 : 2)
    prefill_attention_kernel(PagedAttention call, std::int64_t split_tokens) {
  using L = Layout<T, kDim, kKeys>;
  TRIPHASE_DYNAMIC_SHARED(bytes);
  auto* queries = reinterpret_cast<T*>(bytes);
  T* ring = queries + L::kQueryElements;
  auto* seen = reinterpret_cast<PrefillSeen*>(ring + L::kStages * 2 * L::kTileElements);
  const PagedWork work = find_paged_work<L::kRows>(call);
  const PrefillRange range = prefill_range<kListed>(call, work, split_tokens, kKeys);

  load_queries<T, kDim, kKeys>(call, work, queries);
  find_seen<L::kRows, kThreads, kListed>(call, work, seen);
  const PrefillPages pages(call, work, seen_from<kListed>(call, work, 0));
  // Tiles of the list, then those of the pages.
  const int listed = kListed ? range.list_tiles(kKeys) : 0;
  const int pages_begin = range.begin - listed * kKeys;
  const auto copy = [&](int tile, T* to) {
    using Copy = PrefillCopy<T, kDim, kKeys, PitchedTile<L::kPitch>, kThreads, 16>;
    if (kListed && tile < listed) {
      Copy::copy_listed(call.listed, work.head, pages.dim(), range.list_begin + tile * kKeys,
                        range.list_end, to, to + L::kTileElements);
    } else if (pages_begin + tile * kKeys < range.end) {
      Copy::template copy<2>(pages, pages_begin + tile * kKeys, range.end,
                             {{call.k, to}, {call.v, to + L::kTileElements}});
    }
    copy_async_commit();
  };
  copy(0, ring);
  RowWarp<T, kDim, kKeys> rows(work, seen, kListed ? static_cast<int>(call.listed.all_from) : 0,
                               queries);
  // Warps beyond a short prompt's rows only copy.
  const bool has_rows = uniform_warp_id() * L::kRowTiles * 16 < work.rows;
  int stage = 0;
  TRIPHASE_NO_UNROLL
  for (int tile = 0; (kListed && tile < listed) || pages_begin + tile * kKeys < range.end; ++tile) {
    T* now = ring + stage * 2 * L::kTileElements;
    stage = 1 - stage;
    copy(tile + 1, ring + stage * 2 * L::kTileElements);
    copy_async_wait<1>();
    __syncthreads();
    if (has_rows) {
      const bool in_list = kListed && tile < listed;
      rows.attend(call, now, now + L::kTileElements, in_list,
                  (in_list ? range.list_begin : pages_begin) + tile * kKeys,
                  in_list ? range.list_end : range.end);
    }
    __syncthreads();
  }
  copy_async_wait<0>();
  // Found once more rather than kept: registers are short.
  if (has_rows) rows.store(call, find_paged_work<L::kRows>(call));
}

template <int kRows>
__global__ void __launch_bounds__(kThreads)
    prefill_attention_merge_kernel(PagedAttention call, int splits) {
  merge_paged_splits<kRows>(call, splits);
}

template <class T, int kDim, int kKeys, bool kListed, class Shape>
void launch_listed_or_not(const PagedAttention& call, dim3 grid, std::int64_t split_tokens,
                          StreamHandle stream, const Shape& shape) {
  constexpr std::size_t kShared = Layout<T, kDim, kKeys>::kSharedBytes;
  static_assert(static_cast<std::int64_t>(kShared) ==
                prefill_shared_bytes(Layout<T, kDim, kKeys>::kType, kDim, kKeys));
  allow_shared_bytes(&prefill_attention_kernel<T, kDim, kKeys, kListed>, kShared,
                     "prefill_attention", shape);
  TRIPHASE_LAUNCH((prefill_attention_kernel<T, kDim, kKeys, kListed>), grid, kThreads, kShared,
                  stream, call, split_tokens);
}

template <class T, int kDim, int kKeys, class Shape>
void launch_layout(const PagedAttention& call, dim3 grid, std::int64_t split_tokens,
                   StreamHandle stream, const Shape& shape) {
  if (call.listed.counts != nullptr) {
    launch_listed_or_not<T, kDim, kKeys, true>(call, grid, split_tokens, stream, shape);
  } else {
    launch_listed_or_not<T, kDim, kKeys, false>(call, grid, split_tokens, stream, shape);
  }
}

}  // namespace

void prefill_attention(const PagedAttention& call, std::int64_t query_blocks,
                       const PrefillSplits& splits, const GpuMachine& machine,
                       StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"query_blocks", query_blocks},
                       {"heads", call.heads},
                       {"kv_heads", call.kv_heads},
                       {"head_dim", call.head_dim},
                       {"page_tokens", call.page_tokens},
                       {"segments", call.segment_count},
                       {"splits", splits.count},
                       {"split_tokens", splits.tokens}}) +
           ", cache " + std::string(dtype_name(call.dtype));
  };
  const LaunchCheck check("prefill_attention", shape);
  check(call.kv_heads > 0 && call.kv_heads <= kMostGridY && call.heads > 0 &&
            call.heads % call.kv_heads == 0,
        "heads must be a positive multiple of kv_heads");
  check(prefill_attention_serves(call.dtype, call.partial_dtype, call.head_dim, call.page_tokens,
                                 call.heads / call.kv_heads),
        "the cache's type, head_dim, page_tokens or group");
  check(prefill_attention_shared_bytes(call.dtype, call.head_dim) <= machine.shared_bytes_per_block,
        "shared memory of a block");
  check(call.q != nullptr && call.k != nullptr && call.v != nullptr && call.out != nullptr &&
            call.segments != nullptr && call.pages != nullptr,
        "null pointer");
  check(call.dtype != DType::kInt8 || (call.scales != nullptr && call.partial_k != nullptr &&
                                       call.partial_v != nullptr && call.scale_pages != nullptr),
        "an INT8 cache needs scales, their pages and the partial pages");
  check(splits.count >= 1 && splits.count <= kMostGridY && splits.tokens % 128 == 0 &&
            (splits.tokens > 0 || call.listed.counts != nullptr),
        "splits must be 1 to 65535, of whole pages of 128");
  check(call.listed.counts == nullptr ||
            (call.listed.k != nullptr && call.listed.v != nullptr && call.listed.room > 0),
        "listed tokens without keys or values");
  check(splits.count == 1 || call.partials != nullptr, "splits need partials");
  if (query_blocks == 0) return;
  check(call.q_stride % 4 == 0, "q_stride must be a multiple of 4");
  const dim3 grid = paged_grid(call, query_blocks, splits.count);
  const bool by_warpgroups = machine.warpgroups && call.head_dim <= 128 &&
                             call.listed.counts == nullptr && call.cap == 0.0F;
  if (call.dtype == DType::kInt8 && by_warpgroups && call.page_tokens >= 64) {
    prefill_code_warpgroups(call, grid, splits.tokens, stream);
  } else if (call.dtype == DType::kInt8) {
    prefill_codes(call, grid, splits.tokens, stream);
  } else if (by_warpgroups) {
    prefill_warpgroups(call, grid, splits.tokens, stream);
  } else {
    const auto launch = [&]<class T, int kDim>() {
      constexpr DType kType = std::is_same_v<T, Half> ? DType::kF16 : DType::kBF16;
      constexpr auto kMost = static_cast<int>(prefill_most_keys(kType, kDim));
      if (prefill_tile_keys(kType, kDim, machine.shared_bytes_per_block) == kMost) {
        launch_layout<T, kDim, kMost>(call, grid, splits.tokens, stream, shape);
      } else if constexpr (kDim > 64) {
        launch_layout<T, kDim, kMost / 2>(call, grid, splits.tokens, stream, shape);
      }
    };
    for_head_dim(call.head_dim, [&]<int kDim>() {
      if (call.dtype == DType::kF16) {
        launch.template operator()<Half, kDim>();
      } else {
        launch.template operator()<BFloat16, kDim>();
      }
    });
  }
  check_launched("prefill_attention", shape);
  if (splits.count == 1) return;
  const dim3 merge_grid = paged_grid(call, query_blocks, 1);
  const auto count = static_cast<int>(splits.count);
  if (prefill_rows(call.dtype, call.head_dim) == 64) {
    TRIPHASE_LAUNCH((prefill_attention_merge_kernel<64>), merge_grid, kThreads, 0, stream, call,
                    count);
  } else {
    TRIPHASE_LAUNCH((prefill_attention_merge_kernel<128>), merge_grid, kThreads, 0, stream, call,
                    count);
  }
  check_launched("prefill_attention (merge)", shape);
}

}  // namespace triphase::cuda
