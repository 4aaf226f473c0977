#include "runtime/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/format_bytes.h"
#include "base/stream_spans.h"
#include "runtime/backend.h"
#include "runtime/calibrate/choose_sparsity.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/loaded_model.h"
#include "runtime/engine/model_bundle.h"
#include "runtime/engine/run_numbers.h"
#include "runtime/engine/score_engine.h"
#include "runtime/job/disk_space.h"
#include "runtime/job/generation_config.h"
#include "runtime/job/job.h"
#include "runtime/job/run_report.h"
#include "runtime/job/run_summary.h"
#include "runtime/job/trace_file.h"
#include "runtime/machine.h"
#include "runtime/plan/job_stages.h"
#include "runtime/plan/miss_rate.h"
#include "runtime/plan/plan_file.h"
#include "runtime/plan/prediction.h"
#include "runtime/plan/settled_numerics.h"
#include "runtime/plan/workload.h"
#include "runtime/signals.h"

namespace triphase {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The job: where it reads, where it writes, what model it names. Nothing is written yet.

struct Job {
  PromptFileFacts prompts;
  ModelBundle model;
  std::int64_t started = 0;  // its first run, in seconds since 1970
};

// Up to `most`. A line may hold several.
std::int64_t count_requests(const RunOptions& options, std::int64_t most) {
  PromptReader reader(options);
  std::int64_t count = 0;
  while (count < most) {
    const std::optional<PromptLine> line = reader.next();
    if (!line) break;
    count += std::holds_alternative<Request>(*line) ? 1 : 0;
  }
  return count;
}

Job open_job(RunOptions& options, Progress& progress, Log& log) {
  const Shard& shard = options.files.shard;
  if (shard.count > 1) {
    const std::string text =
        fmt::format("shard {}/{} (from {})", shard.index, shard.count, shard.origin);
    if (options.given("shard")) {
      log.info(text);
    } else {
      log.warning(text + ": other lines are left to other tasks; --shard 0/1 runs all");
    }
  }
  job_files(options).check();
  check_trace_location(options);
  progress.begin_phase(options.job == JobKind::kScore ? "reading requests" : "reading prompts");
  PromptFileFacts prompts = examine_prompt_file(options);
  ModelBundle model = open_model(options);
  for (const std::string& note : model.notes) log.info(note);
  if (options.generation.adopt_config && model.generation_config) {
    for (const std::string& line : adopt_generation_config(options, *model.generation_config)) {
      log.info(line);
    }
  }
  const std::int64_t started = job_start(options);
  model.chats->set_now(started);
  // A machine that cannot run templates is known before the model is loaded.
  if (prompts.chats) model.chats->start();
  return {std::move(prompts), std::move(model), started};
}

// Does it fit, and how is memory divided? Known before anything large is loaded.

struct Decisions {
  std::optional<SparsityChoice> sparsity;
  std::vector<Stage> stages;  // not empty
  std::optional<RunPrediction> prediction;

  [[nodiscard]] const RunOptions& options() const { return stages.front().options; }
  [[nodiscard]] const RunPlan& first() const { return stages.front().plan; }
  [[nodiscard]] const RunPlan& last() const { return stages.back().plan; }
};

bool uses_host(const Decisions& decided) {
  return std::ranges::any_of(decided.stages, [](const Stage& stage) {
    return stage.plan.memory.host_blocks > 0 || stage.plan.placement.streamed_layers > 0;
  });
}

void explain(const Decisions& decided, const Workplace& place) {
  const RunOptions& options = decided.options();
  const ModelBundle& model = place.model;
  Backend& backend = place.backend;
  Log& log = place.log;
  if (options.machine.device == "auto" && !backend.machine().gpu) {
    if (const std::string problem = gpu_problem(); !problem.empty()) {
      log.warning(fmt::format("--device auto takes the CPU: {}", problem));
    }
  }
  log.info(fmt::format("model: {} ({} layers, {} weights of {}), device: {}, {} threads",
                       model.config.architecture, model.config.layers,
                       dtype_name(model.weights_dtype), format_bytes(model.weight_bytes),
                       backend.ops().name(), backend.threads().threads()));
  std::int64_t held = 0;  // tokens of the longest request of the stages before
  for (const Stage& stage : decided.stages) {
    if (held > 0) {
      log.info(
          fmt::format("requests of more than {} tokens wait for the others to end; then:", held));
    }
    held = stage.plan.longest_request;
    log.info(describe(stage.plan, model));
    if (stage.schedule) log.info(describe(*stage.schedule));
  }
  if (decided.stages.front().schedule && options.looking.explain) {
    std::istringstream lines(explain_plan(decided.stages.front().schedule->plan));
    for (std::string line; std::getline(lines, line);) log.info(line);
  }
}

// The smallest request behind a fixed context is one token.
void require_room_behind_context(const Decisions& decided, const ModelBundle& model) {
  const auto fixed = std::ssize(model.context_tokens());
  const std::int64_t longest = decided.last().longest_request;
  if (fixed == 0 || longest > fixed) return;
  throw Error(ErrorRole::kResources, "E-MEM-FIT", "--fixed-context")
      .found(fmt::format("{} tokens", fixed))
      .expected(fmt::format("at most {}, whose KV fits memory beside that of a line", longest - 1))
      .hint(decided.options().machine.device_kv_memory
                ? "raise --device-kv-memory or --device-memory"
                : "raise --device-memory");
}

// Fills what is decided into each stage's options: the attention method's budget, what a plan
// settles.
Decisions decide(RunOptions options, const PromptFileFacts& prompts, const Workplace& place) {
  Decisions decided;
  decided.sparsity = choose_sparsity(options, prompts, place);
  settle_numerics(options, place.model, place.machine());
  RunProfile profile(options, place);
  decided.stages = choose_stages(options, prompts, profile, place);
  require_room_behind_context(decided, place.model);
  explain(decided, place);
  if (options.looking.predict) {
    if (const HardwareProfile* found = profile.find()) {
      for (Stage& stage : decided.stages) {
        settle_miss_rate(stage.options, *found, stage.plan.memory, place.log);
      }
      decided.prediction = predict_run(decided.stages, prompts, *found, place);
    }
  }
  if (options.looking.explain) {
    for (const auto& [name, value] : decided.options().origins) {
      place.log.info(fmt::format("--{} = {} ({})", name, value.value, value.origin));
    }
  }
  return decided;
}

// What the summary knows before the model is loaded.
RunSummary summary_of_setup(const Job& job, const Decisions& decided, Backend& backend) {
  const RunOptions& options = decided.options();
  const ModelBundle& model = job.model;
  RunSummary summary;
  summary.model = {.path = options.files.model,
                   .type = model.config.model_type,
                   .fingerprint = model.identity.fingerprint,
                   .weights_dtype = std::string(dtype_name(model.weights_dtype)),
                   .kv_dtype = std::string(dtype_name(decided.first().kv.dtype))};
  const std::string device = backend.machine().gpu
                                 ? std::string(backend.ops().name())
                                 : fmt::format("cpu: {}", inspect_machine().cpu_name);
  summary.hardware = {.device = device,
                      .threads = backend.threads().threads(),
                      .simd = std::string(backend.ops().name())};
  summary.attention.method = attention_name(options.attention.kind);
  summary.attention.sparsity = decided.sparsity;
  if (model.fixed_context) {
    summary.fixed_context = {options.files.fixed_context, model.fixed_context->hash,
                             model.fixed_context->tokens.size()};
  }
  summary.placement.policy = options.machine.policy;
  if (const auto& schedule = decided.stages.front().schedule) {
    summary.placement.plan = schedule->plan;
    summary.placement.plan_origin = schedule->origin;
    summary.placement.plan_profile = schedule->profile;
  }
  summary.prediction = decided.prediction;
  if (options.machine.emulated_link) summary.emulated.emplace_back("link");
  if (uses_host(decided) && !backend.machine().gpu) {
    summary.emulated.emplace_back("device memory");
  }
  if (job.prompts.rereadable) summary.total_requests = job.prompts.requests;
  return summary;
}

// The output file: lock, manifest, and what an earlier run already finished.

bool output_exists(const RunOptions& options) {
  const OutputPaths paths(options.files.output);
  return path_exists(paths.output) || path_exists(paths.part);
}

std::unique_ptr<OutputFile> open_output(const Job& job, const Decisions& decided,
                                        Backend& backend) {
  const RunOptions& options = decided.options();
  const KvShape& kv = decided.first().kv;
  Manifest manifest =
      make_manifest(options, job.prompts, job.model.identity,
                    describe(KvValues{kv.dtype, kv.quantized() ? kv.block_tokens : 0}),
                    decided.first().input_tokens);
  manifest.kernels = backend.ops().name();
  manifest.started = job.started;
  const auto& schedule = decided.stages.front().schedule;
  if (schedule) manifest.plan_hash = schedule->file_hash;
  return std::make_unique<OutputFile>(options, job.prompts, manifest);
}

// Nothing: there is work left.
std::optional<int> exit_code_if_complete(const OutputFile& output, const RunOptions& options,
                                         Log& log) {
  if (!output.already_complete()) return std::nullopt;
  write_missing_summary(options, output.counts());
  log.info(fmt::format("{} is already complete; --overwrite starts anew", options.files.output));
  return exit_code_of(output.counts());
}

void report_resumed(const OutputFile& output, const PromptFileFacts& prompts, Log& log) {
  if (output.resumed() == 0) return;
  log.info(fmt::format("resuming: {} of {} records are there already", output.resumed(),
                       prompts.rereadable ? std::to_string(prompts.requests) : "?"));
}

// Before the first record, so that a resumed job follows the same plan and the same sparsity.
void begin_output(const Decisions& decided, OutputFile& output) {
  const RunOptions& options = decided.options();
  output.begin();
  const OutputPaths paths(options.files.output);
  const auto write = [&options](const std::string& path, const std::string& text) {
    write_file_atomically(system_file_ops(), path, text, options.files.private_files ? 0600 : 0666,
                          resume_hint(options));
  };
  if (decided.sparsity) write(paths.sparsity, sparsity_choice_to_json(*decided.sparsity) + "\n");
  const auto& schedule = decided.stages.front().schedule;
  if (schedule && schedule->store) write(paths.plan, plan_to_json(schedule->plan));
}

// Every request through tokenizer, prefill and decode (engine.cpp), records as they finish.

// What turns requests into records, with what it needs around it: completions, or scores.
class Worker {
 public:
  Worker(const Stage& stage, LoadedModel& loaded, const Workplace& place)
      : preparer_(place.model.config, place.model.tokenizer.get(),
                  prompt_limits(stage.options, place.model, stage.plan.longest_request)),
        engine_(stage.plan, loaded, place, &preparer_, stage.options.generation.seed) {
    const auto& [options, schedule, plan] = stage;
    if (options.job != JobKind::kScore) return;
    const ModelBundle& model = place.model;
    scorer_.emplace(engine_,
                    ScorePreparer(model.config, model.tokenizer.get(),
                                  score_limits(options, model, plan.longest_request)),
                    options.token_logprobs);
  }

  [[nodiscard]] CompletionEngine& engine() {
    if (scorer_) return *scorer_;
    return engine_;
  }
  // What computes behind it.
  [[nodiscard]] Engine& measured() { return engine_; }

 private:
  PromptPreparer preparer_;
  Engine engine_;
  std::optional<ScoreEngine> scorer_;
};

// What --trace asks for, over all stages.
struct Tracing {
  Tracing(const RunOptions& options, const std::vector<std::string>& emulated, Backend& backend,
          Log& log)
      : file(options, emulated, trace, log) {
    if (!backend.device().runs_at_once()) {
      stream_spans.emplace(backend.device(), backend.stream(), trace);
    }
  }

  Trace trace;
  TraceFile file;
  std::optional<StreamSpans> stream_spans;  // goes first, with what the file does not have yet
};

// Model and worker are traced while this lives, where there is a trace.
class TracedStage {
 public:
  TracedStage(std::optional<Tracing>& tracing, LoadedModel& loaded, Worker& worker)
      : loaded_(loaded), worker_(worker) {
    if (!tracing) return;
    loaded_.set_trace(&tracing->trace);
    worker_.measured().set_trace(&tracing->trace);
  }
  ~TracedStage() {
    worker_.measured().set_trace(nullptr);
    loaded_.set_trace(nullptr);
  }
  TracedStage(const TracedStage&) = delete;
  TracedStage& operator=(const TracedStage&) = delete;

 private:
  LoadedModel& loaded_;
  Worker& worker_;
};

void warn_of_ignored_fields(const PromptReader& prompts, Log& log) {
  for (const auto& [name, lines] : prompts.ignored_fields()) {
    log.warning(fmt::format("field \"{}\" of {} {} is not known and was ignored",
                            escape_untrusted(name), lines, lines == 1 ? "line" : "lines"));
  }
}

// A job while it runs.
struct Running {
  const Job& job;
  const Decisions& decided;
  const Workplace& place;
  RunSummary& summary;
  std::shared_ptr<LoadedWeights> weights{};
  std::optional<Tracing> tracing{};
};

// Adds what the stage measured to the summary, also when it ends by an error.
JobEnd run_lines(const Stage& stage, LoadedModel& loaded, OutputFile& output, Running& run) {
  const RunOptions& options = stage.options;
  if (!run.tracing && !options.looking.trace.empty()) {
    run.tracing.emplace(options, run.summary.emulated, run.place.backend, run.place.log);
  }
  const bool last = &stage == &run.decided.stages.back();
  Worker worker(stage, loaded, run.place);
  const TracedStage traced(run.tracing, loaded, worker);
  PromptReader prompts(options, &run.job.prompts);
  Watchdog watchdog(options.machine.watchdog_seconds, run.place.log, resume_hint(options));
  const auto measure = [&] {
    worker.measured().finish_trace();
    add_run_numbers(worker.measured(), loaded, stage.plan, cluster_memory(options, run.job.model),
                    run.summary);
  };
  const bool first = &stage == &run.decided.stages.front();
  run.place.progress.begin_phase(options.job == JobKind::kScore ? "scoring"
                                 : first                        ? "generating"
                                                                : "generating for longer requests");
  JobEnd end = JobEnd::kStopped;
  try {
    end = run_job(prompts, output, worker.engine(), run.place.progress,
                  {.total_requests = run.summary.total_requests,
                   .leaves_longer_lines = !last,
                   .watchdog = &watchdog});
  } catch (...) {
    measure();
    throw;
  }
  measure();
  if (end == JobEnd::kAllLines) warn_of_ignored_fields(prompts, run.place.log);
  return end;
}

// The model as a stage needs it. Weights stay where they are if they lie right.
std::unique_ptr<LoadedModel> load(const Stage& stage, Running& run) {
  load_for(stage.options, stage.plan, run.place, run.weights);
  auto loaded = std::make_unique<LoadedModel>(run.weights, stage.options, stage.plan, run.place);
  loaded->log_pinning(run.place);
  return loaded;
}

void warn_of_small_disk(const Job& job, const Decisions& decided, std::uint64_t finished,
                        Log& log) {
  const std::string warning =
      disk_warning(decided.options(), job.prompts, decided.last().longest_request, finished);
  if (!warning.empty()) log.warning(warning);
}

// Lines that a dry run looks at: tokenizing takes its time.
constexpr LineLimits kDryRun{.lines = 10000, .bytes = std::uint64_t{64} << 20};

// Exit code 1, as of a run, where lines would become error records.
int report_dry_run(const Job& job, const Decisions& decided, Log& log) {
  const RunOptions& options = decided.options();
  warn_of_small_disk(job, decided, /*finished=*/0, log);
  if (job.prompts.rereadable) {
    const LineFaults faults =
        find_line_faults(options, job.model, decided.last().longest_request, kDryRun);
    for (const std::string& fault : faults.first) log.warning(fault);
    if (faults.faulty > 0) {
      log.warning(
          fmt::format("{} of {} lines would become error records", faults.faulty, faults.lines));
      if (options.job == JobKind::kGenerate && !decided.stages.front().schedule &&
          uses_host(decided) && options.machine.policy == "triphase") {
        log.info(
            "that is without a plan; a run with a profile makes one, which may leave room for "
            "more");
      }
      return 1;
    }
  }
  log.info("dry run: everything needed is there; nothing was loaded or written");
  return 0;
}

void report_stopped(const RunOptions& options, const PromptFileFacts& prompts,
                    const OutputFile& output, Log& log) {
  if (options.files.to_standard_output) {
    log.info(fmt::format("stopped: {} records were finished, {} printed; {}",
                         output.counts().total(), output.printed(), resume_hint(options)));
    return;
  }
  log.info(fmt::format(
      "stopped: {} records are kept in {}.part; {}", output.counts().total(), options.files.output,
      prompts.rereadable ? resume_hint(options) : "prompts from a pipe cannot be resumed"));
}

}  // namespace

int generate(RunOptions asked, Progress& progress, Log& log) {
  const Clock::time_point start = Clock::now();
  const Job job = open_job(asked, progress, log);
  const auto backend = Backend::open_for_job(asked.machine);
  if (job.prompts.rereadable && asked.job == JobKind::kGenerate) {
    asked.machine.requests = count_requests(asked, default_batch_size(backend->machine()));
  }
  const Workplace place{job.model, *backend, progress, log};
  const Decisions decided = decide(std::move(asked), job.prompts, place);
  const RunOptions& options = decided.options();
  if (options.looking.dry_run) return report_dry_run(job, decided, log);

  // Where there is no output yet it is created only after loading, so that refused weights leave
  // nothing behind; nor does --overwrite delete anything before.
  std::unique_ptr<OutputFile> output;
  if (output_exists(options)) {
    output = open_output(job, decided, *backend);
    if (const auto code = exit_code_if_complete(*output, options, log)) return *code;
    report_resumed(*output, job.prompts, log);
  }
  warn_of_small_disk(job, decided, output ? output->counts().total() : 0, log);

  RunSummary summary = summary_of_setup(job, decided, *backend);
  const auto close_summary = [&](int exit_code, const std::string& error) {
    summary.seconds.wall = seconds_since(start);
    summary.records = output->counts();
    summary.resumed = output->resumed();
    summary.exit_code = exit_code;
    summary.error = error;
    write_summary(summary, options);
  };
  // The run's own error matters more than a summary that cannot be written.
  const auto close_summary_if_possible = [&](int code, const std::string& error) {
    try {
      if (output && output->begun()) close_summary(code, error);
    } catch (const std::exception&) {
    }
  };

  try {
    Running run{job, decided, place, summary};
    JobEnd end = JobEnd::kLongerLinesLeft;
    for (const Stage& stage : decided.stages) {
      // Load: weights into the device's memory, then the buffers around them.
      const Clock::time_point load_start = Clock::now();
      const auto loaded = load(stage, run);
      summary.seconds.load += seconds_since(load_start);
      if (!output) {
        output = open_output(job, decided, *backend);
        // Somebody else may have finished it meanwhile.
        if (const auto code = exit_code_if_complete(*output, options, log)) return *code;
      }
      if (&stage == &decided.stages.front()) begin_output(decided, *output);
      end = run_lines(stage, *loaded, *output, run);
      if (end != JobEnd::kLongerLinesLeft) break;
    }

    // End: stopped by a signal, or complete and put into place in one rename.
    if (end == JobEnd::kStopped) {
      const int signal_number = stop_signal();
      progress.finish();
      close_summary(128 + signal_number, "stopped by a signal");
      report_stopped(options, job.prompts, *output, log);
      throw StoppedBySignal{signal_number};
    }
    progress.begin_phase("writing output");
    output->commit();
    summary.complete = true;
  } catch (const Error& error) {
    close_summary_if_possible(exit_code(error.role()), error.message());
    throw;
  } catch (const std::bad_alloc&) {
    close_summary_if_possible(exit_code(ErrorRole::kResources), "host memory ran out");
    throw;
  }
  const int result = exit_code_of(output->counts());
  close_summary(result, "");
  progress.finish();
  report_run(options, summary, log);
  return result;
}

}  // namespace triphase
