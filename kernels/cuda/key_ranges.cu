#include "kernels/cuda/dialect.h"
#include "kernels/cuda/key_ranges.h"
#include "kernels/cuda/launch_check.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 128;

// Block: KV head (x), kThreads channels (y).
__global__ void __launch_bounds__(kThreads)
    widen_key_ranges_kernel(const float* scales, const std::int32_t* scale_pages, int count,
                            int kv_heads, int head_dim, float* ranges) {
  const int head = static_cast<int>(blockIdx.x);
  const int channel = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (channel >= head_dim) return;
  const std::int64_t at = static_cast<std::int64_t>(head) * head_dim + channel;
  float range = ranges[at];
  for (int i = 0; i < count; ++i) {
    const std::int64_t keys = std::int64_t{2} * scale_pages[i] * kv_heads + head;
    range = larger(range, 127.0F * scales[keys * 2 * head_dim + channel]);
  }
  ranges[at] = range;
}

}  // namespace

void widen_key_ranges(const float* scales, const std::int32_t* scale_pages, int count, int kv_heads,
                      int head_dim, float* ranges, StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"scale_pages", count}, {"kv_heads", kv_heads}, {"head_dim", head_dim}});
  };
  require(kv_heads > 0 && head_dim > 0 && count >= 0, "widen_key_ranges", "sizes must be positive",
          shape);
  require(scales != nullptr && scale_pages != nullptr && ranges != nullptr, "widen_key_ranges",
          "null pointer", shape);
  if (count == 0) return;
  const dim3 grid{static_cast<unsigned>(kv_heads),
                  static_cast<unsigned>(ceil_div(head_dim, kThreads)), 1};
  TRIPHASE_LAUNCH((widen_key_ranges_kernel), grid, kThreads, 0, stream, scales, scale_pages, count,
                  kv_heads, head_dim, ranges);
  check_launched("widen_key_ranges", shape);
}

}  // namespace triphase::cuda
