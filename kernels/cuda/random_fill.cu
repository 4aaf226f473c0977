#include <limits>

#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/random_fill.h"
#include "kernels/random_values.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 256;

// One thread per word of the generator.
template <class T>
__global__ void __launch_bounds__(kThreads)
    random_fill_kernel(std::uint64_t key, float half_width, T* y, std::int64_t count) {
  constexpr int kPerWord = random_values::kPerWord<T>;
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::uint64_t word = random_values::mix(key + static_cast<std::uint64_t>(at));
  TRIPHASE_UNROLL
  for (int part = 0; part < kPerWord; ++part) {
    if (at * kPerWord + part >= count) return;
    float value = 0.0F;
    if constexpr (sizeof(T) == 4) {
      value = random_values::of_32_bits(word, part, half_width);
    } else {
      value = random_values::of_16_bits(random_values::draw_of_16_bits(word, part), half_width);
    }
    y[at * kPerWord + part] = from_float<T>(value);
  }
}

}  // namespace

void random_fill(std::uint64_t key, float half_width, Matrix y, StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"y", y}}); };
  const std::int64_t count = y.rows * y.cols;
  if (count == 0) return;
  for_float_type(y.dtype, "random_fill", shape, [&]<class T>() {
    constexpr std::int64_t kPerBlock = kThreads * random_values::kPerWord<T>;
    const std::int64_t blocks = ceil_div(count, kPerBlock);
    require(y.row_stride == y.cols && blocks <= std::numeric_limits<std::int32_t>::max(),
            "random_fill", "y must have no gaps between rows, and blocks for all", shape);
    TRIPHASE_LAUNCH((random_fill_kernel<T>), static_cast<unsigned>(blocks), kThreads, 0, stream,
                    key, half_width, static_cast<T*>(y.data), count);
  });
  check_launched("random_fill", shape);
}

}  // namespace triphase::cuda
