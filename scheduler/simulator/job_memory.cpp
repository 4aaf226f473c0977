#include "scheduler/simulator/job_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/format_bytes.h"
#include "scheduler/cost/model_costs.h"
#include "scheduler/memory_plan.h"

namespace triphase {
namespace {

// Tokens.
struct Longest {
  std::int64_t prompt = 0;
  std::int64_t context = 0;  // the last token that is sampled is never attended
};

Longest longest_of(const SimulatedJob& job) {
  Longest longest;
  for (const SimulatedRequest& request : job.requests) {
    longest.prompt = std::max(longest.prompt, request.prompt_tokens);
    longest.context = std::max(longest.context, request.kv_tokens());
  }
  return longest;
}

MemoryRequest sized_request(const SimulatedJob& job, Longest longest, DType kv_dtype,
                            std::int64_t block_tokens, std::int64_t streamed_layers) {
  return memory_request({.costs = &job.model,
                         .weights_dtype = job.weights_dtype,
                         .kv_dtype = kv_dtype,
                         .block_tokens = block_tokens,
                         .streamed_layers = streamed_layers,
                         .batch_size = job.batch_size,
                         .prefill_chunk = job.prefill_chunk,
                         .context = longest.context,
                         .scratch = {},
                         .transposed_k = job.transposed_k});
}

StaticPlacement ask(const PlacementPolicy& policy, const SimulatedJob& job, Longest longest) {
  const ModelCosts& model = job.model;
  const double transposed_k = job.transposed_k ? kv_record_bytes(model, job.kv_dtype) / 2.0 : 0.0;
  return policy.start(
      {.layers = model.layers,
       .block_tokens = job.block_tokens,
       .batch_size = job.batch_size,
       .longest_tokens = longest.context,
       .device_budget = job.device_memory,
       .host_budget = job.host_memory,
       .layer_weights = model.layer_weights,
       .other_weights = model.other_weights,
       .scratch =
           sized_request(job, longest, job.kv_dtype, job.block_tokens, 0).scratch(job.batch_size),
       .kv_bytes_per_token = static_cast<std::uint64_t>(
           static_cast<double>(model.layers) *
           (kv_layer_bytes(model, job.kv_dtype, job.block_tokens) + transposed_k)),
       .int8_kv = job.kv_dtype == DType::kInt8});
}

void take_choices(const SimulatedJob& job, JobMemory& memory) {
  if (job.division) {
    memory.kv_dtype = job.kv_dtype;
    memory.streamed_layers = job.division->streamed_layers;
    memory.staging_pages = job.division->staging_pages;
    memory.cached_tokens = job.division->cached_tokens;
    memory.limits = job.division->limits;
    return;
  }
  memory.kv_dtype = memory.placement.kv_dtype.value_or(job.kv_dtype);
  memory.streamed_layers =
      job.handicaps.streams_all_layers ? job.model.layers : memory.placement.streamed_layers;
  memory.limits = {.layers = job.model.layers,
                   .block_tokens = memory.placement.block_tokens.value_or(job.block_tokens),
                   .batch_size = job.batch_size,
                   .prefill_chunk = job.prefill_chunk};
}

void count_token_bytes(const SimulatedJob& job, JobMemory& memory) {
  const bool apart = memory.limits.windows.blocks > 0;
  memory.block_layers = job.model.layers - (apart ? job.model.sliding_layers() : 0);
  const auto layers = static_cast<double>(memory.block_layers);
  memory.kv_token = layers * kv_layer_bytes(job.model, memory.kv_dtype, memory.limits.block_tokens);
  memory.record_token = layers * memory.record_layer;
  memory.input_layer = input_layer_bytes(job.model);
  memory.input_token = layers * memory.input_layer;
  memory.query_row =
      static_cast<double>(job.model.q_width * job.model.layers) * job.activation_bytes;
}

// Attention on the host from a copy in F32: its bytes there.
std::uint64_t workspace_bytes(const SimulatedJob& job, Longest longest, const JobMemory& memory) {
  const bool attends = memory.placement.host_kv == HostKvUse::kCpuAttention;
  if (!job.handicaps.copies_host_kv || !attends) return 0;
  const PlacementLimits& limits = memory.limits;
  const std::int64_t tokens =
      limits.blocks_for(longest.context) * limits.block_tokens * job.batch_size;
  return static_cast<std::uint64_t>(tokens * 2 * job.model.kv_width) * sizeof(float);
}

MemoryRequest request_of(const PlacementPolicy& policy, const SimulatedJob& job, Longest longest,
                         const JobMemory& memory) {
  const PlacementLimits& limits = memory.limits;
  MemoryRequest request =
      sized_request(job, longest, memory.kv_dtype, limits.block_tokens, memory.streamed_layers);
  request.budget = job.device_memory;
  if (job.handicaps.copies_device_kv) {
    // One layer's copy takes its place beside the pages.
    request.page_bytes += request.page_bytes / static_cast<std::uint64_t>(limits.layers);
  }
  if (memory.placement.host_tier) {
    MemoryRequest::Host& host = request.host.emplace(
        host_tier(policy, memory.placement, limits.block_tokens, job.prefill_chunk));
    const std::uint64_t taken = workspace_bytes(job, longest, memory);
    host.budget = job.host_memory - std::min(job.host_memory, taken);
    const bool gathers = job.caching_ratio < 1.0 && job.fetch != SparseFetch::kWholeBlocks;
    host.chosen_share = gathers ? job.caching_ratio : 0.0;
    host.input_bytes = static_cast<std::uint64_t>(input_layer_bytes(job.model) *
                                                  static_cast<double>(limits.block_tokens));
  }
  if (!memory.placement.windows_apart) return request;
  return keep_windows_apart(request, job.model);
}

void divide(const PlacementPolicy& policy, const SimulatedJob& job, Longest longest, bool together,
            JobMemory& memory) {
  MemoryRequest request = request_of(policy, job, longest, memory);
  request.held_together = together;
  if (together) request.held = longest.context;
  MemoryPlan plan;
  try {
    plan = plan_memory(request);
  } catch (const Error& error) {
    if (error.role() != ErrorRole::kResources) throw;
    memory.infeasible = error.found();
    return;
  }
  memory.streamed_layers = plan.streamed_layers;
  memory.staging_pages = plan.staging_pages;
  memory.cached_tokens = plan.cached_tokens(request.block_layers(), memory.limits.block_tokens);
  memory.limits = placement_limits(request, plan);
  memory.longest = longest_request(policy, request, plan);
  // Scales of blocks on the host count with these.
  const auto blocks = static_cast<double>(memory.limits.device_blocks);
  const double copies =
      job.handicaps.copies_device_kv
          ? blocks * static_cast<double>(request.block_tokens) * memory.record_layer
          : 0.0;
  memory.fixed_device =
      plan.weights + plan.scratch + plan.transposed_k + plan.staging + plan.cache +
      request.partial_page_bytes * static_cast<std::uint64_t>(plan.partial_pages) +
      static_cast<std::uint64_t>(copies);
  memory.fixed_host = plan.host_weights + workspace_bytes(job, longest, memory);
  if (memory.fixed_host > job.host_memory) {
    memory.infeasible = fmt::format("{} on the host for streamed weights and workspace, of {}",
                                    format_bytes(memory.fixed_host), format_bytes(job.host_memory));
  }
}

}  // namespace

JobMemory divide_memory(const PlacementPolicy& policy, const SimulatedJob& job, bool together) {
  JobMemory memory;
  const Longest longest = longest_of(job);
  if (job.division && job.division->placement) {
    memory.placement = *job.division->placement;
  } else {
    try {
      memory.placement = ask(policy, job, longest);
    } catch (const Error& error) {
      if (error.role() != ErrorRole::kResources) throw;
      memory.infeasible = error.found();
      return memory;
    }
  }
  take_choices(job, memory);
  memory.record_layer = kv_record_bytes(job.model, memory.kv_dtype);
  if (job.division) {
    memory.longest = policy.longest_request(memory.limits);
  } else {
    divide(policy, job, longest, together, memory);
  }
  count_token_bytes(job, memory);
  memory.limits.prompt_units = job.prompt_units;
  if (memory.infeasible.empty() && memory.longest < longest.context) {
    memory.infeasible = fmt::format("a request of {} tokens; --policy {} can hold {}",
                                    longest.context, policy.name(), memory.longest);
  }
  return memory;
}

}  // namespace triphase
