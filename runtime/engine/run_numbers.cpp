#include "runtime/engine/run_numbers.h"

#include <algorithm>

namespace triphase {
namespace {

void add_attention(const AttentionRunner& runner, AttentionUse& use) {
  const AttentionRunner::TokenCounts& counts = runner.token_counts();
  use.prompts.attended += counts.prompt_attended;
  use.prompts.context += counts.prompt_context;
  use.decode.attended += counts.attended;
  use.decode.context += counts.context;
  if (counts.context > 0) {
    const AttentionRunner::ReadBytes bytes = runner.read_bytes();
    AttentionBytes& sum = use.read_bytes ? *use.read_bytes : use.read_bytes.emplace();
    sum.attended += bytes.attended;
    sum.dense += bytes.dense;
  }
}

void add_moved_bytes(const LoadedModel& loaded, const PlacementStats& placement,
                     const KvStep::BytesRead& read, MovedBytes& moved) {
  const HostAttention* host = loaded.decoder.attention().host_attention();
  const PrefetchedBlocks::Use prefetched = loaded.kv.prefetched().use_so_far();
  const KvShape& shape = loaded.kv.memory().shape();
  moved.to_device += loaded.transfers->stats(Lane::kToDevice).bytes + read.uncounted;
  moved.to_host += loaded.transfers->stats(Lane::kToHost).bytes;
  moved.by_kind.weights += loaded.decoder.weight_stream().brought_bytes();
  moved.by_kind.kv_reloads += placement.reloaded_blocks * shape.host_block_bytes();
  moved.by_kind.kv_blocks += read.blocks;
  moved.by_kind.kv_tokens += read.tokens;
  moved.by_kind.inputs += read.inputs;
  if (host != nullptr) moved.by_kind.results += host->use().results;
  moved.prefetched.bytes += prefetched.brought * shape.page_bytes();
  moved.prefetched.unused += prefetched.unused * shape.page_bytes();
}

// `steps`: of the job before these boundaries were met.
void add_phases(const PhaseLog& met, std::uint64_t steps, PlacementUse& use) {
  for (PhaseBoundary at : met.boundaries()) {
    at.first_step += static_cast<std::int64_t>(steps);
    at.last_step += static_cast<std::int64_t>(steps);
    const auto earlier = std::ranges::find(use.phase_boundaries, at.phase, &PhaseBoundary::phase);
    if (earlier == use.phase_boundaries.end()) {
      use.phase_boundaries.push_back(at);
      continue;
    }
    earlier->sequences += at.sequences;
    earlier->last_step = at.last_step;
    earlier->least_context = std::min(earlier->least_context, at.least_context);
    earlier->most_context = std::max(earlier->most_context, at.most_context);
    earlier->least_generated = std::min(earlier->least_generated, at.least_generated);
    earlier->most_generated = std::max(earlier->most_generated, at.most_generated);
  }
}

// Engines of one job follow each other, so that their largest need counts.
void raise_memory_use(const MemoryUse& use, std::vector<MemoryUse>& memory) {
  const auto same = std::ranges::find_if(memory, [&](const MemoryUse& other) {
    return other.tier == use.tier && other.tag == use.tag;
  });
  if (same == memory.end()) {
    memory.push_back(use);
    return;
  }
  same->planned = std::max(same->planned, use.planned);
  same->peak = std::max(same->peak, use.peak);
}

void add_device_memory(const LoadedModel& loaded, const RunPlan& plan, std::uint64_t cluster_bytes,
                       std::vector<MemoryUse>& memory) {
  const auto add = [&memory](MemoryTag tag, std::uint64_t planned, std::uint64_t peak) {
    memory.push_back({std::string(memory_tier_name(MemoryTier::kDevice)),
                      std::string(memory_tag_name(tag)), planned, peak});
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
        static_cast<std::uint64_t>(loaded.kv.transposed_k().peak() * shape.slab_pages()) *
            shape.transposed_k_bytes());
  }
  if (plan.memory.staging > 0) {
    const std::uint64_t staging = plan.memory.staging + plan.memory.cache;
    add(MemoryTag::kStaging, staging, staging);
  }
  add(MemoryTag::kActivations, plan.memory.scratch - workspace - cluster_bytes - plan.selection,
      pool.use(MemoryTag::kActivations).peak + plan.ops_memory);
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
    memory.push_back({std::string(memory_tier_name(MemoryTier::kHost)),
                      std::string(memory_tag_name(tag)), planned, peak});
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
        static_cast<std::uint64_t>(book.tiers().inputs.peak_taken() * shape.slab_pages()) *
            shape.input_bytes());
  }
}

// Of one stage. Peaks of different tags need not fall together, so their sum bounds the tier's peak
// from above; those of different stages never do.
void add_memory(const LoadedModel& loaded, const RunPlan& plan, std::uint64_t cluster_bytes,
                RunSummary& summary) {
  std::vector<MemoryUse> device;
  add_device_memory(loaded, plan, cluster_bytes, device);
  std::vector<MemoryUse> host;
  add_host_memory(loaded, plan, host);
  const auto take_in = [&](const std::vector<MemoryUse>& uses, std::uint64_t& peak) {
    std::uint64_t sum = 0;
    for (const MemoryUse& use : uses) {
      sum += use.peak;
      raise_memory_use(use, summary.memory);
    }
    peak = std::max(peak, sum);
  };
  take_in(device, summary.peak.device);
  take_in(host, summary.peak.host);
}

}  // namespace

void add_run_numbers(const Engine& engine, const LoadedModel& loaded, const RunPlan& plan,
                     std::uint64_t cluster_bytes, RunSummary& summary) {
  const EngineStats& stats = engine.stats();
  const PlacementStats& placement = engine.placement().stats();
  summary.seconds.prefill += stats.prefill_seconds;
  summary.seconds.decode += stats.decode_seconds;
  summary.tokens.prompt += stats.computed_prompt_tokens;
  summary.tokens.shared_prompt += placement.shared_prompt_tokens;
  summary.tokens.generated += stats.generated_tokens;
  summary.tokens.by_decoding += stats.results_of_decoding;
  summary.tokens.recomputed += stats.recomputed_tokens;
  add_phases(engine.placement().phases(), summary.steps, summary.placement);
  for (std::size_t phase = 0; phase < stats.phases.size(); ++phase) {
    summary.placement.phases[phase].steps += stats.phases[phase].steps;
    summary.placement.phases[phase].seconds += stats.phases[phase].seconds;
  }
  summary.steps += stats.steps;
  summary.max_batch = std::max(summary.max_batch, static_cast<std::uint64_t>(stats.max_batch));
  summary.placement.preemptions += placement.swaps + placement.drops;
  if (const AttentionRunner* runner = loaded.decoder.attention().runner()) {
    add_attention(*runner, summary.attention);
  }
  std::uint64_t listed = 0;
  if (loaded.transfers) {
    // What is on its way still (the next step's weights) counts, as it does in a trace.
    loaded.transfers->drain();
    const KvStep::BytesRead read = loaded.decoder.attention().kv_step().bytes_read();
    add_moved_bytes(loaded, placement, read, summary.moved);
    listed = read.recomputed_tokens;
    summary.token_cache.budget = std::max(summary.token_cache.budget, plan.memory.cache);
    summary.token_cache.chosen += read.chosen;
    summary.token_cache.found += read.cached;
  }
  if (const HostAttention* host = loaded.decoder.attention().host_attention()) {
    const HostAttention::Use& use = host->use();
    HostAttentionUse& sum = summary.host_attention;
    sum.rows += use.rows;
    sum.queries += use.queries;
    sum.results += use.results;
    sum.kv += use.kv;
  }
  if (const HiddenStates* inputs = loaded.decoder.attention().hidden_states()) {
    const auto layers = static_cast<std::uint64_t>(loaded.kv.memory().shape().slab_pages());
    HiddenStateUse& sum = summary.cached_hidden_states;
    sum.tokens = inputs->tokens();
    sum.saved_bytes += inputs->use().saved_bytes;
    sum.recomputed_tokens += (inputs->use().recomputed_tokens + listed) / layers;
  }
  add_memory(loaded, plan, cluster_bytes, summary);
}

}  // namespace triphase
