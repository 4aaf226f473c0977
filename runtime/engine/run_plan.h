#pragma once

// How a run divides memory and where its KV and weights live, decided before a byte of weights is
// read.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/sizing/resolver_memory.h"
#include "memory/kv/kv_shape.h"
#include "models/forward_batch.h"
#include "runtime/backend.h"
#include "runtime/engine/model_bundle.h"
#include "runtime/options/run_options.h"
#include "scheduler/memory_plan.h"
#include "scheduler/placement/placement_policy.h"

namespace triphase {

struct RunPlan {
  MemoryPlan memory;
  KvShape kv;
  BatchLimits limits;
  OpsShape ops;  // the largest calls
  std::int64_t prefill_chunk = 0;
  PromptUnits prompt_units;          // no longer than prefill_chunk, or no prompt is
  std::int64_t context = 0;          // tokens of the longest request that memory is divided for
  std::int64_t longest_request = 0;  // tokens of the longest request that the job can hold
  std::uint64_t budget = 0;          // device bytes
  std::uint64_t host_budget = 0;     // host bytes
  std::uint64_t host_scratch = 0;    // bytes of attention's buffers on the host
  std::shared_ptr<const PlacementPolicy> policy;
  StaticPlacement placement;
  std::uint64_t selection = 0;   // of the scratch: what the attention method keeps to choose by
  std::uint64_t ops_memory = 0;  // of the scratch: what a GPU's operations keep for themselves
  // Sizes of the device's resolver; nothing: the host looks tokens up, or none are chosen.
  std::optional<ResolverShape> resolver;
  std::int64_t input_tokens = 0;  // leading ones whose K and V come from INT8 hidden states
  PlacementLimits places;         // what the policy has to work with
};

// Throws ErrorRole::kResources E-MEM-FIT, saying what would fit.
[[nodiscard]] RunPlan plan_run(const RunOptions& options, const ModelBundle& model,
                               const ComputeMachine& machine);
// Returns nothing instead.
[[nodiscard]] std::optional<RunPlan> try_plan_run(const RunOptions& options,
                                                  const ModelBundle& model,
                                                  const ComputeMachine& machine);

// Tokens of the longest request that the job takes: --max-context, or the model's.
[[nodiscard]] std::int64_t most_context(const RunOptions& options, const ModelConfig& config);

// Sequences decoded together where nobody asks for a number and memory allows: of a GPU so many
// that its products are no longer bound by reading weights.
[[nodiscard]] std::int64_t default_batch_size(const ComputeMachine& machine);

// Whether a schedule may give the device's blocks on demand: a request that is preempted then and
// computed again has other bits on a GPU.
[[nodiscard]] bool may_give_on_demand(const RunOptions& options, const ComputeMachine& machine);

// Device bytes of the key clusters that the job's attention looks up; 0 for every other method.
[[nodiscard]] std::uint64_t cluster_memory(const RunOptions& options, const ModelBundle& model);

// The largest calls of Ops that a decoder within `limits` makes.
[[nodiscard]] OpsShape ops_shape(const ModelBundle& model, const RunOptions& options,
                                 const BatchLimits& limits, const KvShape& kv);

// One line for the log.
[[nodiscard]] std::string describe(const RunPlan& plan, const ModelBundle& model);

}  // namespace triphase
