#pragma once

// Ops::attention on a GPU: sorts a batch's segments into runs that one kernel serves, sends their
// tables along and queues the kernels. Settings and scratch belong to CudaOps.

#include <span>

#include "kernels/cuda/argument_ring.h"
#include "kernels/cuda/device_scratch.h"
#include "kernels/cuda/plan_splits.h"
#include "kernels/cuda/stream_handle.h"
#include "kernels/ops.h"
#include "kernels/sizing/compute_machine.h"

namespace triphase::cuda {

struct BatchAttention {
  ConstMatrix q;
  std::int64_t heads = 0;
  KvLayerView cache;
  float scale = 1.0F;
  Matrix out;
};

// How the whole contexts of a step's tables are divided among warps: the same in every layer, so
// that the first one makes it. `lengths`: of those tables; null once they are made anew.
struct StepPlan {
  explicit StepPlan(Device& device) : memory(device) {}

  const std::int32_t* lengths = nullptr;
  SplitPlan plan;  // without parts until it is made
  DeviceScratch memory;
};

// Segments have been checked.
void attend_batch(const BatchAttention& call, std::span<const AttentionSegment> segments,
                  const GpuMachine& machine, ArgumentRing& arguments, DeviceScratch& scratch,
                  StepPlan& step_plan, Stream& stream);

}  // namespace triphase::cuda
