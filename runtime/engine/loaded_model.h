#pragma once

// A model that computes: its weights in memory, with the buffers around them that its plan
// (run_plan.h) has room for. The one way every command that computes gets its model.

#include <cstdint>
#include <memory>

#include "kernels/kv_resolver.h"
#include "memory/host_device.h"
#include "memory/kv/kv_store.h"
#include "memory/memory_pool.h"
#include "memory/transfer/transfer_engine.h"
#include "models/decoder_model.h"
#include "runtime/engine/run_plan.h"
#include "runtime/engine/workplace.h"

namespace triphase {

// Weights in memory, and the pools that everything around them is taken from. One per model and
// process; several LoadedModels may share it in turn. Members are destroyed in reverse: the pools
// outlive what they lent.
struct LoadedWeights {
  LoadedWeights(const RunOptions& options, const RunPlan& plan, const Workplace& place);

  // Peaks are those of the next LoadedModel from now on. The one before is gone.
  void forget_peaks() {
    pool.forget_peaks();
    host_pool.forget_peaks();
  }

  MemoryPool pool;
  MemoryPool host_pool;
  PoolDevice weight_memory;
  PoolDevice host_weight_memory;
  std::int64_t streamed_layers = 0;  // on the host; plans that stream another number do not fit it
  std::unique_ptr<ModelWeights> weights;
};

// Makes `weights` lie as the plan has them: loads them, unless they are there and do.
void load_for(const RunOptions& options, const RunPlan& plan, const Workplace& place,
              std::shared_ptr<LoadedWeights>& weights);

// A model that computes: weights with the buffers, KV store and attention method of one plan.
struct LoadedModel {
  LoadedModel(const RunOptions& options, const RunPlan& plan, const Workplace& place);
  // Over weights that are there already. No other LoadedModel over them may be alive: the plan's
  // budget is that of one.
  LoadedModel(std::shared_ptr<LoadedWeights> loaded, const RunOptions& options, const RunPlan& plan,
              const Workplace& place);

  // Records compute and transfers from now on; null: off.
  void set_trace(Trace* trace);
  // Says how much of the host's memory is pinned, where something crosses a link.
  void log_pinning(const Workplace& place) const;

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
