#include "runtime/plan/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/plan/choose_plan.h"
#include "runtime/plan/config_costs.h"
#include "runtime/plan/job_stages.h"
#include "runtime/plan/workload.h"
#include "scheduler/cost/step_cost.h"
#include "scheduler/simulator/simulator.h"

namespace triphase {
namespace {

// The simulator takes some microseconds for each request of each step.
constexpr LineLimits kMost{.lines = 10000, .bytes = std::uint64_t{64} << 20};

}  // namespace

SimulatedJob simulated_job(const RunOptions& options, const ModelBundle& model, const RunPlan& plan,
                           std::vector<SimulatedRequest> requests) {
  const RequestLengths lengths = lengths_of(requests);
  const AttendedShares shares =
      shares_half_way(options.attention, model.config, lengths.input, lengths.output);
  return {.model = model_costs(model.config, model.weights_dtype),
          .weights_dtype = model.weights_dtype,
          .kv_dtype = plan.kv.dtype,
          .block_tokens = plan.kv.block_tokens,
          .activation_bytes = sizeof(float),
          .batch_size = plan.memory.batch_size,
          .prefill_chunk = plan.prefill_chunk,
          .prompt_units = plan.prompt_units,
          .caching_ratio = shares.attended,
          .miss_rate = options.plan.miss_rate.value_or(1.0),
          .fetch = sparse_fetch(options.attention, model,
                                has_columns(plan.memory, plan.kv.slab_pages())),
          .dense_layers = shares.dense_layers,
          .recent_share = shares.recent,
          .requests = std::move(requests),
          .division = MemoryDivision{.limits = plan.places,
                                     .streamed_layers = plan.placement.streamed_layers,
                                     .placement = plan.placement,
                                     .staging_pages = plan.memory.staging_pages,
                                     .cached_tokens = plan.memory.cached_tokens(
                                         plan.kv.slab_pages(), plan.kv.block_tokens)}};
}

std::optional<RunPrediction> predict_run(const std::vector<Stage>& stages,
                                         const PromptFileFacts& prompts,
                                         const HardwareProfile& profile, const Workplace& place) {
  if (!prompts.rereadable || prompts.requests > static_cast<std::uint64_t>(kMost.lines)) {
    place.log.info(
        fmt::format("no prediction: prompts from a pipe, or more than {} requests", kMost.lines));
    return std::nullopt;
  }
  const CostModel cost(profile, stages.front().options.attention);
  RunPrediction sum{.profile = profile.name};
  std::int64_t done_before = 0;  // KV tokens of the longest request of earlier stages
  for (const auto& [options, schedule, plan] : stages) {
    if (plan.placement.host_kv == HostKvUse::kCpuAttention && !cost.can_attend_on_host()) {
      place.log.info(
          fmt::format("no prediction: profile {} does not say what attention on the host costs; "
                      "triphase profile measures it",
                      escape_untrusted(profile.name)));
      return std::nullopt;
    }
    std::vector<SimulatedRequest> requests =
        read_request_lengths(options, place.model, plan.longest_request, kMost);
    std::erase_if(requests, [&](const SimulatedRequest& request) {
      return request.kv_tokens() <= done_before;
    });
    done_before = plan.longest_request;
    if (requests.empty()) continue;
    sum.requests += std::ssize(requests);
    sum.miss_rate = options.plan.miss_rate.value_or(1.0);
    const SimulationResult result = simulate(
        *plan.policy, cost, simulated_job(options, place.model, plan, std::move(requests)));
    if (!result.infeasible.empty()) {
      place.log.info("no prediction: " + result.infeasible);
      return std::nullopt;
    }
    sum.steps += result.steps_taken;
    sum.prefill_seconds += result.prefill_seconds;
    sum.decode_seconds += result.decode_seconds;
    sum.bytes_to_device += result.h2d_bytes;
    sum.bytes_to_host += result.d2h_bytes;
    sum.extrapolated = sum.extrapolated || result.lanes.extrapolated;
  }
  if (sum.requests == 0) return std::nullopt;
  place.log.info(
      fmt::format("predicted with profile {}: {} requests in {} steps, {:.3g} s of prefill and "
                  "{:.3g} s of decode{}",
                  escape_untrusted(sum.profile), sum.requests, sum.steps, sum.prefill_seconds,
                  sum.decode_seconds, sum.extrapolated ? " (partly extrapolated)" : ""));
  return sum;
}

}  // namespace triphase
