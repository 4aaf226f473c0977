#include <cmath>
#include <string>

#include "kernels/cuda/dialect.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/score_update.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kLog2E = 1.44269504F;

__device__ inline float weight_of(const StepLogits& step, std::int64_t row, std::int64_t g,
                                  std::int64_t i) {
  const std::int64_t head = row * step.group + g;
  return exp2_fast(kLog2E * (step.logits[head * step.capacity + i] - step.log_sums[head]));
}

// A row's indices differ, so that no two threads meet at an accumulator.
__global__ void __launch_bounds__(kThreads)
    update_h2o_kernel(StepLogits step, const std::int32_t* indices, const std::int32_t* counts,
                      float* accumulators, std::int64_t accumulator_stride) {
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const int count = counts[row];
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    float sum = 0.0F;
    for (std::int64_t g = 0; g < step.group; ++g) sum += weight_of(step, row, g, i);
    accumulators[row * accumulator_stride + indices[row * step.capacity + i]] +=
        sum / static_cast<float>(step.group);
  }
}

bool is_step(const StepLogits& step) {
  return step.logits != nullptr && step.log_sums != nullptr && step.capacity >= 0 &&
         step.group > 0 && step.rows >= 0;
}

std::string shape_of(const StepLogits& step) {
  return shape_text({{"rows", step.rows}, {"group", step.group}, {"capacity", step.capacity}});
}

}  // namespace

void update_h2o(const StepLogits& step, const std::int32_t* indices, const std::int32_t* counts,
                float* accumulators, std::int64_t accumulator_stride, StreamHandle stream) {
  const auto shape = [&] {
    return shape_of(step) + ", " + shape_text({{"accumulator_stride", accumulator_stride}});
  };
  require(is_step(step), "update_h2o", "the step's logits and sizes", shape);
  require(indices != nullptr && counts != nullptr && accumulators != nullptr, "update_h2o",
          "null pointer", shape);
  if (step.rows == 0) return;
  TRIPHASE_LAUNCH((update_h2o_kernel), static_cast<unsigned>(step.rows), kThreads, 0, stream, step,
                  indices, counts, accumulators, accumulator_stride);
  check_launched("update_h2o", shape);
}

}  // namespace triphase::cuda
