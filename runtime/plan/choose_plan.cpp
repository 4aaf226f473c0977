#include "runtime/plan/choose_plan.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <utility>

#include "base/error.h"
#include "kernels/sizing/resolver_memory.h"
#include "runtime/plan/config_costs.h"
#include "runtime/plan/prediction.h"
#include "runtime/plan/workload.h"
#include "scheduler/kv/block_tokens.h"
#include "scheduler/planner/planner.h"
#include "scheduler/simulator/simulator.h"

namespace triphase {
namespace {

// How many requests are simulated to compare plans, at least; and how many batches of them.
constexpr std::int64_t kSimulated = 256;
constexpr std::int64_t kSimulatedBatches = 4;
// The predicted time of the device alone is weighed by this: nothing can go wrong on a link.
constexpr double kDeviceBonus = 0.95;
// Predictions are not exact. Two plans have to take at most this share of one plan's time.
constexpr double kSplitWorth = 0.9;
// And a division at fewer tokens this share of the time that one at more tokens takes.
constexpr double kClearlyLess = 0.95;
// Bytes per second at which weights are read again where a second plan places them differently.
constexpr double kReloadRate = 1e9;

// `count` of them: evenly spread, in their order, or all again and again.
std::vector<SimulatedRequest> draw(const std::vector<SimulatedRequest>& requests,
                                   std::size_t count) {
  std::vector<SimulatedRequest> drawn;
  for (std::size_t index = 0; index < count; ++index) {
    drawn.push_back(count <= requests.size() ? requests[index * requests.size() / count]
                                             : requests[index % requests.size()]);
  }
  return drawn;
}

// Where no plan holds a whole batch: for a half of its requests' tokens, a quarter, an eighth. Then
// a part of the batch runs at a time, or is preempted.
std::optional<Plan> plan_with(const CostModel& cost, PlanRequest request) {
  std::optional<Plan> plan = find_plan(cost, request);
  for (int halvings = 0; !plan && halvings < 3; ++halvings) {
    request.workload.input_len = std::max<std::int64_t>(request.workload.input_len / 2, 1);
    request.workload.output_len = std::max<std::int64_t>(request.workload.output_len / 2, 1);
    plan = find_plan(cost, request);
  }
  return plan;
}

bool may_choose_int8(const RunOptions& options) {
  return !options.machine.kv_dtype &&
         options.machine.kv_block % KvShape::kInt8BlockMultiple == 0;  // 0: chosen
}

using Rank = std::pair<std::int64_t, double>;  // the less the better

Rank rank_of(const std::optional<PlanChoice>& choice) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  return choice ? Rank(choice->too_long, choice->seconds)
                : Rank(std::numeric_limits<std::int64_t>::max(), kInfinite);
}

// Either may be missing.
bool better(const std::optional<PlanChoice>& one, const std::optional<PlanChoice>& than) {
  return rank_of(one) < rank_of(than);
}

void offer(std::optional<PlanChoice> choice, std::optional<PlanChoice>& best) {
  if (better(choice, best)) best = std::move(choice);
}

// Candidates that run all requests of a job together.
class OnePlan {
 public:
  explicit OnePlan(const PlanningJob& job) : job_(job), lengths_(lengths_of(job.sample)) {}

  // The fastest plan with all KV on the device: for the whole batch, and for smaller ones where the
  // user asks for none.
  [[nodiscard]] std::optional<PlanChoice> on_device() const {
    std::optional<PlanChoice> best;
    const auto offer_both = [&](const RunPlan& divided) {
      offer(weigh(device_plan(divided, /*on_demand=*/false)), best);
      const bool crowded = !holds_together(divided.places, lengths_.longest);
      if (crowded && may_preempt()) offer(weigh(device_plan(divided, /*on_demand=*/true)), best);
    };
    for (std::int64_t batch = largest_batch(); batch > 0; batch /= 2) {
      const std::optional<RunPlan> alone = divide_device(batch, lengths_.longest, false);
      if (alone) offer_both(*alone);
      const std::optional<RunPlan> together = divide_device(batch, lengths_.longest, true);
      if (together &&
          (!alone || together->placement.streamed_layers > alone->placement.streamed_layers)) {
        offer_both(*together);
      }
      if (options_.given("batch-size") && alone) break;
    }
    return best;
  }

  // The fastest plan of the planner, for likewise batches. `held`: tokens of a request that has
  // room where streaming more layers' weights makes it.
  [[nodiscard]] std::optional<PlanChoice> planned(std::int64_t held) const {
    std::optional<PlanChoice> best;
    for (std::int64_t batch = largest_batch(); batch > 0; batch /= 2) {
      std::optional<Plan> plan = best_plan(batch, held);
      const bool holds_all = plan && plan->workload.input_len == lengths_.input &&
                             plan->workload.output_len == lengths_.output;
      offer(weigh(std::move(plan)), best);
      // A batch that is asked for is a limit where memory does not hold it.
      if (options_.given("batch-size") && holds_all) break;
    }
    return best;
  }

  // Tokens that requests of the job have on average, and those of the longest one.
  [[nodiscard]] std::int64_t usual_tokens() const { return lengths_.input + lengths_.output - 1; }
  [[nodiscard]] std::int64_t most_tokens() const { return lengths_.longest - 1; }

  // Tokens of the longest request that the device alone holds, with all weights there too; 0: none.
  [[nodiscard]] std::int64_t longest_on_device() const {
    const std::optional<RunPlan> divided = divide_device(options_.machine.batch_size, 0, false);
    if (!divided) return 0;
    const std::optional<RunPlan> run =
        try_plan_run(with_plan(options_, device_plan(*divided, false)), model_, machine_);
    return run && run->placement.streamed_layers == 0 ? run->longest_request : 0;
  }

 private:
  [[nodiscard]] std::int64_t largest_batch() const {
    const std::int64_t asked = options_.machine.batch_size;
    return at_most_all(asked > 0 ? asked : default_batch_size(machine_));
  }
  // No more than there are requests.
  [[nodiscard]] std::int64_t at_most_all(std::int64_t batch) const {
    return job_.requests == 0 ? batch : std::min(batch, job_.requests);
  }

  // Memory for a batch, before a plan divides it, with room for a request of `held` tokens if
  // streaming makes it. Nothing: the batch does not fit.
  [[nodiscard]] std::optional<RunPlan> divide(std::int64_t batch, std::int64_t held,
                                              DType kv_dtype) const {
    RunOptions options = options_;
    options.machine.batch_size = batch;
    options.machine.kv_dtype = kv_dtype;
    options.machine.held_tokens = std::max(options.machine.held_tokens, held);
    return try_plan_run(options, model_, machine_);
  }

  // As few layers streamed as leave the device room for a request of `held` tokens, as far as that
  // makes it, or for a whole batch of them. Nothing: it has no room.
  [[nodiscard]] std::optional<RunPlan> divide_device(std::int64_t batch, std::int64_t held,
                                                     bool together) const {
    RunOptions options = options_;
    options.machine.batch_size = batch;
    options.machine.kv_dtype = compute_dtype();
    options.machine.held_tokens = std::max(options.machine.held_tokens, held);
    options.machine.held_together = together;
    options.plan.schedule = device_schedule();
    std::optional<RunPlan> divided = try_plan_run(options, model_, machine_);
    if (divided && together && !holds_together(divided->places, held)) divided.reset();
    return divided;
  }

  [[nodiscard]] DType compute_dtype() const {
    return kv_dtype_on(machine_, options_.machine.kv_dtype, model_.weights_dtype);
  }

  [[nodiscard]] PlanRequest request_for(const RunPlan& memory) const {
    const std::int64_t longest = std::max<std::int64_t>(memory.longest_request, 2);
    const std::int64_t input = std::clamp<std::int64_t>(lengths_.input, 1, longest - 1);
    const std::int64_t output = std::clamp<std::int64_t>(lengths_.output, 1, longest - input);
    const AttendedShares shares = shares_half_way(options_.attention, model_.config, input, output);
    PlanRequest request{
        .workload = {.batch = at_most_all(memory.memory.batch_size),
                     .input_len = input,
                     .output_len = output,
                     .caching_ratio = shares.attended,
                     .miss_rate = options_.plan.miss_rate.value_or(1.0)},
        .budget = {memory.budget, memory.host_budget},
        .model = {.costs = model_costs(model_.config, model_.weights_dtype),
                  .weights_dtype = model_.weights_dtype,
                  .kv_dtype = memory.kv.dtype,
                  .block_tokens = memory.kv.block_tokens,
                  .prefill_chunk = memory.prefill_chunk,
                  .fetch = sparse_fetch(options_.attention, model_,
                                        has_columns(memory.memory, memory.kv.slab_pages())),
                  .dense_layers = shares.dense_layers,
                  .recent_share = shares.recent}};
    request.options.allow_recompute = allows_recompute(memory.kv, request.model.fetch);
    request.model.longest = memory.context;
    request.model.scratch = memory.memory.scratch;
    request.model.kv_budget = options_.machine.device_kv_memory;
    request.model.transposed_k = memory.kv.transposed_k;
    if (memory.resolver) {
      const ResolverCosts costs = resolver_costs(*memory.resolver);
      request.model.block_lookup = costs.host_block;
      request.model.cached_block_lookup =
          costs.hot_row * static_cast<std::uint64_t>(memory.kv.block_tokens);
    }
    return request;
  }

  // Whether a plan made here may enter Phase III; the planner decides whether it does.
  [[nodiscard]] bool allows_recompute(const KvShape& pages, SparseFetch fetch) const {
    if (options_.plan.inputs_settled) return false;
    std::optional<DType> named;
    if (options_.given("kv-dtype") && options_.origins.at("kv-dtype").value != "auto") {
      named = pages.dtype;
    }
    if (!may_recompute(options_.plan.recompute, named, options_.attention, fetch)) return false;
    return pages.page_holds_inputs(model_.config.hidden_size);
  }

  // With room for a request of `held` tokens, as far as memory has it.
  [[nodiscard]] std::optional<Plan> best_plan(std::int64_t batch, std::int64_t held) const {
    const auto planned = [&](DType kv_dtype) -> std::optional<Plan> {
      const std::optional<RunPlan> divided = divide(batch, held, kv_dtype);
      if (!divided) return std::nullopt;
      PlanRequest request = request_for(*divided);
      request.model.held = std::min(held, divided->longest_request);
      return plan_with(job_.cost, std::move(request));
    };
    std::optional<Plan> best = planned(compute_dtype());
    // --kv-dtype auto: INT8 only where the host is needed without it, and only where it pays.
    const bool needs_host = !best || best->schedule.p1 < best->workload.output_len ||
                            best->schedule.streamed_layers > 0;
    if (may_choose_int8(options_) && needs_host) {
      std::optional<Plan> int8 = planned(DType::kInt8);
      if (int8 && (!best || int8->tokens_per_second > best->tokens_per_second)) best = int8;
    }
    return best;
  }

  // What a sparse method decoded is decoded again, token by token, and a fixed context is computed
  // again with each request.
  [[nodiscard]] bool may_preempt() const {
    return may_give_on_demand(options_, machine_) && !options_.attention.sparse() &&
           !model_.fixed_context;
  }

  // A plan that runs as many sequences at a time as the device holds alone.
  [[nodiscard]] Plan device_plan(const RunPlan& divided, bool on_demand) const {
    const PlanRequest request = request_for(divided);
    const std::int64_t never = request.workload.output_len;
    Plan plan{.workload = request.workload,
              .kind = ScheduleKind::kDevice,
              .schedule = {.host_tier = false,
                           .on_demand = on_demand,
                           .p1 = never,
                           .p2 = never,
                           .streamed_layers = divided.placement.streamed_layers,
                           .kv_dtype = request.model.kv_dtype,
                           .block_tokens = request.model.block_tokens},
              .kv_dtype = request.model.kv_dtype,
              .block_tokens = request.model.block_tokens};
    plan.phases[0].steps = never;
    return plan;
  }

  // Nothing: this run's buffers leave it no room. A job that can run must not be refused for the
  // plan made for it.
  [[nodiscard]] std::optional<PlanChoice> weigh(std::optional<Plan> plan) const {
    if (!plan) return std::nullopt;
    PlanChoice choice{.plan = *std::move(plan)};
    choice.options = with_plan(options_, choice.plan);
    const std::optional<RunPlan> run = try_plan_run(choice.options, model_, machine_);
    if (!run) return std::nullopt;
    std::vector<SimulatedRequest> requests;
    for (const SimulatedRequest& request : job_.sample) {
      const bool fits = request.kv_tokens() <= run->longest_request;
      if (fits) requests.push_back(request);
      if (!fits) ++choice.too_long;
    }
    if (!requests.empty() && !simulate_on(*run, requests, choice)) return std::nullopt;
    return choice;
  }

  bool simulate_on(const RunPlan& run, const std::vector<SimulatedRequest>& requests,
                   PlanChoice& choice) const {
    const auto all = std::ssize(requests);
    // As many as the job has where the sample is a part of it.
    const std::int64_t there = std::max(all, job_.requests * all / std::ssize(job_.sample));
    const std::int64_t count =
        std::min(there, std::max(kSimulated, kSimulatedBatches * run.memory.batch_size));
    const double scale = static_cast<double>(all) / static_cast<double>(count);
    const SimulationResult result =
        simulate(*run.policy, job_.cost,
                 simulated_job(choice.options, model_, run,
                               draw(requests, static_cast<std::size_t>(count))));
    if (!result.infeasible.empty()) return false;
    choice.seconds = result.seconds * scale;
    Plan& plan = choice.plan;
    if (plan.kind != ScheduleKind::kDevice) return true;
    // What crosses the link has to earn its place.
    choice.seconds *= kDeviceBonus;
    plan.schedule.streamed_layers = run.placement.streamed_layers;
    plan.prefill_seconds = result.prefill_seconds;
    plan.decode_seconds = result.decode_seconds;
    plan.phases[0].seconds = result.decode_seconds;
    plan.tokens_per_second = result.tokens_per_second;
    plan.device_peak = run.memory.total();
    plan.host_peak = run.memory.host_weights;
    return true;
  }

  const PlanningJob& job_;
  const RunOptions& options_ = job_.options;
  const ModelBundle& model_ = job_.model;
  const ComputeMachine& machine_ = job_.machine;
  RequestLengths lengths_;
};

std::optional<PlanChoice> plan_together(const PlanningJob& job) {
  const OnePlan candidates(job);
  std::optional<PlanChoice> best = candidates.on_device();
  offer(candidates.planned(candidates.usual_tokens()), best);
  if (!best || best->too_long > 0) offer(candidates.planned(candidates.most_tokens()), best);
  if (best) best->plan.workload.longest = candidates.most_tokens() + 1;
  return best;
}

// Two plans: one for requests up to a length, and one for those that are longer.
class TwoPlans {
 public:
  explicit TwoPlans(const PlanningJob& job)
      : job_(job), longest_on_device_(OnePlan(job).longest_on_device()) {
    for (const SimulatedRequest& request : job.sample) lengths_.push_back(request.kv_tokens());
    std::ranges::sort(lengths_);
  }

  // Where the device holds every request alone, longer ones are in nobody's way.
  [[nodiscard]] bool pointless() const { return lengths_.back() <= longest_on_device_; }

  // Nothing: lengths hardly differ, or no two plans beat `together`.
  [[nodiscard]] std::optional<PlanChoice> fastest(const std::optional<PlanChoice>& together) const {
    std::vector<DType> types = {
        kv_dtype_on(machine_, job_.options.machine.kv_dtype, model_.weights_dtype)};
    if (may_choose_int8(job_.options)) types.push_back(DType::kInt8);
    auto [too_long, seconds] = rank_of(together);
    Rank to_beat = {too_long, seconds * kSplitWorth};
    std::optional<PlanChoice> best;
    for (const std::int64_t limit : limits()) {
      for (const DType type : types) {
        std::optional<PlanChoice> choice = divided_at(limit, type, to_beat);
        if (rank_of(choice) >= to_beat) continue;
        to_beat = {choice->too_long, choice->seconds * kClearlyLess};
        best = std::move(choice);
      }
    }
    if (best) raise_division(*best);
    return best;
  }

 private:
  // Where to divide: at what the device alone holds, and at lengths that most requests keep to.
  [[nodiscard]] std::vector<std::int64_t> limits() const {
    std::vector<std::int64_t> limits = {longest_on_device_};
    for (const std::size_t tenth : {5, 9}) {
      limits.push_back(lengths_[(lengths_.size() - 1) * tenth / 10]);
    }
    // Room for one and a half times as much is worth no second plan, but weights that stay may be.
    std::erase_if(limits, [&](std::int64_t limit) {
      const bool near = limit * 3 > lengths_.back() * 2 && limit != longest_on_device_;
      return limit < lengths_.front() || limit >= lengths_.back() || near;
    });
    std::ranges::sort(limits, std::greater<>());
    const auto repeated = std::unique(limits.begin(), limits.end());
    limits.erase(repeated, limits.end());
    return limits;
  }

  // As many requests of the job as a part of the sample stands for.
  [[nodiscard]] PlanningJob part(std::vector<SimulatedRequest> sample, DType type) const {
    PlanningJob job{model_, machine_, job_.cost, job_.options};
    job.options.plan.inputs_settled = true;
    const auto part = std::ssize(sample);
    const auto all = std::ssize(job_.sample);
    job.requests = (job_.requests * part + all - 1) / all;
    job.sample = std::move(sample);
    job.options.machine.kv_dtype = type;
    return job;
  }

  // Seconds of reading the weights again, as a share of the sample.
  [[nodiscard]] double reload_seconds(const Plan& one, const Plan& other) const {
    if (one.schedule.streamed_layers == other.schedule.streamed_layers) return 0.0;
    return static_cast<double>(model_.weight_bytes) / kReloadRate *
           static_cast<double>(job_.sample.size()) / static_cast<double>(job_.requests);
  }

  // Nothing, too: it will not beat `to_beat`.
  [[nodiscard]] std::optional<PlanChoice> divided_at(std::int64_t limit, DType type,
                                                     const Rank& to_beat) const {
    std::vector<SimulatedRequest> shorter;
    std::vector<SimulatedRequest> longer;
    std::ranges::partition_copy(
        job_.sample, std::back_inserter(shorter), std::back_inserter(longer),
        [limit](const SimulatedRequest& one) { return one.kv_tokens() <= limit; });
    PlanningJob first = part(std::move(shorter), type);
    first.options.machine.job_context = limit;
    std::optional<PlanChoice> choice = plan_together(first);
    if (!choice || choice->too_long > 0 || rank_of(choice) >= to_beat) return std::nullopt;
    const std::optional<PlanChoice> rest = plan_together(part(std::move(longer), type));
    if (!rest) return std::nullopt;
    choice->options.machine.job_context = limit;
    choice->plan.longest_request = limit;
    choice->plan.longer = {rest->plan};
    choice->too_long = rest->too_long;
    choice->seconds += rest->seconds + reload_seconds(choice->plan, rest->plan);
    return choice;
  }

  // Lines that the sample did not show lie in the gap above the division too. As far into it as
  // costs nothing, they go with the shorter ones.
  void raise_division(PlanChoice& choice) const {
    const std::int64_t limit = choice.plan.longest_request;
    const RunPlan least = plan_run(choice.options, model_, machine_);
    const auto with = [&](std::int64_t tokens) {
      RunOptions options = choice.options;
      options.machine.job_context = tokens;
      return options;
    };
    const auto costs_nothing = [&](std::int64_t tokens) {
      const std::optional<RunPlan> run = try_plan_run(with(tokens), model_, machine_);
      return run && run->longest_request >= tokens && same_room(*run, least, limit);
    };
    // The first plan may hold no more than the requests that it was made for.
    std::int64_t low = std::min(limit, least.longest_request);
    std::int64_t high = *std::ranges::upper_bound(lengths_, limit) - 1;
    while (low < high) {
      const std::int64_t middle = high - (high - low) / 2;
      if (costs_nothing(middle)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    choice.options = with(low);
    choice.plan.longest_request = low;
  }

  // Whether requests of up to `tokens` tokens run under both alike.
  static bool same_room(const RunPlan& one, const RunPlan& other, std::int64_t tokens) {
    const MemoryPlan& memory = one.memory;
    const MemoryPlan& least = other.memory;
    if (memory.batch_size != least.batch_size || one.prefill_chunk != other.prefill_chunk ||
        memory.streamed_layers != least.streamed_layers) {
      return false;
    }
    const bool whole_batch =
        memory.host_blocks == 0 && least.host_blocks == 0 &&
        one.places.device_blocks >= one.places.batch_blocks(memory.batch_size, tokens);
    const auto nearly = [&](std::int64_t MemoryPlan::*count) {
      return 64 * memory.*count >= 63 * least.*count;
    };
    return whole_batch || (nearly(&MemoryPlan::kv_pages) && nearly(&MemoryPlan::cache_pages) &&
                           nearly(&MemoryPlan::transposed_k_blocks));
  }

  const PlanningJob& job_;
  const ModelBundle& model_ = job_.model;
  const ComputeMachine& machine_ = job_.machine;
  std::int64_t longest_on_device_;
  std::vector<std::int64_t> lengths_;  // of the sample, KV tokens, in order
};

}  // namespace

RequestLengths lengths_of(std::span<const SimulatedRequest> requests) {
  const auto count = std::ssize(requests);
  RequestLengths lengths;
  for (const SimulatedRequest& request : requests) {
    lengths.input += request.prompt_tokens;
    lengths.output += request.output_tokens;
    lengths.longest = std::max(lengths.longest, request.prompt_tokens + request.output_tokens);
  }
  lengths.input = (lengths.input + count - 1) / count;
  lengths.output = (lengths.output + count - 1) / count;
  return lengths;
}

RunOptions with_plan(RunOptions options, const Plan& plan) {
  const std::int64_t asked = options.machine.batch_size;
  options.machine.batch_size =
      asked > 0 ? std::min(asked, plan.workload.batch) : plan.workload.batch;
  options.machine.kv_dtype = plan.kv_dtype;
  options.plan.schedule = plan.schedule;
  if (!plan.longer.empty()) {
    std::int64_t& context = options.machine.job_context;
    context = context > 0 ? std::min(context, plan.longest_request) : plan.longest_request;
  }
  return options;
}

std::optional<PlanChoice> choose_plan(const PlanningJob& job) {
  std::optional<PlanChoice> best = plan_together(job);
  if (job.requests == 0 || job.options.plan.recompute == RecomputeMode::kOn) return best;
  const TwoPlans division(job);
  if (division.pointless()) return best;
  std::optional<PlanChoice> two = division.fastest(best);
  return better(two, best) ? two : best;
}

}  // namespace triphase
