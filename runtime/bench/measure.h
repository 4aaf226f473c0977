#pragma once

// Timing of work on a backend: medians over samples of many calls, with the spread. Buffers rotate:
// a call never finds its operands in a cache from its last turn.

#include <cstdint>
#include <functional>
#include <vector>

#include "memory/memory_pool.h"
#include "runtime/backend.h"
#include "runtime/bench/report.h"

namespace triphase::bench {

// More than ten times the largest last-level cache of one GPU; rotating buffers add up to this.
inline constexpr std::size_t kRotateBytes = std::size_t{640} << 20;
// How many buffers of so many bytes take turns.
[[nodiscard]] std::int64_t rotations(std::int64_t bytes);

struct Effort {
  int samples = 50;              // wanted; fewer when `seconds` are over, but at least 5
  double seconds = 2.0;          // per measurement, warm-up not counted
  double sample_seconds = 2e-3;  // calls are bundled until a sample lasts this long
};

struct Timing {
  double median = 0.0;             // seconds per call
  double low = 0.0;                // 10th percentile
  double high = 0.0;               // 90th percentile
  std::vector<double> us_samples;  // microseconds per call of each, as they were taken
};

// By wall time.
[[nodiscard]] double seconds_of(const std::function<void()>& work);

// Of samples in seconds per call; at least one.
[[nodiscard]] Timing timing_of(std::vector<double> seconds);

// A report's row: what was measured, its times, and its rates.
[[nodiscard]] Row timed_row(Row what, const Timing& timing, Row rates);

// `call(i)` queues the i-th call on the backend's stream; i counts up over all samples.
[[nodiscard]] Timing measure(Backend& backend, const Effort& effort,
                             const std::function<void(std::int64_t i)>& call);

// Device memory for one benchmark, with transfers that wait.
class BenchMemory {
 public:
  explicit BenchMemory(Backend& backend)
      : backend_(&backend), pool_(backend.device(), MemoryTier::kDevice, UINT64_MAX) {}

  [[nodiscard]] Buffer bytes(std::size_t count) {
    return pool_.allocate(count, MemoryTag::kWorkspace);
  }
  // Values of fill_random().
  [[nodiscard]] Buffer random(std::int64_t elements, DType dtype, std::uint64_t seed);
  // To the device, or from it.
  void copy(void* to, const void* from, std::size_t count);

 private:
  Backend* backend_;
  MemoryPool pool_;
};

}  // namespace triphase::bench
