#include "runtime/plan/run_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/content_hash.h"
#include "base/error.h"
#include "runtime/job/file_ops.h"
#include "runtime/job/output_file.h"
#include "runtime/plan/choose_plan.h"
#include "runtime/plan/miss_rate.h"
#include "runtime/plan/open_profile.h"
#include "runtime/plan/plan_file.h"
#include "runtime/plan/profile_file.h"
#include "runtime/plan/workload.h"
#include "runtime/refuse.h"

namespace triphase {
namespace {

// How many lines, and how many bytes, are read to learn the job's lengths.
constexpr LineLimits kSample{.lines = 256, .bytes = std::uint64_t{8} << 20};

class ScheduleChooser {
 public:
  ScheduleChooser(RunOptions& options, const PromptFileFacts& prompts,
                  const std::optional<LongestRequest>& longest, RunProfile& profile,
                  const Workplace& place)
      : options_(options), prompts_(prompts), longest_(longest), profile_(profile), place_(place) {}

  std::optional<RunSchedule> choose() {
    if (options_.job != JobKind::kGenerate || options_.machine.policy != "triphase")
      return std::nullopt;
    if (!options_.plan.file.empty()) {
      std::optional<RunSchedule> given = from_file();
      if (given) return given;
    } else if (!options_.machine.policy_options.empty()) {
      return std::nullopt;
    }
    // A profile that was named is read in any case, so that a wrong one never passes unseen.
    if (!options_.plan.profile.empty()) (void)profile_.find();
    const RunPlan memory = plan_run(options_, place_.model, place_.machine());
    const bool holds_longest = !longest_ || memory.longest_request >= longest_->lengths.kv_tokens();
    if (memory.memory.host_blocks == 0 && memory.placement.streamed_layers == 0 && holds_longest) {
      if (!options_.plan.file.empty() || !options_.plan.profile.empty()) {
        place_.log.info("everything fits on the device: no plan is needed");
      }
      return std::nullopt;
    }
    if (options_.plan.file.empty()) {
      if (std::optional<RunSchedule> stored = from_earlier_run(memory)) return stored;
    }
    return make(memory);
  }

 private:
  // --plan. Nothing: it does not cover the job, so that another is made.
  std::optional<RunSchedule> from_file() {
    const std::string& file = options_.plan.file;
    const std::string text = read_small_file(system_file_ops(), file, kMaxPlanBytes);
    Plan plan = parse_plan(text, file);
    for (const Plan* one : plans_of(plan)) {
      require_plan_for_model(*one, place_.model.identity.fingerprint, file);
      require_runnable(*one, file);
      if (!options_.plan.force) require_plan_for_machine(*one, profile_.machine(), file);
      require_fit(*one, file);
    }
    const DType dtype = plan.kv_dtype;
    if (options_.machine.kv_dtype && *options_.machine.kv_dtype != dtype) {
      refuse_conflict("--kv-dtype", options_.origins["kv-dtype"].value,
                      fmt::format("{} of --plan {}", dtype_name(plan.kv_dtype), file),
                      "leave it out: the plan decides");
    }
    RunOptions followed = with_plan(options_, plan);
    const std::uint64_t free = place_.backend.default_memory();
    if (!followed.machine.device_memory) {
      followed.machine.device_memory =
          std::min(plan.budget.device_memory, std::max(free, plan.device_peak));
    }
    if (!followed.machine.host_memory) followed.machine.host_memory = plan.budget.host_memory;
    const std::string too_small = uncovered(plan, followed);
    const bool shared = options_.files.shard.count > 1;  // shards have one job's plan
    if (!too_small.empty() && (options_.plan.strict || shared)) {
      throw Error(ErrorRole::kInput, "E-PLAN-WORKLOAD", "workload")
          .file(file)
          .found(fmt::format("batch {} with requests of up to {} tokens", plan.workload.batch,
                             last_workload(plan).most_tokens()))
          .expected(too_small)
          .hint(shared ? "plan again with these lengths, for all shards"
                       : "plan again with these lengths, or without --plan-strict");
    }
    options_.machine.kv_dtype = dtype;
    for (const Plan* one : plans_of(plan)) require_recompute(*one, file);
    if (!too_small.empty()) {
      place_.log.info(fmt::format("{} does not cover this job ({}): planning again",
                                  escape_untrusted(file), too_small));
      // Its batch size was for other lengths.
      options_.machine.device_memory = followed.machine.device_memory;
      options_.machine.host_memory = followed.machine.host_memory;
      return std::nullopt;
    }
    options_ = std::move(followed);
    RunSchedule schedule{
        .plan = std::move(plan), .origin = file, .profile = "", .file_hash = hash_text(text)};
    schedule.profile = schedule.plan.machine;
    return schedule;
  }

  static std::vector<const Plan*> plans_of(const Plan& plan) {
    std::vector<const Plan*> plans = {&plan};
    for (const Plan& longer : plan.longer) plans.push_back(&longer);
    return plans;
  }

  // Of the longest requests.
  static const PlanWorkload& last_workload(const Plan& plan) {
    return plan.longer.empty() ? plan.workload : plan.longer.front().workload;
  }

  // What any model with this shape could not run, whoever made the plan.
  void require_runnable(const Plan& plan, const std::string& file) const {
    const auto refuse = [&](std::string_view field, std::int64_t found,
                            const std::string& expected) {
      throw Error(ErrorRole::kInput, "E-PLAN-FILE", field)
          .file(file)
          .found(fmt::to_string(found))
          .expected(expected);
    };
    if (plan.schedule.streamed_layers > place_.model.config.layers) {
      refuse("schedule.streamed_layers", plan.schedule.streamed_layers,
             fmt::format("at most {}, the model's layers", place_.model.config.layers));
    }
    if (plan.kv_dtype == DType::kInt8 && plan.block_tokens % KvShape::kInt8BlockMultiple != 0) {
      refuse("block_tokens", plan.block_tokens,
             fmt::format("a multiple of {} with kv_dtype int8", KvShape::kInt8BlockMultiple));
    }
  }

  void require_recompute(const Plan& plan, const std::string& file) const {
    if (plan.schedule.beta == 0.0 || plan.schedule.p2 >= plan.workload.output_len) return;
    if (options_.plan.recompute != RecomputeMode::kOff) return;
    refuse_conflict("--recompute",
                    fmt::format("off with a plan that recomputes from step {} on ({})",
                                plan.schedule.p2, escape_untrusted(file)),
                    "auto or on", "or plan with --recompute off");
  }

  void require_fit(const Plan& plan, const std::string& file) const {
    const auto check = [&](std::string_view field, std::uint64_t needed, std::uint64_t there,
                           std::string_view option) {
      if (needed <= there) return;
      throw Error(ErrorRole::kResources, "E-PLAN-FIT", field)
          .file(file)
          .found(format_bytes(needed))
          .expected(fmt::format("at most {} of {}", format_bytes(there), option))
          .hint(
              fmt::format("{} {}B fits, or plan again with {} {}B", option, needed, option, there));
    };
    check("device_peak_bytes", plan.device_peak,
          options_.machine.device_memory.value_or(place_.backend.default_memory()),
          "--device-memory");
    if (options_.machine.host_memory) {
      check("host_peak_bytes", plan.host_peak, *options_.machine.host_memory, "--host-memory");
    }
  }

  // Whether a plan that is followed leaves room for any request.
  [[nodiscard]] bool has_room(const RunOptions& followed) const {
    const std::optional<RunPlan> run = try_plan_run(followed, place_.model, place_.machine());
    return run && run->longest_request > 0;
  }

  // Why a plan is too small for this job, in words; empty: it covers it, and can be `followed`.
  std::string uncovered(const Plan& plan, const RunOptions& followed) {
    if (options_.machine.batch_size > plan.workload.batch) {
      return fmt::format("batch {} of --batch-size", options_.machine.batch_size);
    }
    if (!plan.longer.empty() && !prompts_.rereadable) {
      return "one plan for all requests, since prompts from a pipe are read only once";
    }
    std::vector<SimulatedRequest> requests = sample_requests();
    if (longest_) requests.push_back(longest_->lengths);
    const std::int64_t longest = lengths_of(requests).longest;
    if (prompts_.rereadable && longest > last_workload(plan).most_tokens()) {
      return fmt::format("requests of up to {} tokens", longest);
    }
    if (!has_room(followed)) return fmt::format("memory for batch {}", followed.machine.batch_size);
    return {};
  }

  // The first requests that can run. A pipe cannot be read twice: then one as it is declared.
  [[nodiscard]] std::vector<SimulatedRequest> sample_requests() const {
    const std::int64_t context = most_context(options_, place_.model.config);
    std::vector<SimulatedRequest> sample;
    if (prompts_.rereadable)
      sample = read_request_lengths(options_, place_.model, context, kSample);
    if (sample.empty()) {
      const std::int64_t output = std::min(options_.generation.sampling.max_tokens, context - 1);
      sample.push_back(
          {std::max<std::int64_t>(context - output, 1), std::max<std::int64_t>(output, 1)});
    }
    return sample;
  }

  // The plan that the job began with; with other budgets a new one with the same KV type, since a
  // job's records must not change underway.
  std::optional<RunSchedule> from_earlier_run(const RunPlan& memory) {
    const OutputPaths paths(options_.files.output);
    if (!may_resume(options_) || !path_exists(paths.plan)) return std::nullopt;
    Plan plan =
        parse_plan(read_small_file(system_file_ops(), paths.plan, kMaxPlanBytes), paths.plan);
    for (const Plan* one : plans_of(plan)) {
      require_plan_for_model(*one, place_.model.identity.fingerprint, paths.plan);
      require_runnable(*one, paths.plan);
    }
    if (!options_.machine.kv_dtype) options_.machine.kv_dtype = plan.kv_dtype;
    if (*options_.machine.kv_dtype != plan.kv_dtype) return std::nullopt;
    if (!same_budgets(plan, memory)) {
      place_.log.info("other budgets than when the job began: planning again");
      options_.plan.inputs_settled = true;
      return std::nullopt;
    }
    RunOptions followed = with_plan(options_, plan);
    if (!has_room(followed)) {
      place_.log.info("the plan that the job began with leaves no room: planning again");
      options_.plan.inputs_settled = true;
      return std::nullopt;
    }
    options_ = std::move(followed);
    RunSchedule schedule{
        .plan = std::move(plan), .origin = paths.plan, .profile = "", .file_hash = ""};
    schedule.profile = schedule.plan.machine;
    return schedule;
  }

  // Budgets that nobody gave follow the memory that happens to be free: no reason to plan again.
  [[nodiscard]] bool same_budgets(const Plan& plan, const RunPlan& memory) const {
    return (!options_.machine.device_memory || plan.budget.device_memory == memory.budget) &&
           (!options_.machine.host_memory || plan.budget.host_memory == memory.host_budget);
  }

  std::optional<RunSchedule> make(const RunPlan& memory) {
    const HardwareProfile* profile = profile_.find();
    if (profile == nullptr) return std::nullopt;
    settle_miss_rate(options_, *profile, memory.memory, place_.log);
    std::vector<SimulatedRequest> sample = sample_requests();
    // The job's longest request is one of those that the plan is for, wherever it stands.
    if (longest_ && longest_->lengths.kv_tokens() >= lengths_of(sample).longest) {
      sample.push_back(longest_->lengths);
    }
    const CostModel cost(*profile, options_.attention);
    const PlanningJob job{.model = place_.model,
                          .machine = place_.machine(),
                          .cost = cost,
                          .options = options_,
                          .sample = std::move(sample),
                          .requests = prompts_.rereadable
                                          ? std::max(static_cast<std::int64_t>(prompts_.requests),
                                                     options_.machine.requests)
                                          : 0};
    std::optional<PlanChoice> best = choose_plan(job);
    if (!best) {
      place_.log.info(
          "no schedule fits the whole batch: memory pressure decides what leaves the device");
      return std::nullopt;
    }
    Plan& plan = best->plan;
    const auto sign = [&](Plan& one) {
      one.budget = {memory.budget, memory.host_budget};
      one.model_name = place_.model.identity.path;
      one.model_fingerprint = place_.model.identity.fingerprint;
      one.profile_fingerprint = profile_fingerprint(*profile);
      one.machine = profile->machine();
    };
    sign(plan);
    std::ranges::for_each(plan.longer, sign);
    options_ = std::move(best->options);
    return RunSchedule{.plan = std::move(plan),
                       .origin = "made for this job",
                       .profile = profile->name,
                       .file_hash = "",
                       .store = true};
  }

  RunOptions& options_;
  const PromptFileFacts& prompts_;
  const std::optional<LongestRequest>& longest_;
  RunProfile& profile_;
  const Workplace& place_;
};

}  // namespace

std::optional<RunSchedule> choose_schedule(RunOptions& options, const PromptFileFacts& prompts,
                                           const std::optional<LongestRequest>& longest,
                                           RunProfile& profile, const Workplace& place) {
  return ScheduleChooser(options, prompts, longest, profile, place).choose();
}

std::string describe(const RunSchedule& schedule) {
  const Plan& plan = schedule.plan;
  const PhaseSchedule& s = plan.schedule;
  const bool never = s.p1 >= plan.workload.output_len;
  const bool recomputes = s.beta > 0.0 && s.p2 < plan.workload.output_len;
  return fmt::format(
      "plan ({}; profile: {}): for batch {} with {} + {} tokens, KV {} in blocks of {}; p1 "
      "{}{}{}{}; "
      "predicted {:.1f} tokens/s{}",
      escape_untrusted(schedule.origin), escape_untrusted(schedule.profile), plan.workload.batch,
      plan.workload.input_len, plan.workload.output_len, dtype_name(plan.kv_dtype),
      plan.block_tokens, s.p1,
      s.on_demand ? " (never: all KV stays on the device; requests that find no room are preempted)"
      : !s.host_tier ? " (never: all KV stays on the device)"
      : never        ? " (never: all KV fits on the device)"
      : s.device_tokens > 0
          ? fmt::format(", then {} tokens of each sequence stay on the device", s.device_tokens)
          : fmt::format(", alpha {:.3f}", s.alpha),
      s.streamed_layers > 0 ? fmt::format(", {} layers streamed", s.streamed_layers) : "",
      recomputes
          ? fmt::format("; from p2 {} on {:.3f} of the host's tokens are recomputed", s.p2, s.beta)
          : "",
      plan.tokens_per_second, plan.extrapolated ? " (times extrapolated)" : "");
}

}  // namespace triphase
