#include <cmath>
#include <string>

#include "kernels/cuda/dialect.h"
#include "kernels/cuda/score_update.h"
#include "runtime/base/error.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kLog2E = 1.44269504F;
constexpr double kUnits = 4294967296.0;  // of SWA's sums, per 1

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

__device__ inline std::int64_t units_of(float weight) {
  return static_cast<std::int64_t>(static_cast<double>(weight) * kUnits);
}

__device__ inline void add_units(const SwaWindow& window, std::int64_t sequence, int token,
                                 std::int64_t units) {
  std::int64_t& sum = window.sums[sequence * window.stride + token];
  sum += units;
  window.scores[sequence * window.stride + token] =
      static_cast<float>(static_cast<double>(sum) / kUnits);
}

// One block per sequence: rows leave and the new one enters in a fixed order, a barrier between.
__global__ void __launch_bounds__(kThreads)
    update_swa_kernel(StepLogits step, int rows_per_sequence, const std::int32_t* indices,
                      const std::int32_t* counts, const std::int32_t* slots,
                      const std::int32_t* expired_begins, const std::int32_t* expired_slots,
                      SwaWindow window) {
  const auto sequence = static_cast<std::int64_t>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  for (int e = expired_begins[sequence]; e < expired_begins[sequence + 1]; ++e) {
    const std::int64_t slot = sequence * window.ring_rows + expired_slots[e];
    const int old_count = window.row_counts[slot];
    for (int i = thread; i < old_count; i += kThreads) {
      const std::int64_t at = slot * step.capacity + i;
      add_units(window, sequence, window.tokens[at], -units_of(window.weights[at]));
    }
    __syncthreads();
    if (thread == 0) window.row_counts[slot] = 0;
    __syncthreads();
  }
  const int count = counts[sequence];
  const std::int64_t slot = sequence * window.ring_rows + slots[sequence];
  for (int i = thread; i < count; i += kThreads) {
    float sum = 0.0F;
    for (int head = 0; head < rows_per_sequence; ++head) {
      for (std::int64_t g = 0; g < step.group; ++g) {
        sum += weight_of(step, sequence * rows_per_sequence + head, g, i);
      }
    }
    const int token = indices[sequence * step.capacity + i];
    window.weights[slot * step.capacity + i] = sum;
    window.tokens[slot * step.capacity + i] = token;
    add_units(window, sequence, token, units_of(sum));
  }
  if (thread == 0) window.row_counts[slot] = count;
}

bool is_step(const StepLogits& step) {
  return step.logits != nullptr && step.log_sums != nullptr && step.capacity >= 0 &&
         step.group > 0 && step.rows >= 0;
}

std::string shape_text(const StepLogits& step) {
  return std::to_string(step.rows) + " rows of up to " + std::to_string(step.capacity);
}

}  // namespace

void update_h2o(const StepLogits& step, const std::int32_t* indices, const std::int32_t* counts,
                float* accumulators, std::int64_t accumulator_stride, StreamHandle stream) {
  TRIPHASE_CHECK(
      is_step(step) && indices != nullptr && counts != nullptr && accumulators != nullptr,
      "update_h2o: shapes");
  if (step.rows == 0) return;
  TRIPHASE_LAUNCH((update_h2o_kernel), static_cast<unsigned>(step.rows), kThreads, 0, stream, step,
                  indices, counts, accumulators, accumulator_stride);
  check_launched("update_h2o", [&] { return shape_text(step); });
}

void update_swa(const StepLogits& step, std::int64_t rows_per_sequence, const std::int32_t* indices,
                const std::int32_t* counts, const std::int32_t* slots,
                const std::int32_t* expired_begins, const std::int32_t* expired_slots,
                const SwaWindow& window, StreamHandle stream) {
  TRIPHASE_CHECK(is_step(step) && rows_per_sequence > 0 && step.rows % rows_per_sequence == 0 &&
                     indices != nullptr && counts != nullptr && slots != nullptr &&
                     expired_begins != nullptr && window.weights != nullptr &&
                     window.tokens != nullptr && window.row_counts != nullptr &&
                     window.sums != nullptr && window.scores != nullptr && window.ring_rows > 0,
                 "update_swa: shapes");
  if (step.rows == 0) return;
  TRIPHASE_LAUNCH((update_swa_kernel), static_cast<unsigned>(step.rows / rows_per_sequence),
                  kThreads, 0, stream, step, static_cast<int>(rows_per_sequence), indices, counts,
                  slots, expired_begins, expired_slots, window);
  check_launched("update_swa", [&] { return shape_text(step); });
}

}  // namespace triphase::cuda
