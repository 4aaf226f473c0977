#pragma once

// Cost and bytes of one decode step of a uniform batch in a given phase: the terms of ALISA's eq. 3
// and 5 with real bytes, real record sizes and overlapping lanes. PURE; the planner searches over
// sums of these.

#include <cstdint>

#include "scheduler/cost/model_costs.h"
#include "scheduler/cost/step_cost.h"
#include "scheduler/planner/plan.h"

namespace triphase {

struct PlanModel {
  ModelCosts costs;
  DType weights_dtype = DType::kF16;
  DType kv_dtype = DType::kF16;
  std::int64_t block_tokens = 32;
  std::int64_t streamed_layers = 0;
  std::int64_t prefill_chunk = 2048;
  SparseFetch fetch = SparseFetch::kAhead;  // below r = 1
};

// Where one sequence's tokens are during a step.
struct StepTokens {
  std::int64_t context = 0;     // with the new token
  std::int64_t host = 0;        // away from the device, recomputable ones included
  std::int64_t recompute = 0;   // of them
  std::int64_t newly_away = 0;  // go to the host in this step
};

class StepModel {
 public:
  StepModel(const CostModel& cost, const PlanModel& model, const PlanWorkload& workload,
            const PlanBudget& budget);

  // X of each sequence's first `input_tokens` tokens is saved.
  [[nodiscard]] LaneTimes decode(const StepTokens& tokens, std::int64_t input_tokens) const;
  // Prefill of the whole batch; `away` tokens of each sequence go to the host and X of
  // `input_tokens` is saved.
  [[nodiscard]] LaneTimes prefill(std::int64_t away, std::int64_t input_tokens) const;

  [[nodiscard]] std::uint64_t device_bytes(const StepTokens& tokens) const;
  [[nodiscard]] std::uint64_t host_bytes(const StepTokens& tokens, std::int64_t input_tokens) const;
  [[nodiscard]] bool fits(const StepTokens& tokens, std::int64_t input_tokens) const {
    return device_bytes(tokens) <= budget_.device_memory &&
           host_bytes(tokens, input_tokens) <= budget_.host_memory;
  }

  // Closed tokens that may leave the device at this context: all but the local window.
  [[nodiscard]] std::int64_t movable(std::int64_t context) const;
  [[nodiscard]] std::int64_t round_to_blocks(std::int64_t tokens) const {
    return tokens / model_.block_tokens * model_.block_tokens;
  }
  // Eq. 3 as printed, in seconds: FP16 bytes of theta_c + theta_g tokens at the link's rate.
  [[nodiscard]] double printed_transfer(const StepTokens& tokens) const;

  [[nodiscard]] const PlanModel& model() const { return model_; }
  [[nodiscard]] const PlanWorkload& workload() const { return workload_; }

 private:
  [[nodiscard]] bool reads_whole_blocks() const {
    return workload_.caching_ratio >= 1.0 || model_.fetch == SparseFetch::kWholeBlocks;
  }
  [[nodiscard]] double fetched(const StepTokens& tokens) const;  // host tokens touched, a sequence

  const CostModel* cost_;
  PlanModel model_;
  PlanWorkload workload_;
  PlanBudget budget_;
  double kv_token_ = 0.0;      // bytes of K and V of a token, all layers
  double record_token_ = 0.0;  // of it what crosses the link: INT8's scales do not
  double input_token_ = 0.0;   // of X
  std::uint64_t fixed_device_ = 0;
};

}  // namespace triphase
