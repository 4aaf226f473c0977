#include <cmath>

#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/column_scores.h"
#include "kernels/cuda/column_tiles.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/prefill_colsum.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

// A block's rows [first_row, last_row], and the centroids [begin, end) of its split.
struct SplitRows {
  std::int64_t first_row;
  std::int64_t last_row;
  std::int64_t begin;
  std::int64_t end;
};
template <int kRows>
__device__ inline SplitRows split_rows(const PrefillColumns& call, const ColumnRows& rows) {
  SplitRows split{};
  split.first_row = static_cast<std::int64_t>(blockIdx.x) * kRows;
  split.last_row = smaller(split.first_row + kRows, rows.count()) - 1;
  split.begin = static_cast<std::int64_t>(blockIdx.z) * kColumnSplitTokens;
  split.end = smaller(split.begin + kColumnSplitTokens, call.keys);
  return split;
}

// Block (row tile, KV head, split of the centroids): per row the maximum of its logits in base 2
// and the sum of their powers, in partials [row][kv_head][split][2]. A thread keeps its own keys of
// every tile, then the block merges, so that a row's bits depend on itself and its keys alone.
__global__ void __launch_bounds__(kColumnThreads, 8)
    prefill_log_sums_kernel(PrefillColumns call, float* partials) {
  TRIPHASE_DYNAMIC_SHARED(bytes);
  TRIPHASE_SHARED(float, scratch, kBlockReduceWords);
  const std::int64_t head = blockIdx.y;
  const int thread = static_cast<int>(threadIdx.x);
  const ColumnRows rows = column_rows(call);
  const auto [first_row, last_row, begin, end] = split_rows<kColumnRows>(call, rows);

  const ColumnTiles tiles(call, head, reinterpret_cast<float*>(bytes));
  tiles.load_rows(rows, first_row);
  float top[kColumnRows];
  float sum[kColumnRows];
  TRIPHASE_UNROLL
  for (int i = 0; i < kColumnRows; ++i) {
    top[i] = -INFINITY;
    sum[i] = 0.0F;
  }
  TRIPHASE_NO_UNROLL
  for (std::int64_t first = begin; first < end; first += kColumnThreads) {
    __syncthreads();
    tiles.load_keys<float>(first, begin, end);
    __syncthreads();
    float dot[kColumnRows];
    tiles.multiply(dot);
    const std::int64_t key = first + thread;
    const float more = key < end ? log_key_count(call, head, key) : -INFINITY;
    if (more == -INFINITY) continue;
    TRIPHASE_UNROLL
    for (int i = 0; i < kColumnRows; ++i) {
      dot[i] += more;
      const float new_top = larger(top[i], dot[i]);
      sum[i] = sum[i] * exp2_fast(top[i] - new_top) + exp2_fast(dot[i] - new_top);
      top[i] = new_top;
    }
  }
  __syncthreads();
  TRIPHASE_UNROLL
  for (int i = 0; i < kColumnRows; ++i) {
    const float most = block_max(top[i], scratch);
    const float total =
        block_sum(sum[i] > 0.0F ? sum[i] * exp2_fast(top[i] - most) : 0.0F, scratch);
    if (thread == 0 && first_row + i <= last_row) {
      float* partial =
          partials + (((first_row + i) * call.kv_heads + head) * gridDim.z + blockIdx.z) * 2;
      partial[0] = most;
      partial[1] = total;
    }
  }
}

// The same partial results on tensor cores, by tiles of kScoreRows rows. A lane keeps its own keys
// of every tile of two rows.
__global__ void __launch_bounds__(kScoreThreads, 4)
    prefill_log_scores_kernel(PrefillColumns call, float* partials) {
  using Tiles = ColumnScores<float>;
  TRIPHASE_DYNAMIC_SHARED(bytes);
  TRIPHASE_SHARED(float, more, Tiles::kKeys);
  const std::int64_t head = blockIdx.y;
  const ColumnRows rows = column_rows(call);
  // Not a structured binding: the lambda below takes what it needs of it.
  const SplitRows split = split_rows<kScoreRows>(call, rows);
  const std::int64_t first_row = split.first_row;
  const std::int64_t last_row = split.last_row;

  const Tiles tiles(call, bytes);
  tiles.load_rows([&](int i) -> const float* {
    const std::int64_t row = first_row + i;
    if (row > last_row) return nullptr;
    return call.q + (rows.position(row) - call.first_position) * call.q_stride +
           (head * rows.group + row % rows.group) * call.head_dim;
  });
  float top[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0F, 0.0F};
  TRIPHASE_NO_UNROLL
  for (std::int64_t first = split.begin; first < split.end; first += Tiles::kKeys) {
    __syncthreads();
    tiles.load_keys(head, first, split.begin, split.end);
    const std::int64_t key = first + threadIdx.x;
    if (threadIdx.x < Tiles::kKeys) {
      more[threadIdx.x] = key < split.end ? log_key_count(call, head, key) : -INFINITY;
    }
    __syncthreads();
    typename Tiles::Scores score;
    tiles.multiply(score);
    TRIPHASE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float most = top[half];
      TRIPHASE_UNROLL
      for (int n = 0; n < Tiles::kKeys / 8; ++n) {
        TRIPHASE_UNROLL
        for (int j = 2 * half; j < 2 * half + 2; ++j) {
          score[n][j] += more[Tiles::key(n, j)];
          most = largest(most, score[n][j]);
        }
      }
      if (most == -INFINITY) continue;
      float total = sum[half] * exp2_fast(top[half] - most);
      TRIPHASE_UNROLL
      for (int n = 0; n < Tiles::kKeys / 8; ++n) {
        total += exp2_fast(score[n][2 * half] - most) + exp2_fast(score[n][2 * half + 1] - most);
      }
      top[half] = most;
      sum[half] = total;
    }
  }
  TRIPHASE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float most = warp_max(top[half], 4);
    const float total =
        warp_sum(sum[half] > 0.0F ? sum[half] * exp2_fast(top[half] - most) : 0.0F, 4);
    const std::int64_t row = first_row + Tiles::row(2 * half);
    if (lane_id() % 4 != 0 || row > last_row) continue;
    float* partial = partials + ((row * call.kv_heads + head) * gridDim.z + blockIdx.z) * 2;
    partial[0] = most;
    partial[1] = total;
  }
}

// One thread per row and KV head merges its splits in ascending order.
__global__ void __launch_bounds__(kColumnThreads)
    prefill_log_sums_merge_kernel(PrefillColumns call, const float* partials, int splits,
                                  float* log_sums) {
  const ColumnRows rows = column_rows(call);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x;
  const std::int64_t head = blockIdx.y;
  if (row >= rows.count()) return;
  const float* from = partials + (row * call.kv_heads + head) * splits * 2;
  float top = -INFINITY;
  for (int split = 0; split < splits; ++split) top = larger(top, from[2 * split]);
  float sum = 0.0F;
  for (int split = 0; split < splits; ++split) {
    if (from[2 * split + 1] > 0.0F) sum += from[2 * split + 1] * exp2_fast(from[2 * split] - top);
  }
  const std::int64_t query_head = head * rows.group + row % rows.group;
  log_sums[(rows.position(row) - call.first_position) * call.heads + query_head] =
      (top + log2_fast(sum)) / kLog2E;
}

}  // namespace

void prefill_log_sums(const PrefillColumns& call, float* log_sums, float* partials,
                      StreamHandle stream) {
  check_columns(call, "prefill_log_sums");
  const std::int64_t begin = larger(call.row_begin, call.first_position);
  const std::int64_t end = smaller(call.row_end, call.first_position + call.queries);
  const std::int64_t splits = prefill_log_sum_splits(call.keys);
  const auto shape = [&] {
    return shape_text({{"queries", call.queries},
                       {"heads", call.heads},
                       {"kv_heads", call.kv_heads},
                       {"head_dim", call.head_dim},
                       {"keys", call.keys},
                       {"splits", splits}});
  };
  require(call.keys > 0, "prefill_log_sums", "attention makes those of a cache's keys", shape);
  require(log_sums != nullptr && partials != nullptr, "prefill_log_sums", "null pointer", shape);
  require(splits <= kMostGridY, "prefill_log_sums", "the centroids have too many splits", shape);
  if (end <= begin) return;
  const std::int64_t rows = (end - begin) * (call.heads / call.kv_heads);
  const bool on_tensor_cores = column_scores_serve(call);
  const dim3 grid{static_cast<unsigned>(
                      ceil_div<std::int64_t>(rows, on_tensor_cores ? kScoreRows : kColumnRows)),
                  static_cast<unsigned>(call.kv_heads), static_cast<unsigned>(splits)};
  if (on_tensor_cores) {
    const std::size_t shared = ColumnScores<float>::bytes(call.head_dim);
    allow_shared_bytes(&prefill_log_scores_kernel, shared, "prefill_log_sums", shape);
    TRIPHASE_LAUNCH((prefill_log_scores_kernel), grid, kScoreThreads, shared, stream, call,
                    partials);
  } else {
    const std::size_t shared = column_tile_bytes(call.head_dim);
    allow_shared_bytes(&prefill_log_sums_kernel, shared, "prefill_log_sums", shape);
    TRIPHASE_LAUNCH((prefill_log_sums_kernel), grid, kColumnThreads, shared, stream, call,
                    partials);
  }
  check_launched("prefill_log_sums", shape);
  const dim3 merge_grid{static_cast<unsigned>(ceil_div<std::int64_t>(rows, kColumnThreads)),
                        static_cast<unsigned>(call.kv_heads), 1};
  TRIPHASE_LAUNCH((prefill_log_sums_merge_kernel), merge_grid, kColumnThreads, 0, stream, call,
                  partials, static_cast<int>(splits), log_sums);
  check_launched("prefill_log_sums (merge)", shape);
}

}  // namespace triphase::cuda
