#include "kernels/cuda/dialect.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/plan_splits.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 1024;

struct PlanSplitsShape {
  const std::int32_t* counts;
  int rows;
  int rows_per_count;
  int unit_tokens;
  int window;
  int row_overhead;
  int part_count;
  bool fixed;
};

__device__ inline int units_of_row(const PlanSplitsShape& shape, int row) {
  const int count = shape.counts[row / shape.rows_per_count];
  device_check(count >= 0);
  return ceil_div(count, shape.unit_tokens) - window_begin(count, shape.window) / shape.unit_tokens;
}

// The largest row whose cost begins at or before `position`; prefix[rows] is the total.
__device__ inline int row_at(const int* prefix, int rows, int position) {
  int low = 0;
  int high = rows;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (prefix[middle] <= position) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// One block: prefix sums of the rows' costs, then each part finds its ends in them.
__global__ void __launch_bounds__(kThreads)
    plan_splits_kernel(PlanSplitsShape shape, SplitPart* parts, RowParts* row_parts, int* prefix) {
  TRIPHASE_SHARED(int, warp_totals, kThreads / kWarpSize);
  const int thread = static_cast<int>(threadIdx.x);
  const int overhead = shape.fixed ? 0 : shape.row_overhead;
  const int rows_per_thread = ceil_div(shape.rows, kThreads);
  const int begin = smaller(thread * rows_per_thread, shape.rows);
  const int end = smaller(begin + rows_per_thread, shape.rows);

  int mine = 0;
  for (int row = begin; row < end; ++row) mine += units_of_row(shape, row) + overhead;
  int sum = mine;  // inclusive over the warp
  for (int step = 1; step < kWarpSize; step *= 2) {
    const int before = shuffle(sum, lane_id() - step);
    if (lane_id() >= step) sum += before;
  }
  if (lane_id() == kWarpSize - 1) warp_totals[warp_id()] = sum;
  __syncthreads();
  int total = 0;
  int before = sum - mine;
  for (int warp = 0; warp < kThreads / kWarpSize; ++warp) {
    if (warp < warp_id()) before += warp_totals[warp];
    total += warp_totals[warp];
  }
  for (int row = begin; row < end; ++row) {
    prefix[row] = before;
    before += units_of_row(shape, row) + overhead;
  }
  if (thread == 0) prefix[shape.rows] = total;
  __syncthreads();

  // Fixed mode comes out as one unit per part; with too few parts no token is lost all the same.
  const int cost_per_part = larger(1, ceil_div(total, shape.part_count));
  for (int row = thread; row < shape.rows; row += kThreads) {
    const int units = prefix[row + 1] - prefix[row] - overhead;
    const int first = prefix[row] + overhead;
    RowParts of_row = {first / cost_per_part, 0};
    if (units > 0) of_row.count = (first + units - 1) / cost_per_part - of_row.first + 1;
    row_parts[row] = of_row;
  }
  for (int part = thread; part < shape.part_count; part += kThreads) {
    // In 64 bits: parts beyond the work begin far behind its end.
    const std::int64_t from = static_cast<std::int64_t>(part) * cost_per_part;
    const int first = static_cast<int>(smaller<std::int64_t>(from, total));
    const int last = static_cast<int>(smaller<std::int64_t>(from + cost_per_part, total));
    SplitPart walk{};
    walk.row_begin = row_at(prefix, shape.rows, first);
    walk.unit_begin =
        walk.row_begin == shape.rows ? 0 : larger(0, first - prefix[walk.row_begin] - overhead);
    walk.row_end = row_at(prefix, shape.rows, last);
    walk.unit_end =
        walk.row_end == shape.rows ? 0 : larger(0, last - prefix[walk.row_end] - overhead);
    parts[part] = walk;
  }
}

}  // namespace

SplitPlan plan_splits(const PlanSplitsArgs& args, void* workspace, std::size_t workspace_bytes,
                      StreamHandle stream) {
  const auto shape_of_call = [&] {
    return shape_text({{"rows", args.rows},
                       {"rows_per_count", args.rows_per_count},
                       {"unit_tokens", args.unit_tokens},
                       {"part_count", args.part_count}});
  };
  const LaunchCheck check("plan_splits", shape_of_call);
  check(args.rows > 0 && args.rows_per_count > 0 && args.unit_tokens > 0 && args.part_count > 0 &&
            args.row_overhead >= 0 && args.window >= 0,
        "sizes must be positive");
  check(args.counts != nullptr && workspace != nullptr, "null pointer");
  const SplitPlanLayout layout = split_plan_layout(args.rows, args.part_count);
  check(workspace_bytes >= static_cast<std::size_t>(layout.bytes), "workspace is too small");

  auto* base = static_cast<std::byte*>(workspace);
  auto* parts = reinterpret_cast<SplitPart*>(base + layout.parts_at);
  auto* row_parts = reinterpret_cast<RowParts*>(base + layout.row_parts_at);
  auto* prefix = reinterpret_cast<int*>(base + layout.prefix_at);
  const PlanSplitsShape shape{.counts = args.counts,
                              .rows = args.rows,
                              .rows_per_count = args.rows_per_count,
                              .unit_tokens = args.unit_tokens,
                              .window = args.window,
                              .row_overhead = args.row_overhead,
                              .part_count = args.part_count,
                              .fixed = args.mode == SplitMode::kFixed};
  TRIPHASE_LAUNCH((plan_splits_kernel), 1, kThreads, 0, stream, shape, parts, row_parts, prefix);
  check_launched("plan_splits", shape_of_call);
  return {parts, row_parts, args.part_count, args.rows, args.unit_tokens};
}

}  // namespace triphase::cuda
