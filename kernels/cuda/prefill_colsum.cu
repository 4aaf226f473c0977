#include <string>

#include "kernels/cuda/column_tiles.h"
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
  // Queries before the tile's first key see none of it.
  ColumnRows rows = column_rows(call);
  rows.begin = larger(rows.begin, first);
  const ColumnTiles tiles(call, head, reinterpret_cast<float*>(bytes));
  if (rows.count() > 0) {
    tiles.load_keys<T>(first, first_seen(call, rows.begin), rows.end);
  }
  float sum = token < rows.end ? sums[head * sum_stride + token] : 0.0F;
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
      if (token <= positions[i] && token >= first_seen(call, positions[i])) {
        sum += exp2_fast(dot[i] - row_log_sums[i]);
      }
    }
  }
  if (token < rows.end) sums[head * sum_stride + token] = sum;
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
  check(call.dtype != DType::kInt8 || call.queries == 0 ||
            call.first_position >= (context - 1) / call.page_tokens * call.page_tokens,
        "INT8 queries of more than one block");
}

void prefill_colsum(const PrefillColumns& call, const float* log_sums, float* sums,
                    std::int64_t sum_stride, StreamHandle stream) {
  check_columns(call, "prefill_colsum");
  const std::int64_t keys = smaller(call.row_end, call.first_position + call.queries);
  const auto shape = [&] {
    return shape_of(call) + ", " + shape_text({{"sum_stride", sum_stride}});
  };
  require(sum_stride >= keys, "prefill_colsum", "sum_stride below the context", shape);
  require(log_sums != nullptr && sums != nullptr, "prefill_colsum", "null pointer", shape);
  if (keys <= larger(call.row_begin, call.first_position)) return;
  const dim3 grid{static_cast<unsigned>(ceil_div<std::int64_t>(keys, kColumnThreads)),
                  static_cast<unsigned>(call.kv_heads), 1};
  const std::size_t shared = column_tile_bytes(call.head_dim);
  for_cache_type(call.dtype, "prefill_colsum", shape, [&]<class T>() {
    allow_shared_bytes(&prefill_colsum_kernel<T>, shared, "prefill_colsum", shape);
    TRIPHASE_LAUNCH((prefill_colsum_kernel<T>), grid, kColumnThreads, shared, stream, call,
                    log_sums, sums, sum_stride);
  });
  check_launched("prefill_colsum", shape);
}

}  // namespace triphase::cuda
