#include <string>

#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/prefill_colsum.h"

namespace triphase::cuda {
namespace {

std::string shape_of(const PrefillColumns& call) {
  return shape_text({{"queries", call.queries},
                     {"first_position", call.first_position},
                     {"row_begin", call.row_begin},
                     {"row_end", call.row_end},
                     {"window", call.window},
                     {"heads", call.heads},
                     {"kv_heads", call.kv_heads},
                     {"head_dim", call.head_dim},
                     {"page_tokens", call.page_tokens}}) +
         ", cache " + std::string(dtype_name(call.dtype));
}

// The rows that see any key from `first` on, and the end of the keys that any of them sees.
__device__ inline ColumnRows rows_below(const PrefillColumns& call, std::int64_t first) {
  ColumnRows rows = column_rows(call);
  if (call.keys == 0) rows.begin = larger(rows.begin, first);
  return rows;
}
__device__ inline std::int64_t keys_end(const PrefillColumns& call, const ColumnRows& rows) {
  return call.keys > 0 ? call.keys : rows.end;
}

// Block (key tile, KV head), one thread per key.
template <class T>
__global__ void __launch_bounds__(kColumnThreads, 5)
    prefill_colsum_kernel(PrefillColumns call, const float* log_sums, float* sums,
                          std::int64_t sum_stride) {
  TRIPHASE_DYNAMIC_SHARED(bytes);
  TRIPHASE_SHARED(float, row_log_sums, kColumnRows);
  TRIPHASE_SHARED(int, positions, kColumnRows);
  const std::int64_t head = blockIdx.y;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kColumnThreads;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t token = first + thread;
  const ColumnRows rows = rows_below(call, first);
  const std::int64_t end = keys_end(call, rows);
  const ColumnTiles tiles(call, head, reinterpret_cast<float*>(bytes));
  if (rows.count() > 0) {
    tiles.load_keys<T>(first, first_seen(call, rows.begin), end);
  }
  const bool counts =
      call.key_counts == nullptr || (token < end && counted_keys(call, head, token) > 0.0F);
  float sum = token < end && !call.fresh_sums ? sums[head * sum_stride + token] : 0.0F;
  TRIPHASE_NO_UNROLL
  for (std::int64_t row = 0; row < rows.count(); row += kColumnRows) {
    __syncthreads();
    tiles.load_rows(rows, row);
    if (thread < kColumnRows) {
      const std::int64_t own = row + thread;
      const std::int64_t position = rows.position(own);
      positions[thread] = own < rows.count() ? static_cast<int>(position) : -1;
      if (own < rows.count()) {
        row_log_sums[thread] = log_sums[(position - call.first_position) * call.heads +
                                        head * rows.group + own % rows.group] *
                               kColumnLog2E;
      }
    }
    __syncthreads();
    float dot[kColumnRows];
    tiles.multiply(dot);
    TRIPHASE_UNROLL
    for (int i = 0; i < kColumnRows; ++i) {
      if (counts && positions[i] >= 0 && token < seen_end(call, positions[i]) &&
          token >= first_seen(call, positions[i])) {
        sum += exp2_fast(dot[i] - row_log_sums[i]);
      }
    }
  }
  if (token < end) sums[head * sum_stride + token] = sum;
}

// The same on tensor cores. Block (tile of kSumKeys keys, KV head).
template <class T, int kDim>
__global__ void __launch_bounds__(ColumnSums<T, kDim>::kThreads, ColumnSums<T, kDim>::kBlocks)
    prefill_sum_scores_kernel(PrefillColumns call, const float* log_sums, float* sums,
                              std::int64_t sum_stride) {
  using Tiles = ColumnSums<T, kDim>;
  TRIPHASE_DYNAMIC_SHARED(bytes);
  TRIPHASE_SHARED(float, row_log_sums, Tiles::kRows);
  TRIPHASE_SHARED(int, seen_from, Tiles::kRows);
  TRIPHASE_SHARED(int, seen_to, Tiles::kRows);
  const std::int64_t head = blockIdx.y;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kSumKeys;
  const int thread = static_cast<int>(threadIdx.x);
  const ColumnRows rows = rows_below(call, first);
  const std::int64_t end = keys_end(call, rows);
  if (rows.count() == 0) return;
  const Tiles tiles(call, head, first, larger(first, first_seen(call, rows.begin)), end, bytes);
  float* const own = sums + head * sum_stride + first;
  typename Tiles::Sums sum;
  TRIPHASE_UNROLL
  for (int tile = 0; tile < Tiles::kKeyTiles; ++tile) {
    TRIPHASE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int key = Tiles::key(tile, half);
      sum[tile][half] = first + key < end && !call.fresh_sums ? own[key] : 0.0F;
    }
  }
  const auto count = static_cast<int>(rows.count());
  const auto group = static_cast<unsigned>(rows.group);
  const std::int64_t begin = rows.begin - call.first_position;
  TRIPHASE_NO_UNROLL
  for (int row = 0; row < count; row += Tiles::kRows) {
    __syncthreads();
    tiles.load_rows([&](int i) -> const float* {
      if (row + i >= count) return nullptr;
      const auto at = static_cast<unsigned>(row + i);
      return call.q + (begin + at / group) * call.q_stride +
             (head * group + at % group) * call.head_dim;
    });
    if (thread < Tiles::kRows) {
      const bool there = row + thread < count;
      const auto at = static_cast<unsigned>(there ? row + thread : row);
      const std::int64_t query = begin + at / group;
      const std::int64_t position = call.first_position + query;
      seen_from[thread] = static_cast<int>(first_seen(call, position));
      seen_to[thread] = there ? static_cast<int>(seen_end(call, position)) : 0;
      row_log_sums[thread] =
          log_sums[query * call.heads + head * group + at % group] * kColumnLog2E;
    }
    __syncthreads();
    typename Tiles::Scores weight;
    tiles.multiply(weight);
    TRIPHASE_UNROLL
    for (int n = 0; n < Tiles::kRowTiles; ++n) {
      TRIPHASE_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int i = n * 8 + lane_id() % 4 * 2 + j % 2;
        TRIPHASE_UNROLL
        for (int tile = 0; tile < Tiles::kKeyTiles; ++tile) {
          float& value = weight[tile][n][j];
          const int token = static_cast<int>(first) + Tiles::key(tile, j / 2);
          const bool sees = token >= seen_from[i] && token < seen_to[i];
          value = sees ? exp2_fast(value - row_log_sums[i]) : 0.0F;
        }
      }
    }
    Tiles::add(weight, sum);
  }
  if (lane_id() % 4 != 0) return;
  TRIPHASE_UNROLL
  for (int tile = 0; tile < Tiles::kKeyTiles; ++tile) {
    TRIPHASE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int key = Tiles::key(tile, half);
      if (first + key >= end) continue;
      if constexpr (std::is_same_v<T, float>) {
        const bool counts = counted_keys(call, head, first + key) > 0.0F;
        if (counts || call.fresh_sums) own[key] = counts ? sum[tile][half] : 0.0F;
      } else {
        own[key] = sum[tile][half];
      }
    }
  }
}

}  // namespace

void check_columns(const PrefillColumns& call, const char* kernel) {
  const std::int64_t context = call.first_position + call.queries;
  const auto check = [&](bool condition, const char* what) {
    require(condition, kernel, what, [&] { return shape_of(call); });
  };
  check(
      call.kv_heads > 0 && call.heads <= 65535 && call.heads > 0 && call.heads % call.kv_heads == 0,
      "heads must be a positive multiple of kv_heads");
  check(call.head_dim > 0 && call.head_dim <= kColumnMaxDim, "head_dim must be 1 to 256");
  check(call.page_tokens > 0 && call.first_position >= 0 && call.queries >= 0 && call.window >= 0,
        "sizes");
  check(call.q != nullptr && call.k != nullptr && call.pages != nullptr, "null pointer");
  check(call.dtype != DType::kInt8 || (call.scales != nullptr && call.scale_pages != nullptr &&
                                       call.partial_k != nullptr && call.partial_page >= 0),
        "an INT8 cache needs scales, their pages and the partial page");
  check(call.keys == 0 || (call.dtype == DType::kF32 && call.page_tokens == call.keys &&
                           call.key_counts != nullptr && call.window == 0),
        "centroids are F32 keys of one page, with counts");
  check(!call.fresh_sums || call.keys > 0, "sums of tokens go on from what is there");
  check(call.dtype != DType::kInt8 || call.queries == 0 ||
            call.first_position >= (context - 1) / call.page_tokens * call.page_tokens,
        "INT8 queries of more than one block");
}

void prefill_colsum(const PrefillColumns& call, const float* log_sums, float* sums,
                    std::int64_t sum_stride, StreamHandle stream) {
  check_columns(call, "prefill_colsum");
  const std::int64_t rows_end = smaller(call.row_end, call.first_position + call.queries);
  const std::int64_t keys = call.keys > 0 ? call.keys : rows_end;
  const auto shape = [&] {
    return shape_of(call) + ", " + shape_text({{"sum_stride", sum_stride}});
  };
  require(sum_stride >= keys, "prefill_colsum", "sum_stride below the context", shape);
  require(log_sums != nullptr && sums != nullptr, "prefill_colsum", "null pointer", shape);
  if (rows_end <= larger(call.row_begin, call.first_position)) return;
  const bool on_tensor_cores = column_scores_serve(call);
  const dim3 grid{static_cast<unsigned>(
                      ceil_div<std::int64_t>(keys, on_tensor_cores ? kSumKeys : kColumnThreads)),
                  static_cast<unsigned>(call.kv_heads), 1};
  const std::size_t shared = column_tile_bytes(call.head_dim);
  for_cache_type(call.dtype, "prefill_colsum", shape, [&]<class T>() {
    const auto on_tiles = [&]<int kDim>() {
      constexpr std::size_t kBytes = ColumnSums<T, kDim>::kBytes;
      static_assert(kBytes <= std::size_t{48} << 10);
      TRIPHASE_LAUNCH((prefill_sum_scores_kernel<T, kDim>), grid, (ColumnSums<T, kDim>::kThreads),
                      kBytes, stream, call, log_sums, sums, sum_stride);
    };
    if (on_tensor_cores && call.head_dim <= 64) return on_tiles.template operator()<64>();
    if (on_tensor_cores) return on_tiles.template operator()<128>();
    allow_shared_bytes(&prefill_colsum_kernel<T>, shared, "prefill_colsum", shape);
    TRIPHASE_LAUNCH((prefill_colsum_kernel<T>), grid, kColumnThreads, shared, stream, call,
                    log_sums, sums, sum_stride);
  });
  check_launched("prefill_colsum", shape);
}

}  // namespace triphase::cuda
