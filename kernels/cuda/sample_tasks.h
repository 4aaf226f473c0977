#pragma once

// The rows of Ops::sample as the kernel reads them, checked and sent to the device. Not thread
// safe.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/argument_ring.h"
#include "kernels/cuda/sample.h"
#include "kernels/ops.h"

namespace triphase::cuda {

class SampleTasks {
 public:
  // A task for each row of `logits`, on the device until `arguments` gives its place away.
  [[nodiscard]] const SampleTask* send(std::span<const SampleRow> rows, const ConstMatrix& logits,
                                       ArgumentRing& arguments, Stream& stream);

 private:
  // A bit per id for every row with a penalty: much less than a long history, and each token once.
  void collect_seen(std::span<const SampleRow> rows);

  // On their way; kept to reuse their memory.
  std::vector<SampleTask> tasks_;
  std::vector<std::uint32_t> seen_;
};

}  // namespace triphase::cuda
