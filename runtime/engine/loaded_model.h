#pragma once

// From a model directory to a model that computes: how memory is divided and where KV and weights
// live, decided before a byte of weights is read, then the weights in memory with the buffers
// around them. The one way every command that computes gets its model.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kernels/kv_resolver.h"
#include "kernels/sizing/resolver_memory.h"
#include "memory/host_device.h"
#include "memory/kv/kv_store.h"
#include "memory/memory_pool.h"
#include "memory/transfer/transfer_engine.h"
#include "models/decoder_model.h"
#include "runtime/backend.h"
#include "runtime/engine/model_bundle.h"
#include "runtime/options/run_options.h"
#include "runtime/progress.h"
#include "scheduler/memory_plan.h"
#include "scheduler/placement/placement_policy.h"

namespace triphase {

struct RunPlan {
  MemoryPlan memory;
  KvShape kv;
  BatchLimits limits;
  std::int64_t prefill_chunk = 0;
  PromptUnits prompt_units;          // no longer than prefill_chunk, or no prompt is
  std::int64_t context = 0;          // tokens of the longest request that memory is divided for
  std::int64_t longest_request = 0;  // tokens of the longest request that the job can hold
  std::uint64_t budget = 0;          // device bytes
  std::uint64_t host_budget = 0;     // host bytes
  std::uint64_t host_scratch = 0;    // bytes of attention's buffers on the host
  std::shared_ptr<const PlacementPolicy> policy;
  StaticPlacement placement;
  std::uint64_t selection = 0;  // of the scratch: what the attention method keeps to choose by
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

// Device bytes of the key clusters that the job's attention looks up; 0 for every other method.
[[nodiscard]] std::uint64_t cluster_memory(const RunOptions& options, const ModelBundle& model);

// One line for the log.
[[nodiscard]] std::string describe(const RunPlan& plan, const ModelBundle& model);

// Weights in memory, and the pools that everything around them is taken from. One per model and
// process; several LoadedModels may share it in turn. Members are destroyed in reverse: the pools
// outlive what they lent.
struct LoadedWeights {
  LoadedWeights(const ModelBundle& model, const RunOptions& options, const RunPlan& plan,
                Backend& backend, Progress& progress, Log& log);

  MemoryPool pool;
  MemoryPool host_pool;
  PoolDevice weight_memory;
  PoolDevice host_weight_memory;
  std::int64_t streamed_layers = 0;  // on the host; plans that stream another number do not fit it
  std::unique_ptr<ModelWeights> weights;
};

// A model that computes: weights with the buffers, KV store and attention method of one plan.
struct LoadedModel {
  LoadedModel(const ModelBundle& model, const RunOptions& options, const RunPlan& plan,
              Backend& backend, Progress& progress, Log& log);
  // Over weights that are there already. No other LoadedModel over them may be alive: the plan's
  // budget is that of one.
  LoadedModel(std::shared_ptr<LoadedWeights> loaded, const ModelBundle& model,
              const RunOptions& options, const RunPlan& plan, Backend& backend);

  // Records compute and transfers from now on; null: off.
  void set_trace(Trace* trace);
  // Says how much of the host's memory is pinned, where something crosses a link.
  void log_pinning(Backend& backend, Log& log) const;

  std::shared_ptr<LoadedWeights> shared;
  MemoryPool& pool;
  MemoryPool& host_pool;
  std::unique_ptr<TransferEngine> transfers;  // null: nothing is on the host
  PoolDevice lookup_memory;
  std::unique_ptr<KvResolver> resolver;  // null: the host looks chosen tokens up
  DecoderModel decoder;
  KvStore kv;
};

}  // namespace triphase
