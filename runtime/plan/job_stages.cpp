#include "runtime/plan/job_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/plan/choose_plan.h"
#include "runtime/plan/workload.h"

namespace triphase {
namespace {

// Whether memory holds a full batch of the longest requests that the model takes.
bool holds_any_batch(const RunOptions& options, const RunPlan& plan,
                     const ComputeMachine& machine) {
  std::int64_t batch = options.machine.batch_size;
  if (batch == 0) batch = default_batch_size(machine);
  if (options.machine.requests > 0) batch = std::min(batch, options.machine.requests);
  const PlacementLimits& places = plan.places;
  return plan.memory.batch_size >= batch && plan.memory.streamed_layers == 0 &&
         places.device_blocks >= places.batch_blocks(batch, plan.context);
}

// Nothing: not known, or memory is enough for any request. Who gives --max-context has said it.
std::optional<LongestRequest> longest_where_it_matters(const RunOptions& options,
                                                       const ModelBundle& model,
                                                       const PromptFileFacts& prompts,
                                                       const ComputeMachine& machine) {
  if (!prompts.rereadable) return std::nullopt;
  if (options.machine.max_context > 0) return std::nullopt;
  const std::optional<RunPlan> any = try_plan_run(options, model, machine);
  if (any && holds_any_batch(options, *any, machine)) return std::nullopt;
  return find_longest_request(options, model);
}

// For requests that no look at the file has found, or that the other stages have no room for: the
// first plan that holds a longest one, from large batches to small ones, then with more layers
// streamed, then without a host tier, which needs a place on the device for what it reads, then
// with smaller chunks of prompts; else what holds most.
std::optional<Stage> last_resort(const Stage& first, const MachineOptions& asked,
                                 const LongestRequest& longest, const ModelBundle& model,
                                 const ComputeMachine& machine) {
  RunOptions options = first.options;
  // A record must not depend on the stage that it is made in.
  options.machine.kv_dtype = first.plan.kv.dtype;
  options.machine.kv_block = first.plan.kv.block_tokens;
  options.machine.cached_hidden_states = first.plan.input_tokens;
  std::optional<Stage> best;
  const std::int64_t tokens = longest.lengths.kv_tokens();
  struct Division {
    std::int64_t held;
    std::int64_t context;
  };
  const auto look = [&] {
    // Memory that is divided for any request has room for unknown ones, too.
    for (const auto& [held, context] :
         {Division{0, 0}, {0, longest.context()}, {tokens, 0}, {tokens, longest.context()}}) {
      options.machine.held_tokens = held;
      options.machine.job_context = context;
      options.machine.batch_size = asked.batch_size;
      for (bool smaller = true; smaller;) {
        std::optional<RunPlan> plan = try_plan_run(options, model, machine);
        // A batch that is asked for is placed by its own size, not by the most that is chosen.
        const std::int64_t next = options.machine.batch_size > 0 ? options.machine.batch_size / 2
                                  : plan                         ? plan->memory.batch_size
                                                                 : default_batch_size(machine);
        if (plan && (!best || plan->longest_request > best->plan.longest_request)) {
          best = Stage{options, std::nullopt, *std::move(plan)};
        }
        if (best && best->plan.longest_request >= tokens) return true;
        options.machine.batch_size = next;
        smaller = asked.batch_size == 0 && next > 0;
      }
    }
    return false;
  };
  const std::int64_t least_chunk = first.plan.kv.block_tokens;
  for (std::int64_t chunk = first.plan.prefill_chunk;;) {
    options.plan.schedule.reset();
    if (look()) break;
    options.plan.schedule = device_schedule();
    if (options.machine.policy == "triphase" && look()) break;
    chunk /= 2;
    if (asked.prefill_chunk > 0 || chunk < least_chunk) break;
    options.machine.prefill_chunk = chunk;
  }
  return best;
}

}  // namespace

std::vector<Stage> choose_stages(RunOptions options, const PromptFileFacts& prompts,
                                 RunProfile& profile, const Workplace& place) {
  const MachineOptions asked = options.machine;
  const ModelBundle& model = place.model;
  const ComputeMachine& machine = place.machine();
  const std::optional<LongestRequest> longest =
      longest_where_it_matters(options, model, prompts, machine);
  const std::int64_t context = longest ? longest->context() : 0;
  options.machine.job_context = context;
  if (longest) {
    place.log.info(fmt::format("memory is divided for requests of up to {} tokens{}", context,
                               longest->certain ? ", as long as any of the lines needs"
                                                : ": none of those that look longest needs more"));
  }
  const std::optional<RunSchedule> schedule =
      choose_schedule(options, prompts, longest, profile, place);

  // A request of --max-context tokens may come. Lines from a pipe have one division for all.
  std::optional<LongestRequest> awaited = longest;
  if (const std::int64_t most = most_context(options, model.config); asked.max_context > 0) {
    if (prompts.rereadable) awaited = {{.prompt_tokens = most, .output_tokens = 1}, true};
    if (!prompts.rereadable) options.machine.held_tokens = most;
  }
  RunPlan first = plan_run(options, model, machine);
  std::vector<Stage> stages = {{options, schedule, std::move(first)}};
  const auto add_if_longer = [&](std::optional<Stage> stage) {
    if (!stage || stage->plan.longest_request <= stages.back().plan.longest_request) return;
    stages.push_back(*std::move(stage));
  };
  for (const Plan& longer : schedule ? schedule->plan.longer : std::vector<Plan>()) {
    options.machine.job_context = context;
    options.machine.batch_size = asked.batch_size;
    RunSchedule under = *schedule;
    under.plan = longer;
    RunOptions later = with_plan(options, longer);
    RunPlan plan = plan_run(later, model, machine);
    add_if_longer(Stage{std::move(later), std::move(under), std::move(plan)});
  }
  const std::int64_t held = stages.back().plan.longest_request;
  if (awaited && !(awaited->certain && awaited->lengths.kv_tokens() <= held)) {
    add_if_longer(last_resort(stages.front(), asked, *awaited, model, machine));
  }
  return stages;
}

}  // namespace triphase
