#pragma once

// Importance that builds up over steps: H2O's accumulators and ALISA's window of attention rows
// (SWA), updated from one decode step's logits. O(k) per step. All pointers are device memory.

#include <cstdint>

#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

// One step's attention over the chosen tokens of each row (sequence x KV head).
struct StepLogits {
  const float* logits = nullptr;    // [row][g][capacity], natural units (after the softmax scale)
  const float* log_sums = nullptr;  // [row][g]: log sum exp over the chosen tokens
  std::int64_t capacity = 0;
  std::int64_t rows = 0;
  std::int64_t group = 1;
};

// H2O: accumulators[row][indices[row][i]] += mean over the group of the token's weight. indices
// [row][capacity], counts [row].
void update_h2o(const StepLogits& step, const std::int32_t* indices, const std::int32_t* counts,
                float* accumulators, std::int64_t accumulator_stride, StreamHandle stream);

// SWA. One list per sequence, shared by its heads: indices [sequence][capacity], counts [sequence].
// The step's row (weights summed over all heads) goes to slots [sequence] of a ring; then the rows
// in expired slots leave. Sums are kept in units of 2^-32 so that adding and later subtracting a
// weight is exact: a token that has left the window has score 0 again.
struct SwaWindow {
  float* weights = nullptr;            // [sequence][ring rows][capacity]
  std::int32_t* tokens = nullptr;      // [sequence][ring rows][capacity]
  std::int32_t* row_counts = nullptr;  // [sequence][ring rows]
  std::int64_t ring_rows = 0;
  std::int64_t* sums = nullptr;  // [sequence][stride]
  float* scores = nullptr;       // [sequence][stride]: sums as numbers
  std::int64_t stride = 0;
};
// Expired slots: [expired_begins[sequence], expired_begins[sequence + 1]) of expired_slots. A slot
// that is both written and expired in one call is expired first.
void update_swa(const StepLogits& step, std::int64_t rows_per_sequence, const std::int32_t* indices,
                const std::int32_t* counts, const std::int32_t* slots,
                const std::int32_t* expired_begins, const std::int32_t* expired_slots,
                const SwaWindow& window, StreamHandle stream);

// The same with bounded memory, for long windows: the rows of a bucket are summed as they come, and
// leave together. A ring over a window of k rows holds k * capacity weights; buckets hold one
// number per token each, however long the window. They hold the same units of 2^-32, so that sums
// are exact here too; which rows go to which bucket is the caller's choice (the CPU's: an eighth of
// the window each).
struct SwaBuckets {
  std::int64_t* partials = nullptr;  // [sequence][buckets][stride], zeros at the start
  std::int64_t buckets = 0;
  std::int64_t* sums = nullptr;  // [sequence][stride], zeros at the start
  float* scores = nullptr;       // [sequence][stride]: sums as numbers
  std::int64_t stride = 0;
};
// The step's row goes to bucket slots[sequence]. Expired buckets are listed as the rings' slots
// are, and empty afterwards; one that is both written and expired in one call is expired first.
// lengths [sequence]: tokens so far, no index at or beyond it has ever been added; at most
// max_length.
void update_swa_buckets(const StepLogits& step, std::int64_t rows_per_sequence,
                        const std::int32_t* indices, const std::int32_t* counts,
                        const std::int32_t* slots, const std::int32_t* expired_begins,
                        const std::int32_t* expired_slots, const std::int32_t* lengths,
                        std::int64_t max_length, const SwaBuckets& window, StreamHandle stream);

}  // namespace triphase::cuda
