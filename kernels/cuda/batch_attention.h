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
  ScoreScale scale;
  Matrix out;
};

// How the tokens of a step's rows are divided among warps: the same in every layer, so that the
// first one makes it.
class StepPlan {
 public:
  explicit StepPlan(Device& device) : memory_(device) {}

  void reserve(std::size_t bytes, Stream& stream) { (void)memory_.at_least(bytes, stream); }
  // Other rows come: a step begins, or its tables are made anew.
  void forget() { plan_ = {}; }
  // For rows whose queries begin at `first_query`, in `bytes` of memory.
  [[nodiscard]] SplitPlan of(const PlanSplitsArgs& args, std::int64_t first_query,
                             std::size_t bytes, Stream& stream) {
    if (plan_.parts == nullptr || first_query_ != first_query || window_ != args.window ||
        plan_.rows != args.rows || plan_.part_count != args.part_count) {
      plan_ = plan_splits(args, memory_.at_least(bytes, stream), bytes, stream.launches());
      first_query_ = first_query;
      window_ = args.window;
    }
    return plan_;
  }

 private:
  SplitPlan plan_;  // without parts until it is made
  std::int64_t first_query_ = 0;
  int window_ = 0;
  DeviceScratch memory_;
};

struct StepPlans {
  explicit StepPlans(Device& device) : contexts(device), windows(device), lists(device) {}

  // Of the tables that serve every layer; null once they are made anew.
  const std::int32_t* lengths = nullptr;
  StepPlan contexts;  // whole ones, in those tables
  StepPlan windows;   // of the same, in layers that have one
  StepPlan lists;     // with Selection::same_counts_in_step; not in deterministic runs
};

// What gather_attn's cache can hold; the rest takes the plain kernel.
[[nodiscard]] bool gather_serves(const KvLayerView& cache);

// Segments have been checked.
void attend_batch(const BatchAttention& call, std::span<const AttentionSegment> segments,
                  const GpuMachine& machine, ArgumentRing& arguments, DeviceScratch& scratch,
                  StepPlans& step_plans, Stream& stream);

}  // namespace triphase::cuda
