#include "scheduler/planner/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/format_bytes.h"
#include "scheduler/kv/block_tokens.h"

namespace triphase {
namespace {

struct Candidate {
  PlanModel model;
  ScheduleChoice choice;
  double seconds = std::numeric_limits<double>::infinity();
};

// Phase III and constant ratios have to earn their place: saved inputs cost memory on the host, and
// what a prediction gains by a thousandth is noise.
constexpr double kWorthwhile = 0.999;

void settle_schedule(const StepModel& steps, const PlanOptions& options, Candidate& best) {
  PlanOptions plain = options;
  plain.allow_recompute = false;
  std::optional<ScheduleChoice> choice = search_schedule(steps, plain);
  const auto offer = [&](const PlanOptions& other) {
    const auto found = search_schedule(steps, other);
    if (found && (!choice || found->decode_seconds < choice->decode_seconds * kWorthwhile)) {
      choice = found;
    }
  };
  if (options.allow_recompute) offer(options);
  if (options.kind == ScheduleKind::kAdaptive) {
    PlanOptions constant = options;
    constant.kind = ScheduleKind::kPaper;
    offer(constant);
  }
  if (choice) best.choice = *choice;
}

// The best number of streamed layers of one KV type, as far as a few tries find it.
class StreamedLayers {
 public:
  StreamedLayers(const CostModel& cost, const PlanRequest& request, const PlanModel& model)
      : cost_(cost), request_(request), model_(model) {}

  [[nodiscard]] std::optional<Candidate> best() {
    const std::int64_t layers = model_.costs.layers;
    const StepModel any(cost_, model_, request_.workload, request_.budget);
    const std::optional<std::int64_t> room = any.least_streamed();
    if (!room) return best_;
    const std::int64_t least = *room;
    // From the fewest on, farther and farther: streaming more weights than the KV needs only costs
    // time. Then between the neighbours of the best.
    double last = std::numeric_limits<double>::infinity();
    for (std::int64_t more = 0; least + more <= layers; more = 2 * more + 1) {
      const double seconds = attempt(least + more);
      if (seconds > last) break;
      last = seconds;
    }
    attempt(layers);
    // The host's room ends where the device's begins.
    for (std::int64_t at = least; !best_ && at < layers; ++at) attempt(at);
    for (std::int64_t step = layers / 2; best_ && step > 0; step /= 2) {
      const std::int64_t at = best_->model.streamed_layers;
      if (at - step >= least) attempt(at - step);
      if (at + step <= layers) attempt(at + step);
    }
    return best_;
  }

 private:
  // Predicted seconds of the workload; infinite: no schedule fits.
  double attempt(std::int64_t streamed) {
    const auto [place, added] = tried_.try_emplace(streamed, 0.0);
    if (!added) return place->second;
    PlanModel model = model_;
    model.streamed_layers = streamed;
    const StepModel steps(cost_, model, request_.workload, request_.budget);
    // Recomputation is settled for the winner alone.
    PlanOptions coarse = request_.options;
    coarse.allow_recompute = false;
    std::optional<ScheduleChoice> choice = search_schedule(steps, coarse);
    if (!choice && request_.options.allow_recompute) {
      choice = search_schedule(steps, request_.options);
    }
    place->second = choice ? choice->decode_seconds + steps.prefill(0, 0).step
                           : std::numeric_limits<double>::infinity();
    if (choice && (!best_ || place->second < best_->seconds)) {
      best_ = {model, *choice, place->second};
    }
    return place->second;
  }

  const CostModel& cost_;
  const PlanRequest& request_;
  const PlanModel& model_;
  std::map<std::int64_t, double> tried_;
  std::optional<Candidate> best_;
};

// The best plan over the streamed layers and KV types that may be chosen; nothing: none fits.
std::optional<Candidate> best_candidate(const CostModel& cost, const PlanRequest& request) {
  PlanModel model = request.model;
  std::optional<Candidate> best = StreamedLayers(cost, request, model).best();
  if (request.choose_kv_dtype && model.kv_dtype != DType::kInt8) {
    model.kv_dtype = DType::kInt8;
    model.block_tokens = default_block_tokens(DType::kInt8);
    const std::optional<Candidate> int8 = StreamedLayers(cost, request, model).best();
    if (int8 && (!best || int8->seconds < best->seconds)) best = int8;
  }
  if (!best) return best;
  const StepModel steps(cost, best->model, request.workload, request.budget);
  settle_schedule(steps, request.options, *best);
  return best;
}

[[noreturn]] void refuse(const CostModel& cost, const PlanRequest& request) {
  PlanRequest smaller = request;
  const StepModel steps(cost, request.model, request.workload, request.budget);
  const StepTokens whole{.context = request.workload.input_len + request.workload.output_len};
  Error error(ErrorRole::kResources, "E-PLAN-FIT", "memory");
  error
      .found(fmt::format("batch {} with {} + {} tokens needs {} when nothing leaves the device; "
                         "budgets are {} on the device and {} on the host",
                         request.workload.batch, request.workload.input_len,
                         request.workload.output_len, format_bytes(steps.device_bytes(whole, 0)),
                         format_bytes(request.budget.device_memory),
                         format_bytes(request.budget.host_memory)))
      .expected("a workload that fits both tiers together");
  for (smaller.workload.batch /= 2; smaller.workload.batch >= 1; smaller.workload.batch /= 2) {
    if (best_candidate(cost, smaller)) {
      throw error.hint(fmt::format("--batch-size {} fits", smaller.workload.batch));
    }
  }
  throw error.hint("a smaller model, or more memory");
}

void predict_phases(const StepModel& steps, Plan& plan) {
  for (std::int64_t j = 0; j < plan.workload.output_len; ++j) {
    const StepTokens tokens = tokens_at(steps, plan.schedule, j);
    const LaneTimes lanes = steps.decode(tokens, plan.schedule.input_tokens);
    const auto phase = static_cast<std::size_t>(scheduled_phase(plan.schedule, j)) - 1;
    PhasePrediction& prediction =
        plan.phases[plan.schedule.p1 >= plan.workload.output_len ? 0 : phase];
    ++prediction.steps;
    prediction.seconds += lanes.step;
    prediction.compute_seconds += lanes.compute;
    prediction.transfer_seconds += lanes.h2d + lanes.d2h;
    prediction.recompute_seconds += lanes.recompute;
    plan.extrapolated = plan.extrapolated || lanes.extrapolated;
    plan.device_peak =
        std::max(plan.device_peak, steps.device_bytes(tokens, plan.schedule.input_tokens));
    plan.host_peak = std::max(plan.host_peak, steps.host_bytes(tokens, plan.schedule.input_tokens));
    // Eq. 5 as printed: compute up to p2, transfers from p1, recomputation from p2, summed.
    if (j < plan.schedule.p2) plan.paper_objective += lanes.compute;
    if (j >= plan.schedule.p1)
      plan.paper_objective += steps.printed_transfer(tokens, plan.schedule.input_tokens);
    if (j >= plan.schedule.p2) plan.paper_objective += lanes.recompute;
  }
}

void add_neighbours(const StepModel& steps, const PlanOptions& options, Plan& plan) {
  const std::int64_t n = plan.workload.output_len;
  const auto add = [&](std::string change, PhaseSchedule schedule) {
    schedule.input_tokens = 0;
    if (schedule.beta > 0.0 && schedule.p2 < n) {
      schedule.input_tokens = tokens_at(steps, schedule, n - 1).recompute;
    }
    const ScheduleCost cost = schedule_cost(steps, schedule);
    const bool fits = cost.infeasible.empty();
    plan.neighbours.push_back({std::move(change), fits ? cost.seconds : 0.0, cost.infeasible});
  };
  const PhaseSchedule& now = plan.schedule;
  const double level = 1.0 / static_cast<double>(options.share_levels);
  for (const std::int64_t step : {-1, 1}) {
    PhaseSchedule next = now;
    if (now.device_tokens > 0) {
      // Under the adaptive rule p1 follows from what stays on the device, a block at a time.
      next.device_tokens += step * steps.model().block_tokens;
      next.p1 = std::clamp<std::int64_t>(next.device_tokens - plan.workload.input_len, 0, n);
      next.p2 = std::max(next.p2, next.p1);
      if (next.device_tokens > 0) {
        add(fmt::format("p1 {} -> {} (tokens on the device {} -> {})", now.p1, next.p1,
                        now.device_tokens, next.device_tokens),
            next);
      }
    } else if (now.p1 + step >= 0 && now.p1 + step <= n) {
      next.p1 += step;
      next.p2 = std::max(next.p2, next.p1);
      add(fmt::format("p1 {} -> {}", now.p1, next.p1), next);
    }
    if (now.p1 < n && now.beta > 0.0 && now.p2 + step >= now.p1 && now.p2 + step <= n) {
      next = now;
      next.p2 += step;
      add(fmt::format("p2 {} -> {}", now.p2, next.p2), next);
    }
    if (now.p1 < n && now.device_tokens == 0 && now.alpha + step * level >= 0.0 &&
        now.alpha + step * level <= 1.0) {
      next = now;
      next.alpha += static_cast<double>(step) * level;
      add(fmt::format("alpha {:.3f} -> {:.3f}", now.alpha, next.alpha), next);
    }
    const double beta = now.beta + static_cast<double>(step) * level;
    if (now.p1 < n && beta >= 0.0 && beta <= 1.0 && options.allow_recompute) {
      next = now;
      next.beta = beta;
      if (now.beta == 0.0) next.p2 = now.p1;
      if (beta == 0.0) next.p2 = n;
      add(fmt::format("beta {:.3f} -> {:.3f}", now.beta, next.beta), next);
    }
  }
}

}  // namespace

Plan make_plan(const CostModel& cost, const PlanRequest& request) {
  std::optional<Plan> plan = find_plan(cost, request);
  if (!plan) refuse(cost, request);
  return *std::move(plan);
}

std::optional<Plan> find_plan(const CostModel& cost, const PlanRequest& request) {
  TRIPHASE_CHECK(request.workload.batch > 0 && request.workload.input_len > 0 &&
                     request.workload.output_len > 0,
                 "a workload");
  const std::optional<Candidate> best = best_candidate(cost, request);
  if (!best) return std::nullopt;

  Plan plan;
  plan.workload = request.workload;
  plan.budget = request.budget;
  plan.kind = request.options.kind;
  plan.schedule = best->choice.schedule;
  plan.schedule.streamed_layers = best->model.streamed_layers;
  plan.schedule.kv_dtype = best->model.kv_dtype;
  plan.schedule.block_tokens = best->model.block_tokens;
  plan.kv_dtype = best->model.kv_dtype;
  plan.block_tokens = best->model.block_tokens;
  if (plan.schedule.beta > 0.0) plan.recompute_source = "hidden-states-int8";

  const StepModel steps(cost, best->model, request.workload, request.budget);
  plan.prefill_seconds = steps.prefill(0, 0).step;
  plan.decode_seconds = best->choice.decode_seconds;
  predict_phases(steps, plan);
  const double tokens = static_cast<double>(request.workload.batch * request.workload.output_len);
  plan.tokens_per_second = tokens / (plan.prefill_seconds + plan.decode_seconds);
  add_neighbours(steps, request.options, plan);
  if (plan.kind == ScheduleKind::kAdaptive) {
    PlanOptions published = request.options;
    published.kind = ScheduleKind::kPaper;
    if (const auto choice = search_schedule(steps, published)) {
      plan.paper_schedule_seconds = choice->decode_seconds;
    }
  }
  return plan;
}

std::string explain_plan(const Plan& plan) {
  const PhaseSchedule& schedule = plan.schedule;
  const std::int64_t n = plan.workload.output_len;
  std::string out;
  const auto line = [&out](std::string_view name, const std::string& value) {
    out += fmt::format("{:<14}{}\n", name, value);
  };
  line("workload", fmt::format("batch {}, {} prompt tokens, {} to generate, caching ratio {:.3g}, "
                               "miss rate {:.3g}",
                               plan.workload.batch, plan.workload.input_len, n,
                               plan.workload.caching_ratio, plan.workload.miss_rate));
  line("budget", fmt::format("device {}, host {}", format_bytes(plan.budget.device_memory),
                             format_bytes(plan.budget.host_memory)));
  line("KV", fmt::format("{}, blocks of {} tokens", dtype_name(plan.kv_dtype), plan.block_tokens));
  line("weights",
       schedule.streamed_layers == 0
           ? std::string("all on the device")
           : fmt::format("{} layers on the host, streamed every step", schedule.streamed_layers));
  if (schedule.p1 >= n) {
    line("p1", fmt::format("{}: never; every token fits on the device", schedule.p1));
  } else if (schedule.device_tokens > 0) {
    line("p1", fmt::format("{}: from here on {} tokens of each sequence stay on the device",
                           schedule.p1, schedule.device_tokens));
  } else {
    line("p1", fmt::format("{}: Phase II begins", schedule.p1));
    line("alpha", fmt::format("{:.3f} of the context on the host", schedule.alpha));
  }
  if (schedule.beta > 0.0) {
    line("p2", fmt::format("{}: Phase III begins", schedule.p2));
    line("beta",
         fmt::format("{:.3f} of the host's tokens recomputed from cached INT8 hidden states, saved "
                     "for the first {} tokens",
                     schedule.beta, schedule.input_tokens));
  } else {
    line("p2", fmt::format("{}: never; transferring is never slower than recomputing", n));
  }
  line("prefill", fmt::format("{:.4g} s", plan.prefill_seconds));
  constexpr std::string_view kNames[] = {"phase I", "phase II", "phase III"};
  for (std::size_t phase = 0; phase < 3; ++phase) {
    const PhasePrediction& p = plan.phases[phase];
    if (p.steps == 0) continue;
    line(kNames[phase],
         fmt::format("{} steps, {:.4g} s (compute {:.4g}, transfers {:.4g}, recompute {:.4g})",
                     p.steps, p.seconds, p.compute_seconds, p.transfer_seconds,
                     p.recompute_seconds));
  }
  line("predicted", fmt::format("{:.4g} tokens/s; peak device {}, host {}", plan.tokens_per_second,
                                format_bytes(plan.device_peak), format_bytes(plan.host_peak)));
  if (plan.extrapolated) line("", "times outside of the profile's samples were extrapolated");
  line("eq. 5", fmt::format("{:.4g} s as printed, nothing overlapping", plan.paper_objective));
  if (plan.paper_schedule_seconds > 0.0) {
    line("constant", fmt::format("ratios as published would decode in {:.4g} s, {:.3f}x as long",
                                 plan.paper_schedule_seconds,
                                 plan.paper_schedule_seconds / plan.decode_seconds));
  }
  for (const PlanNeighbour& neighbour : plan.neighbours) {
    line("neighbour",
         neighbour.infeasible.empty()
             ? fmt::format("{}: {:.4g} s decode ({:+.2f} %)", neighbour.change, neighbour.seconds,
                           100.0 * (neighbour.seconds / plan.decode_seconds - 1.0))
             : fmt::format("{}: {}", neighbour.change, neighbour.infeasible));
  }
  if (!plan.longer.empty()) {
    line("then", fmt::format("requests of more than {} tokens, which waited, under a plan of their "
                             "own:",
                             plan.longest_request));
    out += explain_plan(plan.longer.front());
  }
  return out;
}

}  // namespace triphase
