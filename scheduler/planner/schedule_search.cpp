#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/format_bytes.h"
#include "scheduler/planner/planner.h"

namespace triphase {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Share of the context, or tokens kept on the device: how much is offloaded once Phase II has
// begun.
struct OffloadRule {
  double alpha = 0.0;
  std::int64_t device_tokens = 0;  // > 0: instead of alpha
};

std::int64_t offloaded_at(const StepModel& steps, const OffloadRule& rule, std::int64_t context) {
  const std::int64_t wanted =
      rule.device_tokens > 0
          ? context - rule.device_tokens
          : static_cast<std::int64_t>(std::floor(rule.alpha * static_cast<double>(context) + 1e-9));
  return std::min(steps.round_to_blocks(std::max<std::int64_t>(wanted, 0)), steps.movable(context));
}

StepTokens phase_tokens(const StepModel& steps, const OffloadRule& rule, double beta,
                        std::int64_t context, bool first_of_phase_two) {
  StepTokens tokens{.context = context};
  tokens.host = offloaded_at(steps, rule, context);
  const std::int64_t before =
      first_of_phase_two ? 0 : offloaded_at(steps, rule, std::max<std::int64_t>(context - 1, 0));
  tokens.newly_offloaded = std::max<std::int64_t>(tokens.host - before, 0);
  tokens.recompute = steps.round_to_blocks(
      static_cast<std::int64_t>(std::floor(beta * static_cast<double>(tokens.host) + 1e-9)));
  return tokens;
}

// X that Phase III may need: of the oldest tokens, as many as are recomputed at the end.
std::int64_t inputs_needed(const StepModel& steps, const OffloadRule& rule, double beta) {
  const PlanWorkload& work = steps.workload();
  return phase_tokens(steps, rule, beta, work.input_len + work.output_len, false).recompute;
}

struct Switches {
  std::int64_t p1 = 0;
  std::int64_t p2 = 0;
  double seconds = kInfinite;
};

class Search {
 public:
  Search(const StepModel& steps, const PlanOptions& options)
      : steps_(steps), options_(options), n_(steps.workload().output_len) {
    phase_one_.resize(static_cast<std::size_t>(n_) + 1, 0.0);
    for (std::int64_t j = 0; j < n_; ++j) {
      const double step = step_seconds({.context = context(j)}, 0);
      phase_one_[index(j + 1)] = phase_one_[index(j)] + step;
    }
  }

  [[nodiscard]] std::optional<ScheduleChoice> run() {
    return options_.kind == ScheduleKind::kPaper ? constant_shares() : adaptive();
  }

 private:
  static std::size_t index(std::int64_t j) { return static_cast<std::size_t>(j); }
  // Context of decode step j, the new token included.
  [[nodiscard]] std::int64_t context(std::int64_t j) const {
    return steps_.workload().input_len + j + 1;
  }
  [[nodiscard]] double step_seconds(const StepTokens& tokens, std::int64_t inputs) const {
    return steps_.fits(tokens, inputs) ? steps_.decode(tokens, inputs).step : kInfinite;
  }

  // For every j >= `from`: the time of the steps from j to the end, and how many steps do not fit
  // (they take no time here). `to_misfit`: stops at the last step that does not fit.
  struct Tail {
    std::vector<double> seconds;
    std::vector<std::int64_t> misfits;
  };
  [[nodiscard]] Tail tail_sums(const OffloadRule& rule, double beta, std::int64_t inputs,
                               std::int64_t from, bool to_misfit) const {
    Tail tail{std::vector<double>(index(n_) + 1, 0.0), std::vector<std::int64_t>(index(n_) + 1, 0)};
    for (std::int64_t j = n_ - 1; j >= from; --j) {
      const double step = step_seconds(phase_tokens(steps_, rule, beta, context(j), false), inputs);
      const bool fits = step != kInfinite;
      tail.seconds[index(j)] = tail.seconds[index(j + 1)] + (fits ? step : 0.0);
      tail.misfits[index(j)] = tail.misfits[index(j + 1)] + (fits ? 0 : 1);
      if (!fits && to_misfit) {
        std::fill(tail.misfits.begin(), tail.misfits.begin() + j, 1);
        break;
      }
    }
    return tail;
  }

  // Extra time of step j when the oldest tokens have to leave at once because a phase begins.
  [[nodiscard]] double burst(const OffloadRule& rule, double beta, std::int64_t j,
                             std::int64_t inputs) const {
    if (j == n_) return 0.0;
    if (j == 0) {  // they leave during prefill
      return steps_.prefill(offloaded_at(steps_, rule, steps_.workload().input_len), 0).step -
             steps_.prefill(0, 0).step;
    }
    const StepTokens steady = phase_tokens(steps_, rule, beta, context(j), false);
    StepTokens first = steady;
    first.newly_offloaded = steady.host;
    const double with = step_seconds(first, inputs);
    return with == kInfinite ? kInfinite : with - step_seconds(steady, inputs);
  }

  // Exact best switch steps for fixed shares. `fixed_p1` < 0: free.
  [[nodiscard]] Switches best_switches(const OffloadRule& rule, double beta,
                                       std::int64_t fixed_p1) {
    const std::int64_t inputs = beta > 0.0 ? inputs_needed(steps_, rule, beta) : 0;
    const std::int64_t from = std::max<std::int64_t>(fixed_p1, 0);
    const Tail& two = phase_two(rule, inputs, from);
    Tail three;
    if (beta > 0.0) three = tail_sums(rule, beta, inputs, from, true);
    const double save_inputs =
        inputs == 0 ? 0.0 : steps_.prefill(0, inputs).step - steps_.prefill(0, 0).step;
    // Steps [p1, p2) are in Phase II and the rest in Phase III. Both are differences of tail sums,
    // so that the best p2 for every p1 comes out of one pass from the end.
    Switches best;
    double best_tail = 0.0;  // of p2 = n, less Phase II's sum at p2
    std::int64_t best_p2 = n_;
    const auto offer = [&](std::int64_t p1, std::int64_t p2, double seconds) {
      if ((fixed_p1 < 0 || p1 == fixed_p1) && seconds < best.seconds) best = {p1, p2, seconds};
    };
    for (std::int64_t p1 = n_; p1 >= from; --p1) {
      if (p1 < n_ && two.misfits[index(p1)] != two.misfits[index(p1 + 1)]) best_tail = kInfinite;
      const double before = phase_one_[index(p1)];
      // Without Phase III nothing is saved: that is what beta = 0 is tried for.
      const bool asked = beta == 0.0 || best_p2 < n_;
      if (asked && before != kInfinite && best_tail != kInfinite) {
        offer(p1, best_p2,
              before + burst(rule, 0.0, p1, inputs) + two.seconds[index(p1)] + best_tail);
      }
      if (beta == 0.0 || p1 == n_ || three.misfits[index(p1)] > 0) continue;
      // Phase III at once.
      if (before != kInfinite && (fixed_p1 < 0 || p1 == fixed_p1)) {
        offer(p1, p1,
              before + burst(rule, beta, p1, inputs) + three.seconds[index(p1)] + save_inputs);
      }
      const double from_here = three.seconds[index(p1)] + save_inputs - two.seconds[index(p1)];
      if (from_here < best_tail) {
        best_tail = from_here;
        best_p2 = p1;
      }
    }
    return best;
  }

  const Tail& phase_two(const OffloadRule& rule, std::int64_t inputs, std::int64_t from) {
    const auto key = std::make_tuple(rule.alpha, rule.device_tokens, inputs, from);
    const auto found = phase_two_.find(key);
    if (found != phase_two_.end()) return found->second;
    return phase_two_.emplace(key, tail_sums(rule, 0.0, inputs, from, false)).first->second;
  }

  void consider(const OffloadRule& rule, double beta, std::int64_t fixed_p1) {
    ++evaluations_;
    const Switches switches = best_switches(rule, beta, fixed_p1);
    if (switches.seconds >= best_seconds_) return;
    best_seconds_ = switches.seconds;
    best_ = {.p1 = switches.p1,
             .p2 = switches.p2,
             .alpha = switches.p1 == n_ ? 0.0 : rule.alpha,
             .device_tokens = switches.p1 == n_ ? 0 : rule.device_tokens,
             .beta = switches.p2 == n_ ? 0.0 : beta,
             .window_share = steps_.workload().caching_ratio >= 1.0
                                 ? 0.0
                                 : steps_.workload().caching_ratio / 2.0};
    best_.input_tokens = best_.beta > 0.0 ? inputs_needed(steps_, rule, beta) : 0;
  }

  // Moves beta along the grid from several starts while that helps; `try_beta` must remember.
  template <class TryBeta>
  double climb_beta(const TryBeta& try_beta) {
    double best = try_beta(0);
    if (!options_.allow_recompute) return best;
    const std::int64_t levels = options_.share_levels;
    for (const std::int64_t start : {levels / 4, levels / 2, levels}) {
      std::int64_t at = start;
      double here = try_beta(at);
      for (std::int64_t stride = std::max<std::int64_t>(levels / 8, 1); stride >= 1; stride /= 2) {
        for (bool moved = true; moved;) {
          moved = false;
          for (const std::int64_t next : {at - stride, at + stride}) {
            if (next < 0 || next > levels) continue;
            const double there = try_beta(next);
            if (there < here) {
              here = there;
              at = next;
              moved = true;
            }
          }
        }
      }
      best = std::min(best, here);
    }
    return best;
  }

  [[nodiscard]] std::optional<ScheduleChoice> constant_shares() {
    const std::int64_t levels = options_.share_levels;
    const auto share = [&](std::int64_t level) {
      return static_cast<double>(level) / static_cast<double>(levels);
    };
    std::map<std::pair<std::int64_t, std::int64_t>, double> tried;
    const auto attempt = [&](std::int64_t alpha, std::int64_t beta) {
      const auto [place, added] = tried.try_emplace({alpha, beta}, 0.0);
      if (added) {
        const double before = best_seconds_;
        best_seconds_ = kInfinite;
        const PhaseSchedule kept = best_;
        consider({.alpha = share(alpha)}, share(beta), -1);
        place->second = best_seconds_;
        if (best_seconds_ >= before) {
          best_seconds_ = before;
          best_ = kept;
        }
      }
      return place->second;
    };
    if (options_.exhaustive) {
      for (std::int64_t alpha = 0; alpha <= levels; ++alpha) {
        for (std::int64_t beta = 0; beta <= (options_.allow_recompute ? levels : 0); ++beta) {
          attempt(alpha, beta);
        }
      }
      return result();
    }
    // The smallest alpha that fits moves the least; go on from there while it helps.
    std::map<std::int64_t, double> by_alpha;
    const auto at_alpha = [&](std::int64_t alpha) {
      const auto [place, added] = by_alpha.try_emplace(alpha, 0.0);
      if (added) {
        place->second = climb_beta([&](std::int64_t beta) { return attempt(alpha, beta); });
      }
      return place->second;
    };
    std::int64_t alpha = 0;
    while (alpha <= levels && at_alpha(alpha) == kInfinite) ++alpha;
    int worse = 0;
    double last = alpha <= levels ? at_alpha(alpha) : kInfinite;
    for (++alpha; alpha <= levels && worse < 3; ++alpha) {
      const double here = at_alpha(alpha);
      worse = here < last ? 0 : worse + 1;
      last = std::min(last, here);
    }
    return result();
  }

  [[nodiscard]] std::optional<ScheduleChoice> adaptive() {
    const std::int64_t levels = options_.share_levels;
    const std::int64_t input = steps_.workload().input_len;
    // Never leaving Phase I is best when it fits.
    if (phase_one_[index(n_)] != kInfinite) {
      consider({}, 0.0, n_);
      return result();
    }
    std::map<std::pair<std::int64_t, std::int64_t>, double> tried;
    const auto attempt = [&](std::int64_t kept, std::int64_t beta) {
      const auto [place, added] = tried.try_emplace({kept, beta}, 0.0);
      if (added) {
        const double before = best_seconds_;
        best_seconds_ = kInfinite;
        const PhaseSchedule old = best_;
        consider({.device_tokens = kept}, static_cast<double>(beta) / static_cast<double>(levels),
                 std::clamp<std::int64_t>(kept - input, 0, n_));
        place->second = best_seconds_;
        if (best_seconds_ >= before) {
          best_seconds_ = before;
          best_ = old;
        }
      }
      return place->second;
    };
    const auto at_kept = [&](std::int64_t kept) {
      return climb_beta([&](std::int64_t beta) { return attempt(kept, beta); });
    };
    // The more stays, the less moves: the most tokens that fit, found by bisection, then downwards
    // while it helps.
    const std::int64_t block = steps_.model().block_tokens;
    std::int64_t low = 0;
    std::int64_t high = (input + n_) / block + 1;  // in blocks; does not fit
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      const bool fits = attempt(middle * block, 0) != kInfinite ||
                        (options_.allow_recompute && attempt(middle * block, levels) != kInfinite);
      (fits ? low : high) = middle;
    }
    if (options_.exhaustive) {
      for (std::int64_t kept = 1; kept <= low; ++kept) {
        for (std::int64_t beta = 0; beta <= (options_.allow_recompute ? levels : 0); ++beta) {
          attempt(kept * block, beta);
        }
      }
      return result();
    }
    double last = kInfinite;
    for (std::int64_t kept = low; kept > 0; --kept) {
      const double here = at_kept(kept * block);
      if (here >= last) break;
      last = here;
    }
    return result();
  }

  [[nodiscard]] std::optional<ScheduleChoice> result() const {
    if (best_seconds_ == kInfinite) return std::nullopt;
    return ScheduleChoice{best_, best_seconds_, evaluations_};
  }

  const StepModel& steps_;
  const PlanOptions& options_;
  std::int64_t n_;
  std::vector<double> phase_one_;  // prefix sums
  std::map<std::tuple<double, std::int64_t, std::int64_t, std::int64_t>, Tail> phase_two_;
  PhaseSchedule best_;
  double best_seconds_ = kInfinite;
  std::int64_t evaluations_ = 0;
};

}  // namespace

std::optional<ScheduleChoice> search_schedule(const StepModel& steps, const PlanOptions& options) {
  return Search(steps, options).run();
}

StepTokens tokens_at(const StepModel& steps, const PhaseSchedule& schedule, std::int64_t j) {
  const std::int64_t context = steps.workload().input_len + j + 1;
  if (j < schedule.p1) return {.context = context};
  const bool third = j >= schedule.p2 && schedule.beta > 0.0;
  return phase_tokens(steps, {schedule.alpha, schedule.device_tokens}, third ? schedule.beta : 0.0,
                      context, j == schedule.p1 && j > 0);
}

ScheduleCost schedule_cost(const StepModel& steps, const PhaseSchedule& schedule) {
  ScheduleCost cost;
  for (std::int64_t j = 0; j < steps.workload().output_len; ++j) {
    const StepTokens tokens = tokens_at(steps, schedule, j);
    if (!steps.fits(tokens, schedule.input_tokens)) {
      return {kInfinite,
              fmt::format("step {} needs {} on the device and {} on the host", j,
                          format_bytes(steps.device_bytes(tokens, schedule.input_tokens)),
                          format_bytes(steps.host_bytes(tokens, schedule.input_tokens)))};
    }
    cost.seconds += steps.decode(tokens, schedule.input_tokens).step;
  }
  if (schedule.p1 == 0) {
    const OffloadRule rule{schedule.alpha, schedule.device_tokens};
    cost.seconds += steps.prefill(offloaded_at(steps, rule, steps.workload().input_len), 0).step -
                    steps.prefill(0, 0).step;
  }
  if (schedule.input_tokens > 0) {
    cost.seconds += steps.prefill(0, schedule.input_tokens).step - steps.prefill(0, 0).step;
  }
  return cost;
}

}  // namespace triphase
