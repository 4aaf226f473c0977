#include <cmath>
#include <string>

#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/dialect.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/sizing/expert_workspace.h"

namespace triphase::cuda {
namespace {

constexpr int kChoiceThreads = 128;  // a warp chooses for a row
constexpr int kGroupThreads = 1024;  // as many as experts, at most
constexpr int kCounts = 8192;        // of rows: in each stretch of rows those of each expert
static_assert(kMaxRoutedExperts <= kGroupThreads && kMaxRoutedExperts <= 32 * kWarpSize);

// Whether a logit is chosen before another one. Columns below 0: none.
__device__ inline bool precedes(float logit, int column, float other, int other_column) {
  if (column < 0 || other_column < 0) return column >= 0;
  const bool is_nan = logit != logit;
  if (is_nan != (other != other)) return is_nan;
  if (!is_nan && logit != other) return logit > other;
  return column < other_column;
}

__global__ void __launch_bounds__(kChoiceThreads)
    choose_experts_kernel(const float* logits, std::int64_t stride, int rows, int columns,
                          int per_row, bool over_chosen, std::int32_t* experts, float* shares) {
  const int row = static_cast<int>(blockIdx.x) * (kChoiceThreads / kWarpSize) + uniform_warp_id();
  if (row >= rows) return;
  logits += row * stride;
  experts += static_cast<std::int64_t>(row) * per_row;
  shares += static_cast<std::int64_t>(row) * per_row;
  unsigned taken = 0;  // bit i: the lane's i-th column
  float largest = 0.0F;
  float sum = 0.0F;
  for (int i = 0; i < per_row; ++i) {
    float best = 0.0F;
    int best_column = -1;
    for (int column = lane_id(); column < columns; column += kWarpSize) {
      if ((taken >> column / kWarpSize & 1U) != 0) continue;
      if (precedes(logits[column], column, best, best_column)) {
        best = logits[column];
        best_column = column;
      }
    }
    for (int step = kWarpSize / 2; step > 0; step /= 2) {
      const float other = shuffle_xor(best, step);
      const int other_column = shuffle_xor(best_column, step);
      if (precedes(other, other_column, best, best_column)) {
        best = other;
        best_column = other_column;
      }
    }
    if (best_column % kWarpSize == lane_id()) taken |= 1U << best_column / kWarpSize;
    if (i == 0) largest = best;
    const float weight = expf(best - largest);
    sum += weight;
    if (lane_id() == 0) {
      experts[i] = best_column;
      shares[i] = weight;
    }
  }
  if (!over_chosen) {
    float part = 0.0F;
    for (int column = lane_id(); column < columns; column += kWarpSize) {
      part += expf(logits[column] - largest);
    }
    sum = warp_sum(part);
  }
  sync_warp();
  for (int i = lane_id(); i < per_row; i += kWarpSize) shares[i] = div_rn(shares[i], sum);
}

// One block. Each warp counts a stretch of rows, whose experts differ within a row; the counts'
// sums are the places. So the order is that of the rows, whatever runs first.
__global__ void __launch_bounds__(kGroupThreads) group_rows_kernel(const ExpertGroups groups) {
  TRIPHASE_SHARED(int, counts, kCounts);  // [stretch][expert]: later its next place
  TRIPHASE_SHARED(unsigned, scratch, kBlockReduceWords);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = uniform_warp_id();
  const int experts = static_cast<int>(groups.expert_count);
  const int per_row = static_cast<int>(groups.per_row);
  const int stretches = smaller(kGroupThreads / kWarpSize, kCounts / experts);
  const int rows_each = ceil_div(static_cast<int>(groups.rows), stretches);
  const int first_row = smaller(warp * rows_each, static_cast<int>(groups.rows));
  const int end_row =
      warp < stretches ? smaller(first_row + rows_each, static_cast<int>(groups.rows)) : first_row;
  for (int i = thread; i < stretches * experts; i += kGroupThreads) counts[i] = 0;
  __syncthreads();
  int* own = counts + warp * experts;
  for (int row = first_row; row < end_row; ++row) {
    for (int i = lane_id(); i < per_row; i += kWarpSize) ++own[groups.experts[row * per_row + i]];
    sync_warp();
  }
  __syncthreads();

  int total = 0;
  if (thread < experts) {
    for (int stretch = 0; stretch < stretches; ++stretch) {
      total += counts[stretch * experts + thread];
    }
  }
  const int tile_rows = static_cast<int>(groups.tile_rows);
  const int tiles = ceil_div(total, tile_rows);
  unsigned all_places = 0;
  unsigned all_tiles = 0;
  const auto first =
      static_cast<int>(block_scan(static_cast<unsigned>(total), scratch, all_places));
  const auto first_tile =
      static_cast<int>(block_scan(static_cast<unsigned>(tiles), scratch, all_tiles));
  device_check(all_tiles <= groups.tile_count);
  if (thread < experts) {
    int place = first;
    for (int stretch = 0; stretch < stretches; ++stretch) {
      int& count = counts[stretch * experts + thread];
      const int next = place + count;
      count = place;
      place = next;
    }
    for (int tile = 0; tile < tiles; ++tile) {
      const int begin = first + tile * tile_rows;
      groups.tiles[first_tile + tile] = {thread, begin, smaller(begin + tile_rows, first + total),
                                         0};
    }
  }
  for (int tile = static_cast<int>(all_tiles) + thread; tile < groups.tile_count;
       tile += kGroupThreads) {
    groups.tiles[tile] = {0, 0, 0, 0};
  }
  __syncthreads();

  for (int row = first_row; row < end_row; ++row) {
    for (int i = lane_id(); i < per_row; i += kWarpSize) {
      const int place = own[groups.experts[row * per_row + i]]++;
      groups.places[row * per_row + i] = place;
      groups.place_rows[place] = row;
    }
    sync_warp();
  }
}

}  // namespace

void choose_experts(ConstMatrix logits, std::int64_t per_row, bool over_chosen,
                    std::int32_t* experts, float* shares, StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"logits", logits}}) + ", " + shape_text({{"per_row", per_row}});
  };
  require(logits.dtype == DType::kF32 && per_row > 0 && per_row <= logits.cols &&
              logits.cols <= kMaxRoutedExperts,
          "choose_experts", "F32 logits of at least so many experts as a row goes through", shape);
  if (logits.rows == 0) return;
  const std::int64_t blocks = ceil_div<std::int64_t>(logits.rows, kChoiceThreads / kWarpSize);
  TRIPHASE_LAUNCH((choose_experts_kernel), dim3(static_cast<unsigned>(blocks)), kChoiceThreads, 0,
                  stream, static_cast<const float*>(logits.data), logits.row_stride,
                  static_cast<int>(logits.rows), static_cast<int>(logits.cols),
                  static_cast<int>(per_row), over_chosen, experts, shares);
  check_launched("choose_experts", shape);
}

void group_rows(const ExpertGroups& groups, StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"rows", groups.rows},
                       {"per_row", groups.per_row},
                       {"experts", groups.expert_count},
                       {"tiles", groups.tile_count},
                       {"tile_rows", groups.tile_rows}});
  };
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  require(groups.per_row > 0 && groups.per_row <= groups.expert_count &&
              groups.expert_count <= kMaxRoutedExperts && groups.tile_rows > 0 &&
              groups.rows * groups.per_row < kLargest,
          "group_rows", "rows of up to 1024 experts, and tiles", shape);
  if (groups.rows == 0) return;
  TRIPHASE_LAUNCH((group_rows_kernel), dim3(1), kGroupThreads, 0, stream, groups);
  check_launched("group_rows", shape);
}

}  // namespace triphase::cuda
