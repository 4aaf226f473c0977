#include <cmath>
#include <string>

#include "kernels/cuda/dialect.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/score_update.h"

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

// To the nearest unit, as on the CPU; the sum with a half is exact. NaN counts as 0.
__device__ inline std::int64_t units_of(float weight) {
  constexpr float kLargest = 65536.0F;  // a weight is at most the number of heads
  if (!(weight > 0.0F)) return 0;
  return static_cast<std::int64_t>(static_cast<double>(smaller(weight, kLargest)) * kUnits + 0.5);
}

// Weight of list entry i, summed over the heads of a sequence in ascending order.
__device__ inline float sequence_weight(const StepLogits& step, int rows_per_sequence,
                                        std::int64_t sequence, std::int64_t i) {
  float sum = 0.0F;
  for (int head = 0; head < rows_per_sequence; ++head) {
    for (std::int64_t g = 0; g < step.group; ++g) {
      sum += weight_of(step, sequence * rows_per_sequence + head, g, i);
    }
  }
  return sum;
}

template <class Window>
__device__ inline void add_units(const Window& window, std::int64_t sequence, std::int64_t token,
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
    const float sum = sequence_weight(step, rows_per_sequence, sequence, i);
    const int token = indices[sequence * step.capacity + i];
    window.weights[slot * step.capacity + i] = sum;
    window.tokens[slot * step.capacity + i] = token;
    add_units(window, sequence, token, units_of(sum));
  }
  if (thread == 0) window.row_counts[slot] = count;
}

// A token per thread: what its expired buckets hold leaves its sum.
__global__ void __launch_bounds__(kThreads)
    expire_buckets_kernel(SwaBuckets window, const std::int32_t* expired_begins,
                          const std::int32_t* expired_slots, const std::int32_t* lengths) {
  const auto sequence = static_cast<std::int64_t>(blockIdx.x);
  const int begin = expired_begins[sequence];
  const int end = expired_begins[sequence + 1];
  const int token = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (begin == end || token >= lengths[sequence]) return;
  std::int64_t leaving = 0;
  for (int e = begin; e < end; ++e) {
    device_check(expired_slots[e] >= 0 && expired_slots[e] < window.buckets);
    std::int64_t& partial =
        window.partials[(sequence * window.buckets + expired_slots[e]) * window.stride + token];
    leaving += partial;
    partial = 0;
  }
  if (leaving != 0) add_units(window, sequence, token, -leaving);
}

// A list's indices differ, so that no two threads meet at a sum.
__global__ void __launch_bounds__(kThreads)
    add_to_bucket_kernel(StepLogits step, int rows_per_sequence, const std::int32_t* indices,
                         const std::int32_t* counts, const std::int32_t* slots, SwaBuckets window) {
  const auto sequence = static_cast<std::int64_t>(blockIdx.x);
  const int i = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= counts[sequence]) return;
  device_check(slots[sequence] >= 0 && slots[sequence] < window.buckets);
  const int token = indices[sequence * step.capacity + i];
  const std::int64_t units = units_of(sequence_weight(step, rows_per_sequence, sequence, i));
  window.partials[(sequence * window.buckets + slots[sequence]) * window.stride + token] += units;
  add_units(window, sequence, token, units);
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

void update_swa(const StepLogits& step, std::int64_t rows_per_sequence, const std::int32_t* indices,
                const std::int32_t* counts, const std::int32_t* slots,
                const std::int32_t* expired_begins, const std::int32_t* expired_slots,
                const SwaWindow& window, StreamHandle stream) {
  const auto shape = [&] {
    return shape_of(step) + ", " +
           shape_text({{"rows_per_sequence", rows_per_sequence},
                       {"ring_rows", window.ring_rows},
                       {"stride", window.stride}});
  };
  const auto check = [&](bool condition, const char* what) {
    require(condition, "update_swa", what, shape);
  };
  check(is_step(step), "the step's logits and sizes");
  check(rows_per_sequence > 0 && step.rows % rows_per_sequence == 0,
        "rows must be whole sequences");
  check(window.ring_rows > 0 && window.stride > 0, "the window must hold rows and tokens");
  check(indices != nullptr && counts != nullptr && slots != nullptr && expired_begins != nullptr &&
            window.weights != nullptr && window.tokens != nullptr && window.row_counts != nullptr &&
            window.sums != nullptr && window.scores != nullptr,
        "null pointer");
  if (step.rows == 0) return;
  TRIPHASE_LAUNCH((update_swa_kernel), static_cast<unsigned>(step.rows / rows_per_sequence),
                  kThreads, 0, stream, step, static_cast<int>(rows_per_sequence), indices, counts,
                  slots, expired_begins, expired_slots, window);
  check_launched("update_swa", shape);
}

void update_swa_buckets(const StepLogits& step, std::int64_t rows_per_sequence,
                        const std::int32_t* indices, const std::int32_t* counts,
                        const std::int32_t* slots, const std::int32_t* expired_begins,
                        const std::int32_t* expired_slots, const std::int32_t* lengths,
                        std::int64_t max_length, const SwaBuckets& window, StreamHandle stream) {
  const auto shape = [&] {
    return shape_of(step) + ", " +
           shape_text({{"rows_per_sequence", rows_per_sequence},
                       {"buckets", window.buckets},
                       {"stride", window.stride},
                       {"max_length", max_length}});
  };
  const auto check = [&](bool condition, const char* what) {
    require(condition, "update_swa_buckets", what, shape);
  };
  constexpr std::int64_t kMostBlocks = 65535;  // of a grid's second dimension
  check(is_step(step), "the step's logits and sizes");
  check(rows_per_sequence > 0 && step.rows % rows_per_sequence == 0,
        "rows must be whole sequences");
  check(window.buckets > 0 && max_length >= 0 && window.stride >= max_length,
        "the window must hold a bucket and max_length tokens");
  check(larger(max_length, step.capacity) <= kMostBlocks * kThreads, "too many tokens");
  check(indices != nullptr && counts != nullptr && slots != nullptr && expired_begins != nullptr &&
            lengths != nullptr && window.partials != nullptr && window.sums != nullptr &&
            window.scores != nullptr,
        "null pointer");
  if (step.rows == 0 || max_length == 0) return;
  const auto grid_of = [&](std::int64_t entries) {
    return dim3{static_cast<unsigned>(step.rows / rows_per_sequence),
                static_cast<unsigned>(ceil_div<std::int64_t>(entries, kThreads)), 1};
  };
  TRIPHASE_LAUNCH((expire_buckets_kernel), grid_of(max_length), kThreads, 0, stream, window,
                  expired_begins, expired_slots, lengths);
  check_launched("update_swa_buckets (expired)", shape);
  if (step.capacity == 0) return;
  TRIPHASE_LAUNCH((add_to_bucket_kernel), grid_of(step.capacity), kThreads, 0, stream, step,
                  static_cast<int>(rows_per_sequence), indices, counts, slots, window);
  check_launched("update_swa_buckets", shape);
}

}  // namespace triphase::cuda
