#pragma once

// Cost and bytes of one decode step of a uniform batch in a given phase: the terms of ALISA's eq. 3
// and 5 with real bytes, real record sizes and overlapping lanes. The planner searches over sums of
// such steps. PURE.

#include <cstdint>
#include <optional>

#include "scheduler/cost/model_costs.h"
#include "scheduler/cost/step_cost.h"
#include "scheduler/kv/block_tokens.h"
#include "scheduler/memory_plan.h"
#include "scheduler/planner/plan.h"

namespace triphase {

struct PlanModel {
  ModelCosts costs;
  DType weights_dtype = DType::kF16;
  DType kv_dtype = DType::kF16;
  std::int64_t block_tokens = 32;
  std::int64_t streamed_layers = 0;
  std::int64_t prefill_chunk = kDerivedPrefillChunk;
  SparseFetch fetch = SparseFetch::kAhead;  // below r = 1
  double dense_layers = 0.0;                // shares, as in AttendedShares
  double recent_share = 0.5;
  // What a run knows beside the sizes: the longest request that memory is divided for (0: the
  // workload's), bytes of its scratch, a budget for KV alone, whether K^T is kept beside K on the
  // device, and bytes of the tables in which chosen tokens are looked up (MemoryRequest::Host).
  std::int64_t longest = 0;
  // Tokens of one request that must have room, however long the workload's are.
  std::int64_t held = 0;
  std::optional<std::uint64_t> scratch;
  std::optional<std::uint64_t> kv_budget;
  bool transposed_k = false;
  std::uint64_t block_lookup = 0;
  std::uint64_t cached_block_lookup = 0;
};

// Where one sequence's tokens are during a step.
struct StepTokens {
  std::int64_t context = 0;          // with the new token
  std::int64_t host = 0;             // not on the device, recomputable ones included
  std::int64_t recompute = 0;        // tokens of `host` that are recomputable
  std::int64_t newly_offloaded = 0;  // go to the host in this step
};

class StepModel {
 public:
  StepModel(const CostModel& cost, const PlanModel& model, const PlanWorkload& workload,
            const PlanBudget& budget);

  // One decode step. Hidden states of each sequence's first `input_tokens` tokens are saved.
  [[nodiscard]] LaneTimes decode(const StepTokens& tokens, std::int64_t input_tokens) const;
  // Prefill of the whole batch; `offloaded` tokens of each sequence go to the host and X of
  // `input_tokens` is saved.
  [[nodiscard]] LaneTimes prefill(std::int64_t offloaded, std::int64_t input_tokens) const;

  // Layers that must be streamed for weights, scratch and a request of the workload to have room;
  // nothing: all are too few.
  [[nodiscard]] std::optional<std::int64_t> least_streamed() const;
  // Bytes that the step uses of the memory that plan_memory() gives a run.
  [[nodiscard]] std::uint64_t device_bytes(const StepTokens& tokens,
                                           std::int64_t input_tokens) const;
  [[nodiscard]] std::uint64_t host_bytes(const StepTokens& tokens, std::int64_t input_tokens) const;
  [[nodiscard]] bool fits(const StepTokens& tokens, std::int64_t input_tokens) const;

  // Tokens of full blocks that may leave the device at this context: all but the local window.
  [[nodiscard]] std::int64_t movable(std::int64_t context) const;
  [[nodiscard]] std::int64_t round_to_blocks(std::int64_t tokens) const {
    return tokens / model_.block_tokens * model_.block_tokens;
  }
  // Eq. 3 as printed, in seconds: FP16 bytes of theta_c + theta_g tokens at the link's rate.
  [[nodiscard]] double printed_transfer(const StepTokens& tokens, std::int64_t input_tokens) const;

  [[nodiscard]] const PlanModel& model() const { return model_; }
  [[nodiscard]] const PlanWorkload& workload() const { return workload_; }

 private:
  [[nodiscard]] bool reads_whole_blocks() const {
    return workload_.caching_ratio >= 1.0 || model_.fetch == SparseFetch::kWholeBlocks;
  }
  // Tokens of a sequence that a step reads on the host.
  [[nodiscard]] double fetched(const StepTokens& tokens, std::int64_t input_tokens) const;
  // Device blocks of the batch, window blocks included.
  [[nodiscard]] std::int64_t device_blocks(const StepTokens& tokens) const;
  [[nodiscard]] std::int64_t blocks(std::int64_t tokens) const {
    return blocks_for(tokens, model_.block_tokens);
  }
  // The division of memory at the model's streamed layers; null: there is none.
  [[nodiscard]] const MemoryPlan* memory(std::int64_t input_tokens) const;

  const CostModel* cost_;
  PlanModel model_;
  PlanWorkload workload_;
  // Bytes of a token in a block's layers: K and V that cross the link, and cached hidden states.
  double record_token_ = 0.0;
  double input_token_ = 0.0;
  MemoryRequest request_;
  struct Division {
    std::int64_t input_blocks = -1;  // of each sequence
    std::optional<MemoryPlan> plan;
  };
  mutable Division division_;  // the last one: a search asks for the same inputs many times
};

}  // namespace triphase
