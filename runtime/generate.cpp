#include "runtime/generate.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <chrono>
#include <optional>
#include <sstream>

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
#include "runtime/plan/miss_rate.h"
#include "runtime/plan/plan_file.h"
#include "runtime/plan/prediction.h"
#include "runtime/plan/run_schedule.h"
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

Job open_job(RunOptions& options, Progress& progress, Log& log) {
  if (options.files.shard.count > 1) {
    log.info(fmt::format("shard {}/{} (from {})", options.files.shard.index,
                         options.files.shard.count, options.files.shard.origin));
  }
  job_files(options).check();
  check_trace_location(options);
  progress.begin_phase("reading prompts");
  PromptFileFacts prompts = examine_prompt_file(options);
  ModelBundle model = open_model(options);
  for (const std::string& note : model.notes) log.info(note);
  if (options.generation.adopt_config && model.generation_config) {
    for (const std::string& line :
         adopt_generation_config(options, *model.generation_config, "generation_config.json")) {
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
  std::optional<RunSchedule> schedule;
  RunPlan plan;
  std::optional<RunPrediction> prediction;
};

void explain(const RunOptions& options, const Decisions& decided, const ModelBundle& model,
             Backend& backend, Log& log) {
  if (options.machine.device == "auto" && !backend.machine().gpu) {
    if (const std::string problem = gpu_problem(); !problem.empty()) {
      log.warning(fmt::format("--device auto takes the CPU: {}", problem));
    }
  }
  log.info(fmt::format("model: {} ({} layers, {} weights of {}), device: {}, {} threads",
                       model.config.architecture, model.config.layers,
                       dtype_name(model.weights_dtype), format_bytes(model.weight_bytes),
                       backend.ops().name(), backend.threads().threads()));
  log.info(describe(decided.plan, model));
  if (decided.schedule) log.info(describe(*decided.schedule));
  if (decided.schedule && options.looking.explain) {
    std::istringstream lines(explain_plan(decided.schedule->plan));
    for (std::string line; std::getline(lines, line);) log.info(line);
  }
}

// Fills what is decided into `options`: the attention method's budget, what a plan settles.
Decisions decide(RunOptions& options, const Job& job, Backend& backend, Progress& progress,
                 Log& log) {
  Decisions decided;
  decided.sparsity = choose_sparsity(options, job.model, job.prompts, backend, progress, log);
  RunProfile profile(options, job.model, backend, progress, log);
  decided.schedule = choose_schedule(options, job.model, job.prompts, backend, profile, log);
  decided.plan = plan_run(options, job.model, backend.machine());
  explain(options, decided, job.model, backend, log);
  if (options.looking.predict) {
    if (const HardwareProfile* found = profile.find()) {
      settle_miss_rate(options, *found, decided.plan.memory, log);
      decided.prediction = predict_run(options, job.model, decided.plan, job.prompts, *found, log);
    }
  }
  if (options.looking.explain) {
    for (const auto& [name, value] : options.origins) {
      log.info(fmt::format("--{} = {} ({})", name, value.value, value.origin));
    }
  }
  return decided;
}

// What the summary knows before the model is loaded.
RunSummary summary_of_setup(const RunOptions& options, const Job& job, const Decisions& decided,
                            Backend& backend) {
  const ModelBundle& model = job.model;
  const RunPlan& plan = decided.plan;
  RunSummary summary;
  summary.model = {.path = options.files.model,
                   .type = model.config.model_type,
                   .fingerprint = model.identity.fingerprint,
                   .weights_dtype = std::string(dtype_name(model.weights_dtype)),
                   .kv_dtype = std::string(dtype_name(plan.kv.dtype))};
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
  if (decided.schedule) {
    summary.placement.plan = decided.schedule->plan;
    summary.placement.plan_origin = decided.schedule->origin;
    summary.placement.plan_profile = decided.schedule->profile;
  }
  summary.prediction = decided.prediction;
  if (options.machine.emulated_link) summary.emulated.emplace_back("link");
  const bool uses_host = plan.memory.host_blocks > 0 || plan.placement.streamed_layers > 0;
  if (uses_host && !backend.machine().gpu) {
    summary.emulated.emplace_back("device memory");
  }
  if (job.prompts.rereadable) summary.total_requests = job.prompts.requests;
  return summary;
}

// The output file: lock, manifest, and what an earlier run already finished.

bool output_exists(const RunOptions& options) {
  const OutputPaths paths(options.files.output);
  struct stat facts {};
  return ::lstat(paths.output.c_str(), &facts) == 0 || ::lstat(paths.part.c_str(), &facts) == 0;
}

std::unique_ptr<OutputFile> open_output(const RunOptions& options, const Job& job,
                                        const Decisions& decided, Backend& backend) {
  Manifest manifest = make_manifest(options, job.prompts, job.model.identity,
                                    dtype_name(decided.plan.kv.dtype), decided.plan.input_tokens);
  manifest.kernels = backend.ops().name();
  manifest.started = job.started;
  if (decided.schedule) manifest.plan_hash = decided.schedule->file_hash;
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
void begin_output(const RunOptions& options, const Decisions& decided, OutputFile& output) {
  output.begin();
  const OutputPaths paths(options.files.output);
  const auto write = [&options](const std::string& path, const std::string& text) {
    write_file_atomically(system_file_ops(), path, text, options.files.private_files ? 0600 : 0666);
  };
  if (decided.sparsity) write(paths.sparsity, sparsity_choice_to_json(*decided.sparsity) + "\n");
  if (decided.schedule && decided.schedule->store) {
    write(paths.plan, plan_to_json(decided.schedule->plan));
  }
}

// Every request through tokenizer, prefill and decode (engine.cpp), records as they finish.

// What turns requests into records, with what it needs around it: completions, or scores.
class Worker {
 public:
  Worker(const RunOptions& options, const RunPlan& plan, const ModelBundle& model,
         LoadedModel& loaded, Backend& backend)
      : preparer_(model.config, model.tokenizer.get(),
                  {model.most_positions(), plan.longest_request, options.reading.truncate,
                   options.reading.no_special, model.context_tokens(), model.chats.get()}),
        engine_({plan.memory.batch_size, plan.prefill_chunk, options.generation.seed}, *plan.policy,
                loaded.decoder, loaded.kv, preparer_, model.tokenizer.get(), backend) {
    if (options.job != JobKind::kScore) return;
    score_preparer_.emplace(
        model.config, model.tokenizer.get(),
        ScorePreparer::Limits{model.config.max_positions, plan.longest_request,
                              options.reading.truncate, options.reading.no_special,
                              !options.scores_prompts()});
    scorer_.emplace(engine_, *score_preparer_, options.token_logprobs);
  }

  [[nodiscard]] CompletionEngine& engine() {
    if (scorer_) return *scorer_;
    return engine_;
  }
  void set_trace(Trace* trace) { engine_.set_trace(trace); }
  void finish_trace() { engine_.finish_trace(); }  // after the last step
  [[nodiscard]] const Engine& measured() const { return engine_; }

 private:
  PromptPreparer preparer_;
  Engine engine_;
  std::optional<ScorePreparer> score_preparer_;
  std::optional<ScoreEngine> scorer_;
};

// A trace of everything while it lives, where --trace asks for one.
class Tracing {
 public:
  Tracing(const RunOptions& options, const std::vector<std::string>& emulated, LoadedModel& loaded,
          Worker& worker, Backend& backend, Log& log)
      : loaded_(loaded), worker_(worker) {
    if (options.looking.trace.empty()) return;
    file_.emplace(options, emulated, trace_, log);
    if (!backend.device().runs_at_once()) {
      stream_spans_.emplace(backend.device(), backend.stream(), trace_);
    }
    loaded.set_trace(&trace_);
    worker.set_trace(&trace_);
  }
  ~Tracing() {
    if (!file_) return;
    worker_.set_trace(nullptr);
    loaded_.set_trace(nullptr);
  }
  Tracing(const Tracing&) = delete;
  Tracing& operator=(const Tracing&) = delete;

 private:
  LoadedModel& loaded_;
  Worker& worker_;
  Trace trace_;
  std::optional<TraceFile> file_;
  std::optional<StreamSpans> stream_spans_;  // goes first, with what the file does not have yet
};

void warn_of_ignored_fields(const PromptReader& prompts, Log& log) {
  for (const auto& [name, lines] : prompts.ignored_fields()) {
    log.warning(fmt::format("field \"{}\" of {} {} is not known and was ignored",
                            escape_untrusted(name), lines, lines == 1 ? "line" : "lines"));
  }
}

// Fills what the run measured into `summary`, also when it ends by an error.
JobEnd run_lines(const RunOptions& options, const Job& job, const RunPlan& plan,
                 LoadedModel& loaded, Backend& backend, OutputFile& output, Progress& progress,
                 RunSummary& summary, Log& log) {
  Worker worker(options, plan, job.model, loaded, backend);
  Tracing tracing(options, summary.emulated, loaded, worker, backend, log);
  PromptReader prompts(options, &job.prompts);
  Watchdog watchdog(options.machine.watchdog_seconds, log, resume_hint(options));
  const auto measure = [&] {
    worker.finish_trace();
    fill_run_numbers(worker.measured(), loaded, plan, cluster_memory(options, job.model), summary);
  };
  progress.begin_phase(options.job == JobKind::kScore ? "scoring" : "generating");
  try {
    const JobEnd end =
        run_job(prompts, output, worker.engine(), progress, summary.total_requests, &watchdog);
    measure();
    warn_of_ignored_fields(prompts, log);
    return end;
  } catch (...) {
    measure();
    throw;
  }
}

void warn_of_small_disk(const RunOptions& options, const Job& job, const RunPlan& plan, Log& log) {
  const std::string warning = disk_warning(options, job.prompts, plan.longest_request);
  if (!warning.empty()) log.warning(warning);
}

// Lines that a dry run looks at: tokenizing takes its time.
constexpr LineLimits kDryRun{.lines = 10000, .bytes = std::uint64_t{64} << 20};

// Exit code 1, as of a run, where lines would become error records.
int report_dry_run(const RunOptions& options, const Job& job, const RunPlan& plan, Log& log) {
  warn_of_small_disk(options, job, plan, log);
  if (options.job == JobKind::kGenerate && job.prompts.rereadable) {
    const LineFaults faults = find_line_faults(options, job.model, plan.longest_request, kDryRun);
    for (const std::string& fault : faults.first) log.warning(fault);
    if (faults.faulty > 0) {
      log.warning(
          fmt::format("{} of {} lines would become error records", faults.faulty, faults.lines));
      return 1;
    }
  }
  log.info("dry run: everything needed is there; nothing was loaded or written");
  return 0;
}

void report_stopped(const RunOptions& options, const PromptFileFacts& prompts,
                    const OutputFile& output, Log& log) {
  if (options.files.to_standard_output) {
    log.info(fmt::format(
        "stopped: {} records were finished, {} printed; an --output FILE "
        "would let the same command go on",
        output.counts().total(), options.files.prints_at_once() ? "all were" : "none was"));
    return;
  }
  log.info(fmt::format(
      "stopped: {} records are kept in {}.part; {}", output.counts().total(), options.files.output,
      prompts.rereadable ? resume_hint(options) : "prompts from a pipe cannot be resumed"));
}

}  // namespace

int generate(RunOptions options, Progress& progress, Log& log) {
  const Clock::time_point start = Clock::now();
  const Job job = open_job(options, progress, log);
  const auto backend = Backend::open_for_job(options.machine);
  const Decisions decided = decide(options, job, *backend, progress, log);
  if (options.looking.dry_run) {
    return report_dry_run(options, job, decided.plan, log);
  }

  // Where there is no output yet it is created only after loading, so that refused weights leave
  // nothing behind; nor does --overwrite delete anything before.
  std::unique_ptr<OutputFile> output;
  if (output_exists(options)) {
    output = open_output(options, job, decided, *backend);
    if (const auto code = exit_code_if_complete(*output, options, log)) return *code;
    report_resumed(*output, job.prompts, log);
  }
  warn_of_small_disk(options, job, decided.plan, log);

  RunSummary summary = summary_of_setup(options, job, decided, *backend);
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
    // Load: weights into the device's memory, then the buffers around them.
    progress.begin_phase("loading model");
    const Clock::time_point load_start = Clock::now();
    LoadedModel loaded(job.model, options, decided.plan, *backend, progress, log);
    summary.seconds.load = seconds_since(load_start);
    if (!output) {
      output = open_output(options, job, decided, *backend);
      // Somebody else may have finished it meanwhile.
      if (const auto code = exit_code_if_complete(*output, options, log)) return *code;
    }
    begin_output(options, decided, *output);

    const JobEnd end =
        run_lines(options, job, decided.plan, loaded, *backend, *output, progress, summary, log);

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
