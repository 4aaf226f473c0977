#include "runtime/plan/run_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/plan/config_costs.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"
#include "runtime/engine/loaded_model.h"
#include "runtime/job/file_ops.h"
#include "runtime/job/manifest.h"
#include "runtime/job/output_file.h"
#include "runtime/machine.h"
#include "runtime/plan/miss_rate.h"
#include "runtime/plan/open_profile.h"
#include "runtime/plan/plan_file.h"
#include "runtime/plan/prediction.h"
#include "runtime/plan/profile_file.h"
#include "runtime/plan/workload.h"
#include "scheduler/planner/planner.h"
#include "scheduler/simulator/simulator.h"

namespace triphase {
namespace {

// How many lines, and how many bytes, are read to learn the job's lengths.
constexpr LineLimits kSample{.lines = 256, .bytes = std::uint64_t{8} << 20};
// How many sampled requests are simulated to compare plans.
constexpr std::size_t kSimulated = 64;
// The predicted time of the device alone is weighed by this: nothing can go wrong on a link.
constexpr double kDeviceBonus = 0.95;

struct Lengths {
  std::int64_t input = 0;    // mean of the sample, rounded up
  std::int64_t output = 0;   // mean of the sample's max_tokens, rounded up
  std::int64_t longest = 0;  // prompt and completion of one request
};

class ScheduleChooser {
 public:
  ScheduleChooser(RunOptions& options, const ModelBundle& model, const PromptFileFacts& prompts,
                  Backend& backend, RunProfile& profile, Log& log)
      : options_(options),
        model_(model),
        prompts_(prompts),
        backend_(backend),
        profile_(profile),
        log_(log) {}

  std::optional<RunSchedule> choose() {
    if (options_.job != JobKind::kGenerate || options_.machine.policy != "triphase")
      return std::nullopt;
    keep_inputs_of_earlier_run();
    if (!options_.plan.file.empty()) {
      std::optional<RunSchedule> given = from_file();
      if (given) return given;
    } else if (!options_.machine.policy_options.empty()) {
      return std::nullopt;
    }
    // A profile that was named is read in any case, so that a wrong one never passes unseen.
    if (!options_.plan.profile.empty()) (void)profile_.find();
    const RunPlan memory = plan_run(options_, model_, backend_.machine());
    if (memory.memory.host_blocks == 0 && memory.placement.streamed_layers == 0) {
      if (!options_.plan.file.empty() || !options_.plan.profile.empty()) {
        log_.info("everything fits on the device: no plan is needed");
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
    require_plan_for_model(plan, model_.identity.fingerprint, file);
    require_runnable(plan, file);
    if (!options_.plan.force) require_plan_for_machine(plan, profile_.machine(), file);
    require_fit(plan, file);
    const DType dtype = plan.kv_dtype;
    if (options_.machine.kv_dtype && *options_.machine.kv_dtype != dtype) {
      throw Error(ErrorRole::kUsage, "E-CLI-CONFLICT", "--kv-dtype")
          .found(options_.origins["kv-dtype"].value)
          .expected(fmt::format("{} of --plan {}", dtype_name(plan.kv_dtype), file))
          .hint("leave it out: the plan decides");
    }
    const std::string too_small = uncovered(plan);
    if (!too_small.empty() && options_.plan.strict) {
      throw Error(ErrorRole::kInput, "E-PLAN-WORKLOAD", "workload")
          .file(file)
          .found(fmt::format("batch {} with {} + {} tokens", plan.workload.batch,
                             plan.workload.input_len, plan.workload.output_len))
          .expected(too_small)
          .hint("plan again with these lengths, or without --plan-strict");
    }
    options_.machine.kv_dtype = dtype;
    if (!too_small.empty()) {
      log_.info(fmt::format("{} does not cover this job ({}): planning again",
                            escape_untrusted(file), too_small));
      return std::nullopt;
    }
    if (options_.machine.batch_size == 0) options_.machine.batch_size = plan.workload.batch;
    const std::uint64_t free = backend_.default_memory();
    if (!options_.machine.device_memory) {
      options_.machine.device_memory =
          std::min(plan.budget.device_memory, std::max(free, plan.device_peak));
    }
    if (!options_.machine.host_memory) options_.machine.host_memory = plan.budget.host_memory;
    const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
    RunSchedule schedule{.plan = std::move(plan),
                         .origin = file,
                         .profile = "",
                         .file_hash = fmt::format("xxh3:{:016x}{:016x}", hash.high64, hash.low64)};
    schedule.profile = schedule.plan.machine;
    options_.plan.schedule = schedule.plan.schedule;
    return schedule;
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
    if (plan.schedule.streamed_layers > model_.config.layers) {
      refuse("schedule.streamed_layers", plan.schedule.streamed_layers,
             fmt::format("at most {}, the model's layers", model_.config.layers));
    }
    if (plan.kv_dtype == DType::kInt8 && plan.block_tokens % KvShape::kInt8BlockMultiple != 0) {
      refuse("block_tokens", plan.block_tokens,
             fmt::format("a multiple of {} with kv_dtype int8", KvShape::kInt8BlockMultiple));
    }
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
          options_.machine.device_memory.value_or(backend_.default_memory()), "--device-memory");
    if (options_.machine.host_memory) {
      check("host_peak_bytes", plan.host_peak, *options_.machine.host_memory, "--host-memory");
    }
  }

  // Why a plan is too small for this job, in words; empty: it covers it.
  std::string uncovered(const Plan& plan) {
    const Lengths lengths = lengths_of(sample_requests());
    if (options_.machine.batch_size > plan.workload.batch) {
      return fmt::format("batch {} of --batch-size", options_.machine.batch_size);
    }
    if (prompts_.rereadable &&
        lengths.longest > plan.workload.input_len + plan.workload.output_len) {
      return fmt::format("requests of up to {} tokens", lengths.longest);
    }
    return {};
  }

  [[nodiscard]] std::int64_t longest_context() const {
    const std::int64_t asked = options_.machine.max_context;
    return asked > 0 ? std::min(asked, model_.config.max_positions) : model_.config.max_positions;
  }

  // The first requests that can run. A pipe cannot be read twice: then one as it is declared.
  [[nodiscard]] std::vector<SimulatedRequest> sample_requests() const {
    const std::int64_t context = longest_context();
    std::vector<SimulatedRequest> sample;
    if (prompts_.rereadable) sample = read_request_lengths(options_, model_, context, kSample);
    if (sample.empty()) {
      const std::int64_t output = std::min(options_.generation.sampling.max_tokens, context - 1);
      sample.push_back(
          {std::max<std::int64_t>(context - output, 1), std::max<std::int64_t>(output, 1)});
    }
    return sample;
  }

  static Lengths lengths_of(const std::vector<SimulatedRequest>& sample) {
    const auto count = static_cast<std::int64_t>(sample.size());
    Lengths lengths;
    for (const SimulatedRequest& request : sample) {
      lengths.input += request.prompt_tokens;
      lengths.output += request.output_tokens;
      lengths.longest = std::max(lengths.longest, request.prompt_tokens + request.output_tokens);
    }
    lengths.input = (lengths.input + count - 1) / count;
    lengths.output = (lengths.output + count - 1) / count;
    return lengths;
  }

  // Records that are there already were made with these hidden states, whatever is planned now.
  void keep_inputs_of_earlier_run() {
    const OutputPaths paths(options_.files.output);
    if (!may_resume(options_) || !path_exists(paths.manifest)) return;
    const Manifest manifest = parse_manifest(
        read_small_file(system_file_ops(), paths.manifest, kMaxManifestBytes), paths.manifest);
    options_.machine.cached_hidden_states =
        std::max(options_.machine.cached_hidden_states,
                 static_cast<std::int64_t>(manifest.cached_hidden_states));
  }

  // The plan that the job began with; with other budgets a new one with the same KV type, since a
  // job's records must not change underway.
  std::optional<RunSchedule> from_earlier_run(const RunPlan& memory) {
    const OutputPaths paths(options_.files.output);
    if (!may_resume(options_) || !path_exists(paths.plan)) return std::nullopt;
    Plan plan =
        parse_plan(read_small_file(system_file_ops(), paths.plan, kMaxPlanBytes), paths.plan);
    require_plan_for_model(plan, model_.identity.fingerprint, paths.plan);
    require_runnable(plan, paths.plan);
    if (!options_.machine.kv_dtype) options_.machine.kv_dtype = plan.kv_dtype;
    if (*options_.machine.kv_dtype != plan.kv_dtype) return std::nullopt;
    if (!same_budgets(plan, memory)) {
      log_.info("other budgets than when the job began: planning again");
      inputs_settled_ = true;
      return std::nullopt;
    }
    options_.plan.schedule = plan.schedule;
    if (options_.machine.batch_size == 0) options_.machine.batch_size = plan.workload.batch;
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

  // No more than there are requests.
  [[nodiscard]] std::int64_t batch_of(const RunPlan& memory) const {
    const std::int64_t batch = memory.memory.batch_size;
    if (!prompts_.rereadable || prompts_.requests == 0) return batch;
    return std::min(batch, static_cast<std::int64_t>(prompts_.requests));
  }

  [[nodiscard]] PlanRequest request_for(const RunPlan& memory, const Lengths& lengths,
                                        DType kv_dtype) {
    const std::int64_t longest = std::max<std::int64_t>(memory.longest_request, 2);
    const std::int64_t input = std::clamp<std::int64_t>(lengths.input, 1, longest - 1);
    const std::int64_t output = std::clamp<std::int64_t>(lengths.output, 1, longest - input);
    PlanRequest request{
        .workload = {.batch = batch_of(memory),
                     .input_len = input,
                     .output_len = output,
                     .caching_ratio = attended_share(options_.attention, input, output),
                     .miss_rate = options_.plan.miss_rate.value_or(1.0)},
        .budget = {memory.budget, memory.host_budget},
        .model = {.costs = model_costs(model_.config, model_.weights_dtype),
                  .weights_dtype = model_.weights_dtype,
                  .kv_dtype = kv_dtype,
                  .block_tokens = options_.machine.kv_block > 0
                                      ? options_.machine.kv_block
                                      : KvShape::default_block_tokens(kv_dtype),
                  .prefill_chunk = memory.prefill_chunk,
                  .fetch = sparse_fetch(options_, model_, memory.memory)}};
    request.options.allow_recompute = may_recompute(memory.kv, kv_dtype, request.model.fetch);
    request.model.longest = memory.context;
    request.model.scratch = memory.memory.scratch;
    request.model.kv_budget = options_.machine.device_kv_memory;
    request.model.transposed_k = memory.kv.transposed_k;
    return request;
  }

  // Whether a plan made here may enter Phase III; the planner decides whether it does.
  [[nodiscard]] bool may_recompute(KvShape pages, DType kv_dtype, SparseFetch fetch) {
    if (inputs_settled_) return false;
    // Who named an unquantized type wants no rounding.
    const bool named = options_.given("kv-dtype") && options_.origins["kv-dtype"].value != "auto";
    if (named && kv_dtype != DType::kInt8) return false;
    // Where a method reads every key to choose, whole blocks would be recomputed.
    if (options_.attention.sparse() && fetch == SparseFetch::kWholeBlocks) return false;
    pages.dtype = kv_dtype;
    return pages.page_holds_inputs(model_.config.hidden_size);
  }

  // A way to run the job: what it settles, and what comes of it.
  struct Choice {
    Plan plan;
    RunOptions options;
    std::int64_t too_long = 0;  // requests of the sample that it would refuse
    double seconds = 0.0;       // of the others, simulated

    // What crosses the link has to earn its place.
    [[nodiscard]] std::pair<std::int64_t, double> cost() const {
      return {too_long, plan.kind == ScheduleKind::kDevice ? kDeviceBonus * seconds : seconds};
    }
  };

  // The fastest plan: for the whole batch, for smaller batches where the user asks for none, or
  // with all KV on the device. No request is refused that some plan could hold.
  std::optional<RunSchedule> make(const RunPlan& memory) {
    const HardwareProfile* profile = profile_.find();
    if (profile == nullptr) return std::nullopt;
    settle_miss_rate(options_, *profile, memory.memory, log_);
    const CostModel cost(*profile);
    const std::vector<SimulatedRequest> sample = sample_requests();
    const Lengths lengths = lengths_of(sample);
    std::optional<Choice> best;
    const auto offer = [&](const std::optional<Plan>& plan) {
      if (!plan) return;
      std::optional<Choice> choice = weigh(*plan, sample, cost);
      if (choice && (!best || choice->cost() < best->cost())) best = std::move(choice);
    };
    const std::int64_t whole = batch_of(memory);
    for (std::int64_t batch = whole; batch > 0; batch /= 2) {
      // Fewer than a quarter only where requests need the room.
      if (batch < whole / 4 && best && best->too_long == 0) break;
      const RunPlan divided = plan_run(with_batch(batch), model_, backend_.machine());
      offer(best_plan(cost, divided, lengths));
      offer(device_plan(divided, lengths));
      if (options_.given("batch-size")) break;
    }
    if (!best) {
      log_.info("no schedule fits the whole batch: memory pressure decides what leaves the device");
      return std::nullopt;
    }
    Plan& plan = best->plan;
    plan.budget = {memory.budget, memory.host_budget};
    plan.model_name = model_.identity.path;
    plan.model_fingerprint = model_.identity.fingerprint;
    plan.profile_fingerprint = profile_fingerprint(*profile);
    plan.machine = profile->machine();
    options_ = std::move(best->options);
    return RunSchedule{.plan = std::move(plan),
                       .origin = "made for this job",
                       .profile = profile->name,
                       .file_hash = "",
                       .store = true};
  }

  [[nodiscard]] RunOptions with_batch(std::int64_t batch) const {
    RunOptions options = options_;
    options.machine.batch_size = batch;
    return options;
  }

  [[nodiscard]] std::optional<Plan> best_plan(const CostModel& cost, const RunPlan& divided,
                                              const Lengths& lengths) {
    const DType compute =
        kv_dtype_on(backend_.machine(), options_.machine.kv_dtype, model_.weights_dtype);
    std::optional<Plan> best = plan_with(cost, request_for(divided, lengths, compute));
    // --kv-dtype auto: INT8 only where the host is needed without it, and only where it pays.
    const bool needs_host = !best || best->schedule.p1 < best->workload.output_len ||
                            best->schedule.streamed_layers > 0;
    if (!options_.machine.kv_dtype && needs_host) {
      std::optional<Plan> int8 = plan_with(cost, request_for(divided, lengths, DType::kInt8));
      if (int8 && (!best || int8->tokens_per_second > best->tokens_per_second)) best = int8;
    }
    return best;
  }

  // A plan that runs as many sequences at a time as the device holds alone.
  [[nodiscard]] Plan device_plan(const RunPlan& divided, const Lengths& lengths) {
    const DType dtype =
        kv_dtype_on(backend_.machine(), options_.machine.kv_dtype, model_.weights_dtype);
    const PlanRequest request = request_for(divided, lengths, dtype);
    const std::int64_t never = request.workload.output_len;
    Plan plan{.workload = request.workload,
              .kind = ScheduleKind::kDevice,
              .schedule = {.host_tier = false,
                           .p1 = never,
                           .p2 = never,
                           .kv_dtype = dtype,
                           .block_tokens = request.model.block_tokens},
              .kv_dtype = dtype,
              .block_tokens = request.model.block_tokens};
    plan.phases[0].steps = never;
    return plan;
  }

  // Nothing: this run's buffers leave it no room. A job that can run must not be refused for the
  // plan made for it.
  [[nodiscard]] std::optional<Choice> weigh(const Plan& plan,
                                            const std::vector<SimulatedRequest>& sample,
                                            const CostModel& cost) const {
    Choice choice{.plan = plan, .options = with_batch(plan.workload.batch)};
    choice.options.machine.kv_dtype = plan.kv_dtype;
    choice.options.plan.schedule = plan.schedule;
    try {
      const RunPlan run = plan_run(choice.options, model_, backend_.machine());
      std::vector<SimulatedRequest> requests;
      for (const SimulatedRequest& request : sample) {
        // The last token that is sampled is never attended.
        const bool fits = request.prompt_tokens + request.output_tokens - 1 <= run.longest_request;
        if (fits && requests.size() < kSimulated) requests.push_back(request);
        if (!fits) ++choice.too_long;
      }
      if (requests.empty()) return choice;
      const SimulationResult result = simulate(
          *run.policy, cost, simulated_job(choice.options, model_, run, std::move(requests)));
      if (!result.infeasible.empty()) return std::nullopt;
      choice.seconds = result.seconds;
      if (plan.kind == ScheduleKind::kDevice) {
        choice.plan.schedule.streamed_layers = run.placement.streamed_layers;
        choice.plan.prefill_seconds = result.prefill_seconds;
        choice.plan.decode_seconds = result.decode_seconds;
        choice.plan.phases[0].seconds = result.decode_seconds;
        choice.plan.tokens_per_second = result.tokens_per_second;
        choice.plan.device_peak = run.memory.total();
        choice.plan.host_peak = run.memory.host_weights;
      }
    } catch (const Error& error) {
      if (error.role() != ErrorRole::kResources) throw;
      return std::nullopt;
    }
    return choice;
  }

  static std::optional<Plan> plan_with(const CostModel& cost, const PlanRequest& request) {
    try {
      return make_plan(cost, request);
    } catch (const Error& error) {
      if (error.code() != "E-PLAN-FIT") throw;
      return std::nullopt;
    }
  }

  RunOptions& options_;
  const ModelBundle& model_;
  const PromptFileFacts& prompts_;
  Backend& backend_;
  RunProfile& profile_;
  bool inputs_settled_ = false;  // an earlier run decided about hidden states
  Log& log_;
};

}  // namespace

std::optional<RunSchedule> choose_schedule(RunOptions& options, const ModelBundle& model,
                                           const PromptFileFacts& prompts, Backend& backend,
                                           RunProfile& profile, Log& log) {
  return ScheduleChooser(options, model, prompts, backend, profile, log).choose();
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
      !s.host_tier ? " (never: all KV stays on the device)"
      : never      ? " (never: all KV fits on the device)"
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
