#include "scheduler/simulator/job_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/format_bytes.h"
#include "scheduler/cost/model_costs.h"

namespace triphase {
namespace {

// Tokens.
struct Longest {
  std::int64_t prompt = 0;
  std::int64_t context = 0;  // the last token that is sampled is never attended
};

Longest longest_of(const SimulatedJob& job) {
  Longest longest;
  for (const SimulatedLine& line : job.lines) {
    longest.prompt = std::max(longest.prompt, line.prompt_tokens);
    longest.context = std::max(longest.context, line.prompt_tokens + line.output_tokens - 1);
  }
  return longest;
}

std::uint64_t scratch_of(const SimulatedJob& job) {
  return scratch_bytes(job.model, job.prefill_chunk + job.batch_size, job.batch_size,
                       job.weights_dtype);
}

StaticPlacement ask(const PlacementPolicy& policy, const SimulatedJob& job, Longest longest) {
  const ModelCosts& model = job.model;
  return policy.start({.layers = model.layers,
                       .block_tokens = job.block_tokens,
                       .batch_size = job.batch_size,
                       .longest_tokens = longest.context,
                       .device_budget = job.device_memory,
                       .host_budget = job.host_memory,
                       .layer_weights = model.layer_weights,
                       .other_weights = model.other_weights,
                       .scratch = scratch_of(job),
                       .kv_bytes_per_token = static_cast<std::uint64_t>(
                           static_cast<double>(model.layers) *
                           kv_layer_bytes(model, job.kv_dtype, job.block_tokens))});
}

void take_choices(const SimulatedJob& job, JobMemory& memory) {
  if (job.division) {
    memory.kv_dtype = job.kv_dtype;
    memory.streamed_layers = job.division->streamed_layers;
    memory.limits = job.division->limits;
    return;
  }
  memory.kv_dtype = memory.placement.kv_dtype.value_or(job.kv_dtype);
  memory.streamed_layers =
      job.handicaps.streams_all_layers ? job.model.layers : memory.placement.streamed_layers;
  memory.limits = {.layers = job.model.layers,
                   .block_tokens = memory.placement.block_tokens.value_or(job.block_tokens),
                   .batch_size = job.batch_size,
                   .prefill_chunk = job.prefill_chunk,
                   .staging_group = memory.placement.gpu_batch,
                   .touched_share = job.caching_ratio};
}

void count_token_bytes(const SimulatedJob& job, JobMemory& memory) {
  const auto layers = static_cast<double>(job.model.layers);
  memory.kv_token = layers * kv_layer_bytes(job.model, memory.kv_dtype, memory.limits.block_tokens);
  memory.record_layer = kv_record_bytes(job.model, memory.kv_dtype);
  memory.record_token = layers * memory.record_layer;
  memory.input_token = layers * input_layer_bytes(job.model);
  memory.query_row =
      static_cast<double>(job.model.q_width * job.model.layers) * job.activation_bytes;
}

// Sets how many tokens staging holds, and returns its bytes.
std::uint64_t divide_staging(const SimulatedJob& job, Longest longest, JobMemory& memory) {
  const StaticPlacement& placement = memory.placement;
  if (!placement.host_tier || placement.host_kv != HostKvUse::kStream) return 0;
  const std::int64_t group = placement.gpu_batch > 0 ? placement.gpu_batch : job.batch_size;
  const auto touched = static_cast<std::int64_t>(
      std::ceil(static_cast<double>(longest.context) * job.caching_ratio));
  // Prompts are attended densely, a chunk's worth of sequences at a time.
  const std::int64_t prefill = std::max(longest.prompt, job.prefill_chunk);
  memory.limits.staging_tokens = std::max(group * touched, prefill);
  if (job.caching_ratio < 1.0) memory.limits.staging_tokens += group * longest.prompt;
  // Two layers: one is attended while the next one arrives. Prompts' share only while they are
  // being computed, inside the scratch of a chunk.
  const double layer = kv_layer_bytes(job.model, memory.kv_dtype, memory.limits.block_tokens);
  return static_cast<std::uint64_t>(2.0 * layer * static_cast<double>(group * touched));
}

// At most what a full batch of longest lines could use, as the engine has it.
void divide_host(const PlacementPolicy& policy, const SimulatedJob& job, Longest longest,
                 JobMemory& memory) {
  PlacementLimits& limits = memory.limits;
  const auto block_tokens = static_cast<double>(limits.block_tokens);
  const std::int64_t wanted = limits.blocks_for(longest.context) * job.batch_size;
  double room = static_cast<double>(job.host_memory - memory.fixed_host);
  const double input_block = memory.input_token * block_tokens;
  const std::int64_t inputs = std::min(policy.input_blocks(limits.block_tokens) * job.batch_size,
                                       static_cast<std::int64_t>(room / 2.0 / input_block));
  limits.input_pages = inputs * limits.layers;
  room -= static_cast<double>(inputs) * input_block;
  const double block = memory.record_token * block_tokens;
  limits.host_pages = std::min(static_cast<std::int64_t>(room / block), wanted) * limits.layers;
}

void divide(const PlacementPolicy& policy, const SimulatedJob& job, Longest longest,
            JobMemory& memory) {
  const ModelCosts& model = job.model;
  PlacementLimits& limits = memory.limits;
  const std::uint64_t staging = divide_staging(job, longest, memory);
  const std::int64_t slots = std::min(memory.streamed_layers, kWeightSlots);
  memory.fixed_device = model.other_weights + scratch_of(job) + staging +
                        model.layer_weights * static_cast<std::uint64_t>(
                                                  model.layers - memory.streamed_layers + slots);
  memory.fixed_host = model.layer_weights * static_cast<std::uint64_t>(memory.streamed_layers);
  if (job.handicaps.copies_host_kv && memory.placement.host_kv == HostKvUse::kCpuAttention) {
    const std::int64_t tokens =
        limits.blocks_for(longest.context) * limits.block_tokens * job.batch_size;
    memory.fixed_host += static_cast<std::uint64_t>(tokens * 2 * model.kv_width) * sizeof(float);
  }
  if (memory.fixed_device > job.device_memory || memory.fixed_host > job.host_memory) {
    memory.infeasible = fmt::format(
        "weights, scratch and staging take {} of {} on the device and {} of {} on the host",
        format_bytes(memory.fixed_device), format_bytes(job.device_memory),
        format_bytes(memory.fixed_host), format_bytes(job.host_memory));
    return;
  }
  const auto block_tokens = static_cast<double>(limits.block_tokens);
  double room = static_cast<double>(job.device_memory - memory.fixed_device);
  if (memory.placement.host_tier) {
    divide_host(policy, job, longest, memory);
    // INT8's scales stay on the device wherever the block is; they must leave most of it.
    const double scales = (memory.kv_token - memory.record_token) * block_tokens;
    if (scales > 0.0) {
      const auto most = static_cast<std::int64_t>(room / 2.0 / scales);
      limits.host_pages = std::min(limits.host_pages, most * limits.layers);
    }
    room -= static_cast<double>(limits.host_blocks()) * scales;
  }
  const double copy = job.handicaps.copies_device_kv ? memory.record_layer * block_tokens : 0.0;
  const auto blocks = static_cast<std::int64_t>(room / (memory.kv_token * block_tokens + copy));
  limits.device_pages = blocks * model.layers;
  memory.fixed_device += static_cast<std::uint64_t>(copy * static_cast<double>(blocks));
}

}  // namespace

JobMemory divide_memory(const PlacementPolicy& policy, const SimulatedJob& job) {
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
  count_token_bytes(job, memory);
  if (!job.division) divide(policy, job, longest, memory);
  if (!memory.infeasible.empty()) return memory;
  const std::int64_t allowed = policy.longest_line(memory.limits);
  if (allowed < longest.context) {
    memory.infeasible = fmt::format("a line of {} tokens; --policy {} can hold {}", longest.context,
                                    policy.name(), allowed);
  }
  return memory;
}

}  // namespace triphase
