#include "runtime/engine/loaded_model.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/format_bytes.h"

namespace triphase {

LoadedWeights::LoadedWeights(const RunOptions& options, const RunPlan& plan, const Workplace& place)
    : pool(place.backend.device(), MemoryTier::kDevice, plan.budget),
      host_pool(place.backend.host(), MemoryTier::kHost, plan.host_budget),
      weight_memory(pool, MemoryTag::kWeights),
      host_weight_memory(host_pool, MemoryTag::kWeights),
      streamed_layers(plan.placement.streamed_layers),
      weights(load_model_weights(
          place.model, place.model.config, options,
          {weight_memory, host_weight_memory, streamed_layers, place.backend.random_fill()},
          place.progress, place.log)) {}

void load_for(const RunOptions& options, const RunPlan& plan, const Workplace& place,
              std::shared_ptr<LoadedWeights>& weights) {
  if (weights && weights->streamed_layers == plan.placement.streamed_layers) {
    weights->forget_peaks();
    return;
  }
  weights.reset();  // before the others are there: together they may not fit
  place.progress.begin_phase("loading model");
  weights = std::make_shared<LoadedWeights>(options, plan, place);
}

LoadedModel::LoadedModel(const RunOptions& options, const RunPlan& plan, const Workplace& place)
    : LoadedModel(std::make_shared<LoadedWeights>(options, plan, place), options, plan, place) {
  log_pinning(place);
}

LoadedModel::LoadedModel(std::shared_ptr<LoadedWeights> loaded, const RunOptions& options,
                         const RunPlan& plan, const Workplace& place)
    : shared(std::move(loaded)),
      pool(shared->pool),
      host_pool(shared->host_pool),
      transfers(plan.memory.host_blocks > 0 || plan.placement.streamed_layers > 0
                    ? place.backend.make_transfers(options.machine.emulated_link)
                    : nullptr),
      lookup_memory(pool, MemoryTag::kSelection),
      decoder(place.model.config, *shared->weights, place.backend.ops(),
              place.backend.threads().threads(), plan.limits, pool, transfers.get()),
      kv(plan.kv,
         {.device_pages = plan.memory.kv_pages,
          .staging_pages = plan.memory.staging_pages,
          .cache_pages = plan.memory.cache_pages,
          .partial_pages = plan.memory.partial_pages,
          .host_blocks = plan.memory.host_blocks,
          .input_blocks = plan.memory.input_blocks,
          .transposed_k_blocks = plan.memory.transposed_k_blocks,
          .transposed_k_run_bytes = place.backend.sparse_ops().transposed_k_run_bytes(),
          .step_tokens = plan.kv.sets.apart() ? plan.prefill_chunk : 0},
         pool, &host_pool, transfers.get()) {
  TRIPHASE_CHECK(plan.placement.streamed_layers == shared->streamed_layers,
                 "a plan for weights that lie elsewhere");
  Backend& backend = place.backend;
  backend.reserve(plan.ops);
  decoder.attention().set_method(options.attention, backend.sparse_ops(), pool,
                                 place.model.clusters());
  decoder.attention().set_hidden_states(plan.input_tokens, backend.input_ops(), pool);
  if (plan.kv.host_attention) {
    decoder.attention().set_host_attention(plan.memory.batch_size, backend.host_ops(), host_pool);
  }
  const auto reaches = [&] {
    return transfers->reaches(kv.memory().geometry().host, plan.memory.host_kv) &&
           (plan.memory.input_blocks == 0 ||
            transfers->reaches(kv.memory().saved_inputs(0, LayerId(0)), plan.memory.host_inputs));
  };
  if (plan.resolver && reaches()) {
    resolver = backend.make_resolver(*plan.resolver, lookup_memory);
    decoder.attention().kv_step().set_resolver(resolver.get());
  }
  decoder.zigzag().set_batch(plan.placement.gpu_batch);
  decoder.set_prefetch(plan.placement.overlap);
}

void LoadedModel::log_pinning(const Workplace& place) const {
  const PinnedHostDevice* host = place.backend.pinned_host();
  if (host == nullptr || !transfers) return;
  const PinnedUse use = host->use();
  if (use.pinned > 0) {
    place.log.info(
        fmt::format("host memory: {} pinned in {:.1f} s", format_bytes(use.pinned), use.seconds));
  }
  if (use.unpinned > 0) {
    place.log.warning(fmt::format("host memory: {} not pinned, which makes copies slower: {}",
                                  format_bytes(use.unpinned), use.refusal));
  }
}

void LoadedModel::set_trace(Trace* trace) {
  decoder.set_trace(trace);
  if (transfers) transfers->set_trace(trace);
}

}  // namespace triphase
