#include <string>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/paged_work.h"
#include "kernels/cuda/prefill_attention.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = static_cast<int>(kPrefillRows);  // 16 of each warp
constexpr float kLog2E = 1.44269504F;
// Beside a row's elements, so that the eight rows of a tile of load_matrices lie in other banks.
constexpr int kPad = static_cast<int>(kPrefillRowPad);

// Stored: elements of the cache. T: operands of the products. kDim: columns in shared memory, zeros
// from head_dim on.
template <class Stored, int kDim>
struct Layout {
  using T = std::conditional_t<std::is_same_v<Stored, Half>, Half, BFloat16>;
  static constexpr bool kCodes = sizeof(Stored) == 1;
  // Terms of T that add up to a query or weight, and to an element of K or V. A product leaves out
  // the product of second terms.
  static constexpr int kTerms = std::is_same_v<T, BFloat16> ? 2 : 1;
  static constexpr int kCacheTerms = kCodes ? 2 : 1;
  // Codes are not copied but dequantized by the threads: no stage is on its way meanwhile.
  static constexpr int kStages = kCodes ? 1 : 2;
  static constexpr int kKeys = static_cast<int>(prefill_tile_keys(kDim, kCodes));
  static constexpr int kPitch = kDim + kPad;
  static constexpr int kQueryElements = kTerms * kRows * kPitch;
  static constexpr int kTermElements = kKeys * kPitch;
  static constexpr int kTileElements = kCacheTerms * kTermElements;  // K or V
  static constexpr std::size_t kSharedBytes =
      2 * (static_cast<std::size_t>(kQueryElements) + kStages * 2 * kTileElements);
};

// The part of a value that its first `term` terms in T leave.
template <class T>
__device__ inline float term_of(float value, int term) {
  return term == 0 ? value : value - to_float(from_float<T>(value));
}

template <class Stored, int kDim>
class Tiles {
 public:
  using L = Layout<Stored, kDim>;
  using T = typename L::T;

  __device__ Tiles(const PagedAttention& call, const PagedWork& work)
      : call_(call),
        work_(work),
        dim_(static_cast<int>(call.head_dim)),
        seen_from_(work.begin(0)),
        own_block_((work.segment.context_tokens - 1) / call.page_tokens * call.page_tokens) {
    while ((std::int64_t{1} << page_shift_) < call.page_tokens) ++page_shift_;
  }

  // Loads K and V of the tokens [first, first + kKeys), or starts to copy them. Writes zeros where
  // no row of the block looks, since pages before the window may be gone.
  __device__ void load(std::int64_t first, std::int64_t end, T* k_tile, T* v_tile) const {
    constexpr int kChunks = kDim / 8;
    TRIPHASE_NO_UNROLL
    for (int i = static_cast<int>(threadIdx.x); i < L::kKeys * kChunks; i += kThreads) {
      const int line = i / kChunks;
      const int c = i % kChunks * 8;
      const std::int64_t token = first + line;
      const bool valid = token >= seen_from_ && token < end && c < dim_;
      const int to = line * L::kPitch + c;
      if constexpr (L::kCodes) {
        if (!valid) {
          const float zeros[8] = {};
          store_terms(k_tile + to, zeros);
          store_terms(v_tile + to, zeros);
        } else if (token >= own_block_) {
          const std::int64_t at = place(work_.segment.partial_page, token) + c;
          store_partial(k_tile + to, call_.partial_k, at);
          store_partial(v_tile + to, call_.partial_v, at);
        } else {
          const std::int64_t entry = work_.segment.pages_begin + (token >> page_shift_);
          const std::int64_t at = place(call_.pages[entry], token) + c;
          store_dequantized(k_tile + to, call_.k, at, entry, 0, c);
          store_dequantized(v_tile + to, call_.v, at, entry, 1, c);
        }
      } else {
        std::int64_t at = 0;
        if (valid) {
          at = place(call_.pages[work_.segment.pages_begin + (token >> page_shift_)], token) + c;
        }
        copy_async16(k_tile + to, static_cast<const T*>(call_.k) + at, valid);
        copy_async16(v_tile + to, static_cast<const T*>(call_.v) + at, valid);
      }
    }
  }

 private:
  __device__ std::int64_t place(std::int64_t page, std::int64_t token) const {
    return (((page * call_.kv_heads + work_.head) << page_shift_) +
            (token & ((std::int64_t{1} << page_shift_) - 1))) *
           dim_;
  }

  // Eight elements of a line, in terms.
  __device__ static void store_terms(T* to, const float (&value)[8]) {
    unsigned high[4];
    unsigned low[4];
    TRIPHASE_UNROLL
    for (int i = 0; i < 4; ++i) {
      high[i] = pack2<T>(value[2 * i], value[2 * i + 1]);
      const float2 kept = unpack2<T>(high[i]);
      low[i] = pack2<T>(value[2 * i] - kept.x, value[2 * i + 1] - kept.y);
    }
    store16(to, make_uint4(high[0], high[1], high[2], high[3]));
    store16(to + L::kTermElements, make_uint4(low[0], low[1], low[2], low[3]));
  }

  // Of the partial pages: exact, since two BF16 terms hold whatever F16 or BF16 holds.
  __device__ void store_partial(T* to, const void* pool, std::int64_t at) const {
    const uint4 bits = load16(static_cast<const std::uint16_t*>(pool) + at);
    if (call_.partial_dtype == DType::kBF16) {
      store16(to, bits);
      store16(to + L::kTermElements, make_uint4(0U, 0U, 0U, 0U));
      return;
    }
    const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
    float value[8];
    TRIPHASE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float2 pair = unpack2<Half>(words[i]);
      value[2 * i] = pair.x;
      value[2 * i + 1] = pair.y;
    }
    store_terms(to, value);
  }

  __device__ void store_dequantized(T* to, const void* codes, std::int64_t at, std::int64_t entry,
                                    int which, int c) const {
    const uint2 bits = load8(static_cast<const unsigned char*>(codes) + at);
    const float* lambda =
        call_.scales +
        ((call_.scale_pages[entry] * 2 + which) * call_.kv_heads + work_.head) * 2 * dim_ + c;
    float value[8];
    TRIPHASE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const uint4 factors = load16(lambda + 4 * half);
      const uint4 zeros = load16(lambda + dim_ + 4 * half);
      const unsigned factor[4] = {factors.x, factors.y, factors.z, factors.w};
      const unsigned zero[4] = {zeros.x, zeros.y, zeros.z, zeros.w};
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) {
        constexpr float kMagic = 8388608.0F;  // 2^23: the code is in its lowest bits
        const unsigned number = byte_permute(half == 0 ? bits.x : bits.y, float_bits(kMagic),
                                             0x7650U + static_cast<unsigned>(i));
        value[4 * half + i] =
            bits_float(factor[i]) * (bits_float(number) - kMagic - bits_float(zero[i]));
      }
    }
    store_terms(to, value);
  }

  const PagedAttention& call_;
  const PagedWork& work_;
  int dim_;
  int page_shift_ = 0;
  std::int64_t seen_from_;
  std::int64_t own_block_;
};

// The 16 rows of a warp: this lane's are `row` and `row` + 8 of the block.
template <class Stored, int kDim>
class RowWarp {
 public:
  using L = Layout<Stored, kDim>;
  using T = typename L::T;
  static constexpr int kScoreTiles = L::kKeys / 8;
  static constexpr int kOutputTiles = kDim / 8;

  __device__ RowWarp(const PagedWork& work, const T* queries)
      : queries_(queries + uniform_warp_id() * 16 * L::kPitch),
        row_(uniform_warp_id() * 16 + lane_id() / 4) {
    for (int half = 0; half < 2; ++half) {
      const int row = row_ + 8 * half;
      // A row beyond the block's sees nothing.
      last_[half] = row < work.rows ? work.position(row) : -1;
      first_[half] = row < work.rows ? work.begin(row) : 0;
      top_[half] = -INFINITY;
      sum_[half] = 0.0F;
    }
  }

  // Adds a tile of keys that starts at token `first`; tokens from `end` on do not count.
  __device__ __forceinline__ void attend(const T* k_tile, const T* v_tile, std::int64_t first,
                                         std::int64_t end) {
    float score[kScoreTiles][4] = {};
    multiply_keys(k_tile, score);
    mask(first, end, score);
    update_softmax(score);
    add_values(v_tile, score);
  }

  // Sums over the lanes that share a row, once at the end.
  __device__ __forceinline__ void finish() {
    for (int half = 0; half < 2; ++half) sum_[half] = warp_sum(sum_[half], 4);
  }

  __device__ int row(int half) const { return row_ + 8 * half; }
  __device__ float top(int half) const { return top_[half]; }
  __device__ float sum(int half) const { return sum_[half]; }
  // Calls store(half, column, value) for every output of this lane.
  template <class Store>
  __device__ __forceinline__ void for_outputs(const Store& store) const {
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kOutputTiles; ++tile) {
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) {
        store(i / 2, tile * 8 + lane_id() % 4 * 2 + i % 2, output_[tile][i]);
      }
    }
  }

 private:
  // Row within a pair of 8 x 8 tiles one below the other, and column of the tile to the right, for
  // the addresses of load_matrices: tiles go down first, then right, or the other way round.
  __device__ static int down() { return lane_id() / 8 % 2 * 8 + lane_id() % 8; }
  __device__ static int right() { return lane_id() / 16 * 8; }

  __device__ __forceinline__ void multiply_keys(const T* k_tile, float (&score)[kScoreTiles][4]) {
    TRIPHASE_UNROLL
    for (int k = 0; k < kDim / 16; ++k) {
      unsigned query[L::kTerms][4];
      TRIPHASE_UNROLL
      for (int term = 0; term < L::kTerms; ++term) {
        load_matrices(query[term],
                      queries_ + (term * kRows + down()) * L::kPitch + k * 16 + right());
      }
      TRIPHASE_UNROLL
      for (int pair = 0; pair < kScoreTiles / 2; ++pair) {
        TRIPHASE_UNROLL
        for (int of_key = 0; of_key < L::kCacheTerms; ++of_key) {
          unsigned key[4];
          load_matrices(key, k_tile + of_key * L::kTermElements +
                                 (pair * 16 + right() + lane_id() % 8) * L::kPitch + k * 16 +
                                 lane_id() / 8 % 2 * 8);
          TRIPHASE_UNROLL
          for (int term = 0; term < L::kTerms - of_key; ++term) {
            multiply_tiles<T>(score[2 * pair], query[term], {key[0], key[1]});
            multiply_tiles<T>(score[2 * pair + 1], query[term], {key[2], key[3]});
          }
        }
      }
    }
  }

  __device__ __forceinline__ void mask(std::int64_t first, std::int64_t end,
                                       float (&score)[kScoreTiles][4]) const {
    // Nearly all tiles lie before every row's end and behind every row's begin.
    const std::int64_t last = first + L::kKeys - 1;
    const bool whole =
        last < end && last <= smaller(last_[0], last_[1]) && first >= larger(first_[0], first_[1]);
    if (whole) return;
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kScoreTiles; ++tile) {
      TRIPHASE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const std::int64_t token = first + tile * 8 + lane_id() % 4 * 2 + i % 2;
        if (token >= end || token > last_[i / 2] || token < first_[i / 2]) {
          score[tile][i] = -INFINITY;
        }
      }
    }
  }

  // Turns scores into weights relative to the rows' new maxima.
  __device__ __forceinline__ void update_softmax(float (&score)[kScoreTiles][4]) {
    TRIPHASE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float tile_top = -INFINITY;
      TRIPHASE_UNROLL
      for (int tile = 0; tile < kScoreTiles; ++tile) {
        tile_top = larger(tile_top, larger(score[tile][2 * half], score[tile][2 * half + 1]));
      }
      const float top = larger(top_[half], warp_max(tile_top, 4));
      // A row that has seen nothing yet keeps weights of 0, not exp of (inf - inf).
      const float base = top == -INFINITY ? 0.0F : top;
      const float rescale = exp2_fast(top_[half] - base);
      top_[half] = top;
      sum_[half] *= rescale;
      TRIPHASE_UNROLL
      for (int tile = 0; tile < kOutputTiles; ++tile) {
        output_[tile][2 * half] *= rescale;
        output_[tile][2 * half + 1] *= rescale;
      }
      TRIPHASE_UNROLL
      for (int tile = 0; tile < kScoreTiles; ++tile) {
        TRIPHASE_UNROLL
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          score[tile][i] = exp2_fast(score[tile][i] - base);
          sum_[half] += score[tile][i];
        }
      }
    }
  }

  // A lane's weights are where the next product wants them: scores' columns are values' rows.
  __device__ __forceinline__ void add_values(const T* v_tile,
                                             const float (&weight)[kScoreTiles][4]) {
    TRIPHASE_UNROLL
    for (int k = 0; k < L::kKeys / 16; ++k) {
      unsigned weights[L::kTerms][4];
      TRIPHASE_UNROLL
      for (int term = 0; term < L::kTerms; ++term) {
        TRIPHASE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float* pair = weight[2 * k + i / 2] + i % 2 * 2;
          weights[term][i] = pack2<T>(term_of<T>(pair[0], term), term_of<T>(pair[1], term));
        }
      }
      TRIPHASE_UNROLL
      for (int pair = 0; pair < kOutputTiles / 2; ++pair) {
        TRIPHASE_UNROLL
        for (int of_value = 0; of_value < L::kCacheTerms; ++of_value) {
          unsigned value[4];
          load_matrices_transposed(value, v_tile + of_value * L::kTermElements +
                                              (k * 16 + down()) * L::kPitch + pair * 16 + right());
          TRIPHASE_UNROLL
          for (int term = 0; term < L::kTerms - of_value; ++term) {
            multiply_tiles<T>(output_[2 * pair], weights[term], {value[0], value[1]});
            multiply_tiles<T>(output_[2 * pair + 1], weights[term], {value[2], value[3]});
          }
        }
      }
    }
  }

  const T* queries_;
  int row_;
  std::int64_t last_[2];
  std::int64_t first_[2];
  float top_[2];
  float sum_[2];
  float output_[kOutputTiles][4] = {};
};

template <class Stored, int kDim>
__device__ inline void load_queries(const PagedAttention& call, const PagedWork& work,
                                    typename Layout<Stored, kDim>::T* queries) {
  using L = Layout<Stored, kDim>;
  using T = typename L::T;
  const int dim = static_cast<int>(call.head_dim);
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kDim; i += kThreads) {
    const int row = i / kDim;
    const int c = i % kDim;
    float value = 0.0F;
    if (row < work.rows && c < dim) {
      const std::int64_t at = (work.segment.query_begin + work.query(row)) * call.q_stride +
                              (work.head * work.group + row % work.group) * call.head_dim + c;
      value = call.q[at] * (call.scale * kLog2E);
    }
    TRIPHASE_UNROLL
    for (int term = 0; term < L::kTerms; ++term) {
      queries[(term * kRows + row) * L::kPitch + c] = from_float<T>(term_of<T>(value, term));
    }
  }
}

// Block z: tokens [z, z + 1) * split_tokens, a multiple of the tile.
template <class Stored, int kDim>
__global__ void __launch_bounds__(kThreads, kDim > 128 ? 1 : 2)
    prefill_attention_kernel(PagedAttention call, std::int64_t split_tokens) {
  using L = Layout<Stored, kDim>;
  using T = typename L::T;
  TRIPHASE_DYNAMIC_SHARED(bytes);
  auto* queries = reinterpret_cast<T*>(bytes);
  T* ring = queries + L::kQueryElements;
  const PagedWork work = find_paged_work<kRows>(call);
  const int splits = static_cast<int>(gridDim.z);

  // Tokens that any of the block's rows sees, within this split.
  const std::int64_t split_begin = static_cast<std::int64_t>(blockIdx.z) * split_tokens;
  const std::int64_t end = smaller(split_begin + split_tokens, work.position(work.rows - 1) + 1);
  const std::int64_t begin = larger(split_begin, work.begin(0) / L::kKeys * L::kKeys);

  load_queries<Stored, kDim>(call, work, queries);
  const Tiles<Stored, kDim> tiles(call, work);
  const auto load = [&](std::int64_t first, T* tile) {
    if (first < end) tiles.load(first, end, tile, tile + L::kTileElements);
    copy_async_commit();
  };
  if constexpr (L::kStages > 1) load(begin, ring);
  RowWarp<Stored, kDim> rows(work, queries);
  int stage = 0;
  TRIPHASE_NO_UNROLL
  for (std::int64_t first = begin; first < end; first += L::kKeys) {
    T* now = ring + stage * 2 * L::kTileElements;
    if constexpr (L::kStages > 1) {
      stage = 1 - stage;
      load(first + L::kKeys, ring + stage * 2 * L::kTileElements);
      copy_async_wait<1>();
    } else {
      load(first, now);
    }
    __syncthreads();
    rows.attend(now, now + L::kTileElements, first, end);
    __syncthreads();
  }
  copy_async_wait<0>();
  rows.finish();

  const int dim = static_cast<int>(call.head_dim);
  if (splits > 1) {
    float* partial = paged_partial<kRows>(call, blockIdx.z, splits);
    rows.for_outputs([&](int half, int c, float value) {
      if (c < dim) partial[rows.row(half) * dim + c] = value;
    });
    if (lane_id() % 4 != 0) return;
    for (int half = 0; half < 2; ++half) {
      partial[kRows * dim + rows.row(half)] = rows.top(half);
      partial[kRows * (dim + 1) + rows.row(half)] = rows.sum(half);
    }
    return;
  }
  rows.for_outputs([&](int half, int c, float value) {
    const int row = rows.row(half);
    if (row >= work.rows || c >= dim) return;
    const std::int64_t head = work.head * work.group + row % work.group;
    call.out[(work.segment.query_begin + work.query(row)) * call.out_stride + head * dim + c] =
        rows.sum(half) > 0.0F ? value / rows.sum(half) : 0.0F;
  });
  if (call.log_sums == nullptr || lane_id() % 4 != 0) return;
  for (int half = 0; half < 2; ++half) {
    const int row = rows.row(half);
    if (row >= work.rows) continue;
    call.log_sums[(work.segment.query_begin + work.query(row)) * call.heads +
                  work.head * work.group + row % work.group] =
        natural_log_sum(rows.top(half), rows.sum(half));
  }
}

__global__ void __launch_bounds__(kThreads)
    prefill_attention_merge_kernel(PagedAttention call, int splits) {
  merge_paged_splits<kRows>(call, splits);
}

// Calls body.operator()<Stored, kDim>() for the cache's type and the columns that hold head_dim.
template <class Body>
void for_layout(DType dtype, std::int64_t head_dim, const Body& body) {
  const auto for_dim = [&]<class Stored>() {
    if (head_dim <= 64) return body.template operator()<Stored, 64>();
    if (head_dim <= 128) return body.template operator()<Stored, 128>();
    body.template operator()<Stored, 256>();
  };
  switch (dtype) {
    case DType::kF16:
      return for_dim.template operator()<Half>();
    case DType::kBF16:
      return for_dim.template operator()<BFloat16>();
    default:
      return for_dim.template operator()<unsigned char>();
  }
}

}  // namespace

void prefill_attention(const PagedAttention& call, std::int64_t query_blocks,
                       const PrefillSplits& splits, StreamHandle stream) {
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
  const auto check = [&](bool condition, const char* what) {
    require(condition, "prefill_attention", what, shape);
  };
  check(call.kv_heads > 0 && call.kv_heads <= 65535 && call.heads > 0 &&
            call.heads % call.kv_heads == 0,
        "heads must be a positive multiple of kv_heads");
  check(prefill_attention_serves(call.dtype, call.partial_dtype, call.head_dim, call.page_tokens,
                                 call.heads / call.kv_heads),
        "the cache's type, head_dim, page_tokens or group");
  check(call.q != nullptr && call.k != nullptr && call.v != nullptr && call.out != nullptr &&
            call.segments != nullptr && call.pages != nullptr,
        "null pointer");
  check(call.dtype != DType::kInt8 || (call.scales != nullptr && call.partial_k != nullptr &&
                                       call.partial_v != nullptr && call.scale_pages != nullptr),
        "an INT8 cache needs scales, their pages and the partial pages");
  check(splits.count >= 1 && splits.count <= 65535 && splits.tokens > 0 && splits.tokens % 128 == 0,
        "splits must be 1 to 65535, of whole pages of 128");
  check(splits.count == 1 || call.partials != nullptr, "splits need partials");
  if (query_blocks == 0) return;
  const dim3 grid{static_cast<unsigned>(query_blocks), static_cast<unsigned>(call.kv_heads),
                  static_cast<unsigned>(splits.count)};
  for_layout(call.dtype, call.head_dim, [&]<class Stored, int kDim>() {
    constexpr std::size_t kShared = Layout<Stored, kDim>::kSharedBytes;
    check(static_cast<std::int64_t>(kShared) ==
              prefill_attention_shared_bytes(call.dtype, call.head_dim),
          "shared memory that kernels/sizing does not know");
    allow_shared_bytes(&prefill_attention_kernel<Stored, kDim>, kShared, "prefill_attention",
                       shape);
    TRIPHASE_LAUNCH((prefill_attention_kernel<Stored, kDim>), grid, kThreads, kShared, stream, call,
                    splits.tokens);
  });
  check_launched("prefill_attention", shape);
  if (splits.count == 1) return;
  const dim3 merge_grid{grid.x, grid.y, 1};
  TRIPHASE_LAUNCH((prefill_attention_merge_kernel), merge_grid, kThreads, 0, stream, call,
                  static_cast<int>(splits.count));
  check_launched("prefill_attention (merge)", shape);
}

}  // namespace triphase::cuda
