#include "kernels/cuda/dialect.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/token_ranges.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    write_ranges_kernel(const TokenRanges* ranges, std::int32_t* indices, std::int64_t capacity,
                        std::int32_t* counts) {
  const int row = static_cast<int>(blockIdx.y);
  const TokenRanges& own = ranges[row];
  const int count = own.first.count + own.second.count;
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i == 0) counts[row] = count;
  if (i >= count) return;
  const TokenRange& range = i < own.first.count ? own.first : own.second;
  const int at = i < own.first.count ? i : i - own.first.count;
  indices[row * capacity + i] = range.start + at * range.stride;
}

}  // namespace

void write_ranges(const TokenRanges* ranges, std::int64_t rows, std::int32_t* indices,
                  std::int64_t capacity, std::int32_t* counts, StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"rows", rows}, {"capacity", capacity}}); };
  require(ranges != nullptr && indices != nullptr && counts != nullptr && rows > 0 &&
              rows <= kMostGridY && capacity > 0,
          "write_ranges", "null pointer or sizes out of range", shape);
  const dim3 grid(static_cast<unsigned>(ceil_div<std::int64_t>(capacity, kThreads)),
                  static_cast<unsigned>(rows));
  TRIPHASE_LAUNCH((write_ranges_kernel), grid, kThreads, 0, stream, ranges, indices, capacity,
                  counts);
  check_launched("write_ranges", shape);
}

}  // namespace triphase::cuda
