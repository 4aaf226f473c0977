#include "scheduler/simulator/simulation_policies.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "base/error.h"
#include "scheduler/flexgen/policy_search.h"
#include "scheduler/flexgen/weight_rounding.h"
#include "scheduler/kv/block_tokens.h"
#include "scheduler/placement/accelerate_policy.h"
#include "scheduler/placement/device_only_policy.h"
#include "scheduler/placement/flexgen_policy.h"
#include "scheduler/placement/triphase_policy.h"
#include "scheduler/placement/vllm_policy.h"
#include "scheduler/placement/zero_policy.h"
#include "scheduler/simulator/job_memory.h"

namespace triphase {
namespace {

bool faster(const SimulationResult& one, const SimulationResult& than) {
  if (!one.infeasible.empty() || !than.infeasible.empty()) return one.infeasible.empty();
  return one.tokens_per_second > than.tokens_per_second;
}

std::int64_t longest_prompt(const SimulatedJob& job) {
  return std::ranges::max(job.requests, {}, &SimulatedRequest::prompt_tokens).prompt_tokens;
}
std::int64_t longest_output(const SimulatedJob& job) {
  return std::ranges::max(job.requests, {}, &SimulatedRequest::output_tokens).output_tokens;
}

// One plan and its run with so many sequences at a time; nothing when no
// schedule fits.
std::optional<NamedSimulation> run_planned(const CostModel& cost, const SimulatedJob& job,
                                           std::int64_t batch, const SimulationOptions& options) {
  const PlanRequest request{
      .workload = {.batch = batch,
                   .input_len = longest_prompt(job),
                   .output_len = longest_output(job),
                   .caching_ratio = job.caching_ratio,
                   .miss_rate = job.miss_rate},
      .budget = {job.device_memory, job.host_memory},
      .model = {.costs = job.model,
                .weights_dtype = job.weights_dtype,
                .kv_dtype = job.kv_dtype,
                .block_tokens = job.block_tokens,
                .prefill_chunk = job.prefill_chunk,
                .fetch = job.fetch,
                .dense_layers = job.dense_layers,
                .recent_share = job.recent_share,
                .transposed_k = job.transposed_k},
      .choose_kv_dtype = options.choose_kv_dtype,
      .options = {.kind = options.schedule, .allow_recompute = options.allow_recompute}};
  NamedSimulation named{.policy = "triphase"};
  named.plan = find_plan(cost, request);
  if (!named.plan) return std::nullopt;
  const PhaseSchedule& s = named.plan->schedule;
  named.detail = fmt::format(
      "{} at a time, p1 {}, p2 {}, alpha {:.3g}, beta {:.3g}, {} "
      "layers streamed",
      batch, s.p1, s.p2, s.alpha, s.beta, s.streamed_layers);
  SimulatedJob part = job;
  part.batch_size = batch;
  named.result = simulate(TriphasePolicy(s), cost, part);
  return named;
}

// KV that never leaves the device: as many sequences at a time as it holds, with so many layers
// streamed; 0: as few as can be.
NamedSimulation run_on_device(const CostModel& cost, const SimulatedJob& job, std::int64_t streamed,
                              bool on_demand) {
  const std::int64_t never = longest_output(job);
  const TriphasePolicy policy({.host_tier = false,
                               .on_demand = on_demand,
                               .p1 = never,
                               .p2 = never,
                               .streamed_layers = streamed});
  NamedSimulation named{.policy = "triphase", .result = simulate(policy, cost, job)};
  named.detail = fmt::format("{} at a time, all KV on the device{}, {} layers streamed",
                             named.result.max_running, on_demand ? " on demand" : "",
                             named.result.streamed_layers);
  return named;
}

// The fewest streamed layers with which the device holds the whole batch; nothing: none do.
std::optional<std::int64_t> layers_for_all(const SimulatedJob& job) {
  const std::int64_t never = longest_output(job);
  const JobMemory memory =
      divide_memory(TriphasePolicy({.host_tier = false, .p1 = never, .p2 = never}), job, true);
  if (!memory.infeasible.empty()) return std::nullopt;
  const std::int64_t tokens =
      std::ranges::max(job.requests, {}, &SimulatedRequest::kv_tokens).kv_tokens();
  if (!holds_together(memory.limits, tokens)) return std::nullopt;
  return memory.streamed_layers;
}

// The largest batch that the device holds beside all weights; 0: none.
std::int64_t most_on_device(SimulatedJob job) {
  std::int64_t held = 0;
  for (std::int64_t above = job.batch_size + 1; above - held > 1;) {
    job.batch_size = held + (above - held) / 2;
    (layers_for_all(job) == 0 ? held : above) = job.batch_size;
  }
  return held;
}

NamedSimulation run_triphase(const CostModel& cost, const SimulatedJob& job,
                             const SimulationOptions& options) {
  NamedSimulation best{.policy = "triphase"};
  best.result.infeasible = "no schedule fits, however few sequences run at a time";
  const auto offer = [&](const NamedSimulation& found) {
    if (faster(found.result, best.result)) best = found;
    return found.result;
  };
  // Whether the device holds the whole batch, and all weights too.
  const auto attempt = [&](std::int64_t batch) {
    const std::optional<NamedSimulation> found = run_planned(cost, job, batch, options);
    if (!found) return false;
    offer(*found);
    const PhaseSchedule& s = found->plan->schedule;
    return s.p1 >= longest_output(job) && s.streamed_layers == 0;
  };
  bool holds_all = attempt(job.batch_size);
  // Dense KV that crosses the link in every step can be slower than fewer sequences at a time,
  // which need less scratch and fewer streamed layers too: halves and three quarters of the batch
  // are weighed, and of these, and what the device holds alone.
  std::set<std::int64_t, std::greater<>> batches;
  std::vector<DType> types = {job.kv_dtype};
  if (options.choose_kv_dtype && job.kv_dtype != DType::kInt8) types.push_back(DType::kInt8);
  for (const DType type : types) {
    SimulatedJob resident = job;
    resident.kv_dtype = type;
    if (type != job.kv_dtype) resident.block_tokens = default_block_tokens(type);
    const std::int64_t held = most_on_device(resident);
    batches.insert(held);
    for (; resident.batch_size > held; resident.batch_size /= 2) {
      const SimulationResult alone = offer(run_on_device(cost, resident, 0, false));
      // What a sparse method decoded would be decoded again, token by token.
      if (job.caching_ratio >= 1.0) offer(run_on_device(cost, resident, 0, true));
      const std::optional<std::int64_t> streamed = layers_for_all(resident);
      if (streamed && *streamed != alone.streamed_layers) {
        offer(run_on_device(cost, resident, *streamed, false));
      }
    }
    resident.batch_size = held;
    if (held > 0) offer(run_on_device(cost, resident, 0, false));
  }
  for (std::int64_t batch = job.batch_size; batch > 0; batch /= 2) {
    batches.insert({batch * 3 / 4, batch / 2});
  }
  for (const std::int64_t batch : batches) {
    if (holds_all) break;
    if (batch > 0 && batch < job.batch_size) holds_all = attempt(batch);
  }
  return best;
}

// Tokens of each sequence at which a rate per operation is taken from a table of seconds.
constexpr std::int64_t kProbeContext = 4096;

// The published model of the machine from the profile's own tables, with rates
// per operation.
flexgen::Machine flexgen_machine(const CostModel& cost, const SimulatedJob& job,
                                 double host_attention_rate) {
  const auto layers = static_cast<double>(job.model.layers);
  const double h1 = static_cast<double>(job.model.hidden);
  const double token_ops = 2.0 * job.model.layer_matmul * layers;
  const auto batch = static_cast<double>(job.batch_size);
  const auto probe = static_cast<double>(kProbeContext);
  const double attended_ops = 4.0 * h1 * layers * probe * batch;
  const double prefill_tokens = 2048.0;
  flexgen::Machine machine;
  machine.to_device = 1e9 / cost.h2d(1e9).seconds;
  machine.to_host_cache = machine.to_host_hidden = 1e9 / cost.d2h(1e9).seconds;
  machine.matmul_prefill = token_ops * prefill_tokens / cost.prefill(prefill_tokens, 0.0).seconds;
  machine.attention_prefill = machine.matmul_prefill;
  machine.matmul_decode = token_ops * batch / cost.decode(false, batch, 0.0).seconds;
  machine.attention_decode = attended_ops / (cost.decode(false, batch, probe * batch).seconds -
                                             cost.decode(false, batch, 0.0).seconds);
  machine.attention_host = host_attention_rate;
  machine.device_memory = static_cast<double>(job.device_memory);
  machine.host_memory = static_cast<double>(job.host_memory);
  return machine;
}

// `whole_tensors`: weights stay on the device by whole tensors, as the original places them.
NamedSimulation run_flexgen(const CostModel& cost, const SimulatedJob& job, bool whole_tensors) {
  const flexgen::Model model{.hidden = static_cast<double>(job.model.hidden),
                             .ffn = static_cast<double>(job.model.ffn),
                             .layers = static_cast<double>(job.model.layers),
                             .heads = static_cast<double>(job.model.hidden) / 128.0,
                             .held_ffn = static_cast<double>(job.model.held_ffn)};
  NamedSimulation best{.policy = "flexgen"};
  best.result.infeasible = "no percentages fit";
  const auto attempt = [&](FlexGenOptions candidate, const std::string& detail) {
    if (whole_tensors) {
      const std::int64_t held = flexgen::held_layers(
          job.model.layer_modules, candidate.device_weight_share, job.model.layers);
      candidate.device_weight_share =
          static_cast<double>(held) / static_cast<double>(job.model.layers);
    }
    SimulationResult result = simulate(FlexGenPolicy(candidate), cost, job);
    const bool whole = result.infeasible.empty() && result.max_running >= job.batch_size;
    if (faster(result, best.result)) {
      best.result = std::move(result);
      best.detail = detail;
    }
    return whole;
  };
  for (const HostKvUse use : {HostKvUse::kStream, HostKvUse::kCpuAttention}) {
    const bool on_host = use == HostKvUse::kCpuAttention;
    if (on_host && !cost.can_attend_on_host()) continue;
    const char* mode = on_host ? "CPU attention" : "KV moved";
    // Attention does one multiply-add for each FP16 value read: an operation
    // for every byte.
    const double attended = static_cast<double>(job.batch_size * kProbeContext);
    const double rate =
        on_host ? 4.0 * model.hidden * model.layers * attended /
                      cost.host_attention(static_cast<double>(job.batch_size), attended).seconds
                : 1e9 / cost.h2d(1e9).seconds;
    const auto policy = flexgen::search_policy(
        model, static_cast<double>(longest_prompt(job)), static_cast<double>(longest_output(job)),
        flexgen_machine(cost, job, rate), flexgen::Objective::kCode,
        {.max_gpu_batch = job.batch_size, .fixed_block = job.batch_size});
    if (policy) {
      attempt({.device_kv_share = policy->shares.cg,
               .device_weight_share = policy->shares.wg,
               .gpu_batch = static_cast<std::int64_t>(policy->workload.gpu_batch),
               .num_batches = static_cast<std::int64_t>(policy->workload.num_batches),
               .host_kv = use},
              fmt::format("searched: wg {:.2f}, cg {:.2f}, {} x {}, {}", policy->shares.wg,
                          policy->shares.cg, policy->workload.gpu_batch,
                          policy->workload.num_batches, mode));
    }
    // By hand, as the paper does after its search: whole sequences on the
    // device, as many as fit.
    for (const double weights : {1.0, 0.5, 0.2, 0.0}) {
      bool whole_block = false;
      for (std::int64_t tenths = 10; tenths >= 0; --tenths) {
        whole_block |= attempt({.device_kv_share = static_cast<double>(tenths) / 10.0,
                                .device_weight_share = weights,
                                .host_kv = use},
                               fmt::format("by hand: wg {:.2f}, cg {:.2f}, {}", weights,
                                           static_cast<double>(tenths) / 10.0, mode));
      }
      // Fewer weights on the device only where more leave no room for the whole block.
      if (whole_block) break;
    }
  }
  return best;
}

NamedSimulation simulate_at_chunk(std::string_view policy, const CostModel& cost,
                                  const SimulatedJob& job, const SimulationOptions& options) {
  if (policy == "triphase") return run_triphase(cost, job, options);
  SimulatedJob dense = job;
  dense.caching_ratio = dense.miss_rate = 1.0;
  if (policy == "flexgen") {
    if (options.handicaps) {
      dense.handicaps = {.pageable = true,
                         .sync_each_layer = true,
                         .copies_device_kv = true,
                         .copies_host_kv = true};
    }
    return run_flexgen(cost, dense, options.handicaps);
  }
  NamedSimulation named{.policy = std::string(policy)};
  const auto run = [&](const PlacementPolicy& object) {
    named.result = simulate(object, cost, dense);
  };
  // Fewer at a time where room for the partial blocks of all takes that of KV, or of weights.
  const auto run_resident = [&](const PlacementPolicy& object) {
    run(object);
    if (dense.kv_dtype != DType::kInt8) return;
    while (dense.batch_size > 1) {
      dense.batch_size /= 2;
      SimulationResult fewer = simulate(object, cost, dense);
      if (!faster(fewer, named.result)) continue;
      named.result = std::move(fewer);
      named.detail = fmt::format("{} at a time", named.result.max_running);
    }
  };
  if (policy == "vllm") {
    run_resident(VllmPolicy());
  } else if (policy == "accelerate") {
    dense.handicaps.pageable = options.handicaps;
    run(AcceleratePolicy({.overlap = !options.handicaps}));
  } else if (policy == "zero") {
    dense.handicaps.streams_all_layers = options.handicaps;
    run(ZeroPolicy({.overlap = !options.handicaps}));
  } else {
    TRIPHASE_CHECK(policy == "device-only", "a known policy");
    run_resident(DeviceOnlyPolicy());
  }
  return named;
}

// Prompt tokens of a step where those of the profile take places that requests need.
constexpr std::int64_t kSmallChunk = 512;

}  // namespace

NamedSimulation simulate_policy(std::string_view policy, const CostModel& cost,
                                const SimulatedJob& job, const SimulationOptions& options) {
  NamedSimulation named = simulate_at_chunk(policy, cost, job, options);
  if (job.prefill_chunk <= kSmallChunk) return named;
  SimulatedJob smaller = job;
  smaller.prefill_chunk = kSmallChunk;
  NamedSimulation other = simulate_at_chunk(policy, cost, smaller, options);
  return faster(other.result, named.result) ? other : named;
}

}  // namespace triphase
