#include "runtime/engine/run_numbers.h"

namespace triphase {
namespace {

void fill_attention(const AttentionRunner& runner, DType kv_dtype, AttentionUse& use) {
  const AttentionRunner::TokenCounts& counts = runner.token_counts();
  if (counts.prompt_context > 0) {
    use.prompt_attended_fraction = counts.prompt_attended / counts.prompt_context;
  }
  if (counts.context > 0) {
    use.attended_fraction = counts.attended / counts.context;
    const AttentionRunner::ReadBytes bytes =
        runner.read_bytes(static_cast<std::int64_t>(dtype_bytes(kv_dtype)));
    use.read_bytes = {bytes.attended, bytes.dense};
  }
}

MovedBytes moved_bytes(const LoadedModel& loaded, const PlacementStats& placement,
                       const KvStep::BytesRead& read) {
  const HostAttention* host = loaded.decoder.attention().host_attention();
  const PrefetchedBlocks::Use prefetched = loaded.kv.prefetched().use_so_far();
  const KvShape& shape = loaded.kv.memory().shape();
  return {.to_device = loaded.transfers->stats(Lane::kToDevice).bytes + read.uncounted,
          .to_host = loaded.transfers->stats(Lane::kToHost).bytes,
          .by_kind = {.weights = loaded.decoder.weight_stream().brought_bytes(),
                      .kv_reloads = placement.reloaded_blocks * shape.host_block_bytes(),
                      .kv_blocks = read.blocks,
                      .kv_tokens = read.tokens,
                      .inputs = read.inputs,
                      .results = host != nullptr ? host->use().results : 0},
          .prefetched = {prefetched.brought * shape.page_bytes(),
                         prefetched.unused * shape.page_bytes()}};
}

MemoryUse memory_use(MemoryTier tier, MemoryTag tag, std::uint64_t planned, std::uint64_t peak) {
  return {std::string(memory_tier_name(tier)), std::string(memory_tag_name(tag)), planned, peak};
}

void add_device_memory(const LoadedModel& loaded, const RunPlan& plan, std::uint64_t cluster_bytes,
                       std::vector<MemoryUse>& memory) {
  const auto add = [&memory](MemoryTag tag, std::uint64_t planned, std::uint64_t peak) {
    memory.push_back(memory_use(MemoryTier::kDevice, tag, planned, peak));
  };
  const MemoryPool& pool = loaded.pool;
  const KvShape& shape = loaded.kv.memory().shape();
  const auto pages_bytes = [&shape](std::int64_t pages) {
    return static_cast<std::uint64_t>(pages) * shape.page_bytes();
  };
  const std::uint64_t workspace = pool.use(MemoryTag::kWorkspace).peak;
  const std::uint64_t kv_beside_pages = plan.memory.kv - pages_bytes(plan.memory.kv_pages);
  add(MemoryTag::kWeights, plan.memory.weights, pool.use(MemoryTag::kWeights).peak);
  add(MemoryTag::kKv, plan.memory.kv,
      static_cast<std::uint64_t>(loaded.kv.book().tiers().device.peak()) *
              shape.host_block_bytes() +
          kv_beside_pages);
  if (plan.memory.transposed_k > 0) {
    // It is KV memory too, but its cost beside K and V should be visible.
    add(MemoryTag::kTransposedK, plan.memory.transposed_k,
        static_cast<std::uint64_t>(loaded.kv.transposed_k().peak() * shape.layers) *
            shape.transposed_k_bytes());
  }
  if (plan.memory.staging > 0) {
    const std::uint64_t staging = plan.memory.staging + plan.memory.cache;
    add(MemoryTag::kStaging, staging, staging);
  }
  add(MemoryTag::kActivations, plan.memory.scratch - workspace - cluster_bytes - plan.selection,
      pool.use(MemoryTag::kActivations).peak);
  if (plan.selection > 0) {
    add(MemoryTag::kSelection, plan.selection + plan.memory.lookup,
        pool.use(MemoryTag::kSelection).peak);
  }
  if (cluster_bytes > 0) {
    memory.push_back({std::string(memory_tier_name(MemoryTier::kDevice)), "clusters", cluster_bytes,
                      cluster_bytes});
  }
  add(MemoryTag::kWorkspace, workspace, workspace);
}

void add_host_memory(const LoadedModel& loaded, const RunPlan& plan,
                     std::vector<MemoryUse>& memory) {
  const auto add = [&memory](MemoryTag tag, std::uint64_t planned, std::uint64_t peak) {
    memory.push_back(memory_use(MemoryTier::kHost, tag, planned, peak));
  };
  const MemoryPool& pool = loaded.host_pool;
  const KvShape& shape = loaded.kv.memory().shape();
  const KvBook& book = loaded.kv.book();
  if (plan.memory.host_weights > 0) {
    add(MemoryTag::kWeights, plan.memory.host_weights, pool.use(MemoryTag::kWeights).peak);
  }
  if (plan.memory.host_blocks > 0) {
    add(MemoryTag::kKv, plan.memory.host_kv,
        static_cast<std::uint64_t>(book.tiers().host.peak()) * shape.host_block_bytes());
  }
  if (plan.host_scratch > 0) {
    const std::uint64_t buffers = pool.use(MemoryTag::kWorkspace).peak;
    add(MemoryTag::kActivations, plan.host_scratch - buffers,
        pool.use(MemoryTag::kActivations).peak);
    add(MemoryTag::kWorkspace, buffers, buffers);
  }
  if (plan.memory.host_inputs > 0) {
    add(MemoryTag::kInputs, plan.memory.host_inputs,
        static_cast<std::uint64_t>(book.tiers().inputs.peak_taken() * shape.layers) *
            shape.input_bytes());
  }
}

}  // namespace

void fill_run_numbers(const Engine& engine, const LoadedModel& loaded, const RunPlan& plan,
                      std::uint64_t cluster_bytes, RunSummary& summary) {
  const EngineStats& stats = engine.stats();
  const PlacementStats& placement = engine.placement().stats();
  summary.seconds.prefill = stats.prefill_seconds;
  summary.seconds.decode = stats.decode_seconds;
  summary.tokens = {.prompt = stats.computed_prompt_tokens,
                    .shared_prompt = stats.shared_prompt_tokens,
                    .generated = stats.generated_tokens,
                    .recomputed = placement.recomputed_tokens};
  summary.steps = stats.steps;
  summary.max_batch = static_cast<std::uint64_t>(stats.max_batch);
  summary.placement.preemptions = placement.swaps + placement.drops;
  summary.placement.phases = stats.phases;
  summary.placement.phase_boundaries = engine.placement().phases().boundaries();
  if (const AttentionRunner* runner = loaded.decoder.attention().runner()) {
    fill_attention(*runner, loaded.kv.memory().shape().dtype, summary.attention);
  }
  std::uint64_t listed = 0;
  if (loaded.transfers) {
    // What is on its way still (the next step's weights) counts, as it does in a trace.
    loaded.transfers->drain();
    const KvStep::BytesRead read = loaded.decoder.attention().kv_step().bytes_read();
    summary.moved = moved_bytes(loaded, placement, read);
    listed = read.recomputed_tokens;
    summary.token_cache = {plan.memory.cache, read.chosen, read.cached};
  }
  if (const HostAttention* host = loaded.decoder.attention().host_attention()) {
    const HostAttention::Use& use = host->use();
    summary.host_attention = {use.rows, use.queries, use.results, use.kv};
  }
  if (const HiddenStates* inputs = loaded.decoder.attention().hidden_states()) {
    const auto layers = static_cast<std::uint64_t>(loaded.kv.memory().shape().layers);
    summary.cached_hidden_states = {inputs->tokens(), inputs->use().saved_bytes,
                                    (inputs->use().recomputed_tokens + listed) / layers};
  }
  summary.memory.clear();
  add_device_memory(loaded, plan, cluster_bytes, summary.memory);
  add_host_memory(loaded, plan, summary.memory);
}

}  // namespace triphase
