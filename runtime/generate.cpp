#include "runtime/generate.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <chrono>
#include <optional>
#include <sstream>

#include "base/format_bytes.h"
#include "runtime/backend.h"
#include "runtime/calibrate/choose_sparsity.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/loaded_model.h"
#include "runtime/engine/model_bundle.h"
#include "runtime/engine/score_engine.h"
#include "runtime/job/generation_config.h"
#include "runtime/job/job.h"
#include "runtime/job/run_summary.h"
#include "runtime/job/trace_file.h"
#include "runtime/machine.h"
#include "runtime/plan/plan_file.h"
#include "runtime/plan/prediction.h"
#include "runtime/plan/run_schedule.h"
#include "runtime/signals.h"

namespace triphase {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void explain_options(const RunOptions& options, Log& log) {
  for (const auto& [name, value] : options.origins) {
    log.info(fmt::format("--{} = {} ({})", name, value.value, value.origin));
  }
}

// Where the numbers of a run come together, whether it ends well or not.
void fill_engine_numbers(const EngineStats& stats, const PlacementStats& placement,
                         const std::vector<PhaseBoundary>& boundaries, const LoadedModel& loaded,
                         const RunPlan& plan, RunSummary& summary) {
  summary.prefill_seconds = stats.prefill_seconds;
  summary.decode_seconds = stats.decode_seconds;
  summary.prompt_tokens = stats.computed_prompt_tokens;
  summary.shared_prompt_tokens = stats.shared_prompt_tokens;
  summary.generated_tokens = stats.generated_tokens;
  summary.steps = stats.steps;
  summary.max_batch = static_cast<std::uint64_t>(stats.max_batch);
  summary.recomputed_tokens = placement.recomputed_tokens;
  summary.preemptions = placement.swaps + placement.drops;
  summary.phases = stats.phases;
  summary.phase_boundaries = boundaries;
  if (const AttentionRunner* attention = loaded.decoder.attention()) {
    const AttentionRunner::Touched& touched = attention->touched();
    if (touched.prompt_context > 0) {
      summary.prompt_tokens_touched_fraction = touched.prompt_attended / touched.prompt_context;
    }
    if (touched.context > 0) {
      summary.tokens_touched_fraction = touched.attended / touched.context;
      const AttentionRunner::ReadBytes bytes =
          attention->read_bytes(static_cast<std::int64_t>(dtype_bytes(loaded.kv.shape().dtype)));
      summary.attention_bytes = {bytes.touched, bytes.dense};
    }
  }
  if (loaded.transfers) {
    // What is on its way still (the next step's weights) counts, as it does in a trace.
    loaded.transfers->drain();
    summary.bytes_to_device = loaded.transfers->stats(Lane::kToDevice).bytes;
    summary.bytes_to_host = loaded.transfers->stats(Lane::kToHost).bytes;
    const HostReads::Bytes& read = loaded.decoder.kv_step().reads().bytes();
    summary.to_device = {
        .weights = loaded.decoder.weight_stream().brought_bytes(),
        .kv_reloads = placement.reloaded_blocks * KvStore::host_block_bytes(loaded.kv.shape()),
        .kv_blocks = read.blocks,
        .kv_tokens = read.tokens,
        .inputs = read.inputs,
        .results = loaded.decoder.host_attention() != nullptr
                       ? loaded.decoder.host_attention()->use().results
                       : 0};
    const KvStore::EarlyUse early = loaded.kv.early_use();
    summary.early = {early.brought, early.unused};
    summary.token_cache = {plan.memory.cache, read.chosen, read.cached};
  }
  if (const HostAttention* host = loaded.decoder.host_attention()) {
    const HostAttention::Use& use = host->use();
    summary.host_attention = {use.rows, use.queries, use.results, use.kv};
  }
  if (const LayerInputs* inputs = loaded.decoder.layer_inputs()) {
    const auto layers = static_cast<std::uint64_t>(loaded.kv.shape().layers);
    summary.layer_inputs = {inputs->tokens(), inputs->use().saved_bytes,
                            inputs->use().recomputed_tokens / layers};
  }
  const auto add = [&summary](MemoryTier tier, MemoryTag tag, std::uint64_t planned,
                              std::uint64_t peak) {
    summary.memory.push_back(
        {std::string(memory_tier_name(tier)), std::string(memory_tag_name(tag)), planned, peak});
  };
  const MemoryPool& pool = loaded.pool;
  const KvResidency& residency = loaded.kv.residency();
  const KvStore::Shape& shape = loaded.kv.shape();
  const std::uint64_t workspace = pool.use(MemoryTag::kWorkspace).peak;
  const std::uint64_t kv_beside_pages =
      plan.memory.kv -
      static_cast<std::uint64_t>(plan.memory.kv_pages) * KvStore::page_bytes(shape);
  summary.memory.clear();
  const auto device = MemoryTier::kDevice;
  add(device, MemoryTag::kWeights, plan.memory.weights, pool.use(MemoryTag::kWeights).peak);
  add(device, MemoryTag::kKv, plan.memory.kv,
      static_cast<std::uint64_t>(residency.peak_pages()) * KvStore::page_bytes(shape) +
          kv_beside_pages);
  if (plan.memory.key_columns > 0) {
    // KV memory too, but what it costs beside K and V should be seen.
    add(device, MemoryTag::kKeyColumns, plan.memory.key_columns,
        static_cast<std::uint64_t>(loaded.kv.key_columns().peak() * shape.layers) *
            KvStore::key_column_bytes(shape));
  }
  if (plan.memory.staging > 0) {
    const std::uint64_t staging = plan.memory.staging + plan.memory.cache;
    add(device, MemoryTag::kStaging, staging, staging);
  }
  add(device, MemoryTag::kActivations,
      plan.memory.scratch - workspace - summary.cluster_bytes - plan.selection,
      pool.use(MemoryTag::kActivations).peak);
  if (plan.selection > 0) {
    add(device, MemoryTag::kSelection, plan.selection, pool.use(MemoryTag::kSelection).peak);
  }
  if (summary.cluster_bytes > 0) {
    summary.memory.push_back({std::string(memory_tier_name(device)), "clusters",
                              summary.cluster_bytes, summary.cluster_bytes});
  }
  add(device, MemoryTag::kWorkspace, workspace, workspace);
  const auto host = MemoryTier::kHost;
  if (plan.host_weights > 0) {
    add(host, MemoryTag::kWeights, plan.host_weights,
        loaded.host_pool.use(MemoryTag::kWeights).peak);
  }
  if (plan.memory.host_blocks > 0) {
    add(host, MemoryTag::kKv, plan.memory.host_kv,
        static_cast<std::uint64_t>(residency.peak_host_blocks()) *
            KvStore::host_block_bytes(shape));
  }
  if (plan.host_scratch > 0) {
    const std::uint64_t buffers = loaded.host_pool.use(MemoryTag::kWorkspace).peak;
    add(host, MemoryTag::kActivations, plan.host_scratch - buffers,
        loaded.host_pool.use(MemoryTag::kActivations).peak);
    add(host, MemoryTag::kWorkspace, buffers, buffers);
  }
  if (plan.memory.host_inputs > 0) {
    add(host, MemoryTag::kInputs, plan.memory.host_inputs,
        static_cast<std::uint64_t>(residency.peak_input_blocks() * shape.layers) *
            KvStore::input_bytes(shape));
  }
}

// What turns lines into records, with what it needs around it: completions, or scores.
class Worker {
 public:
  Worker(const RunOptions& options, const RunPlan& plan, const ModelBundle& model,
         LoadedModel& loaded, Backend& backend)
      : preparer_(model.config, model.tokenizer.get(),
                  {model.most_positions(), plan.longest_line, options.truncate, options.no_special,
                   model.context_tokens()}),
        engine_({plan.memory.batch_size, plan.prefill_chunk, options.seed}, *plan.policy,
                loaded.decoder, loaded.kv, preparer_, model.tokenizer.get(), backend.threads(),
                backend.stream()) {
    if (options.job != JobKind::kScore) return;
    score_preparer_.emplace(
        model.config, model.tokenizer.get(),
        ScorePreparer::Limits{model.config.max_positions, plan.longest_line, options.truncate,
                              options.no_special, !options.scores_prompts()});
    scorer_.emplace(engine_, *score_preparer_, options.token_logprobs);
  }

  [[nodiscard]] CompletionEngine& engine() {
    if (scorer_) return *scorer_;
    return engine_;
  }
  void set_trace(Trace* trace) { engine_.set_trace(trace); }
  // After the last step: the run's numbers, and the end of what is traced.
  void finish(const LoadedModel& loaded, const RunPlan& plan, RunSummary& summary) {
    engine_.finish_trace();
    const PlacementDriver& placement = engine_.placement();
    fill_engine_numbers(engine_.stats(), placement.stats(), placement.phases().boundaries(), loaded,
                        plan, summary);
  }

 private:
  PromptPreparer preparer_;
  Engine engine_;
  std::optional<ScorePreparer> score_preparer_;
  std::optional<ScoreEngine> scorer_;
};

// A trace of everything from here to its end, where --trace asks for one.
class Tracing {
 public:
  Tracing(const RunOptions& options, const std::vector<std::string>& emulated, LoadedModel& loaded,
          Worker& worker, Log& log)
      : loaded_(loaded), worker_(worker) {
    if (options.trace.empty()) return;
    file_.emplace(options, emulated, trace_, log);
    loaded.set_trace(&trace_);
    worker.set_trace(&trace_);
  }
  ~Tracing() { finish(); }
  Tracing(const Tracing&) = delete;
  Tracing& operator=(const Tracing&) = delete;

  void finish() {
    if (!file_) return;
    worker_.set_trace(nullptr);
    loaded_.set_trace(nullptr);
    file_.reset();
  }

 private:
  LoadedModel& loaded_;
  Worker& worker_;
  Trace trace_;
  std::optional<TraceFile> file_;
};

// What a run met, for people: "Phase II: 12 of its lines, at 96 to 240 tokens, from step 31 on".
void report_phases(const RunSummary& summary, Log& log) {
  for (const PhaseBoundary& at : summary.phase_boundaries) {
    const std::string contexts = at.least_context == at.most_context
                                     ? fmt::format("{}", at.least_context)
                                     : fmt::format("{} to {}", at.least_context, at.most_context);
    log.info(fmt::format("{}: {} lines entered it, at {} tokens of context, from step {} on",
                         phase_name(at.phase), at.sequences, contexts, at.first_step));
  }
}

RunSummary summary_of_setup(const RunOptions& options, const PromptFileFacts& prompt_facts,
                            const ModelBundle& model, const RunPlan& plan, Backend& backend) {
  RunSummary summary;
  summary.model_path = options.model;
  summary.model_type = model.config.model_type;
  summary.model_fingerprint = model.identity.fingerprint;
  summary.weights_dtype = dtype_name(model.weights_dtype);
  summary.kv_dtype = dtype_name(plan.kv.dtype);
  summary.device = fmt::format("cpu: {}", inspect_machine().cpu_name);
  summary.threads = backend.threads().threads();
  summary.simd = backend.ops().name();
  summary.attention_policy = attention_name(options.attention.kind);
  if (model.fixed_context) {
    summary.fixed_context = {options.fixed_context, model.fixed_context->hash,
                             model.fixed_context->tokens.size()};
  }
  summary.cluster_bytes = cluster_memory(options, model);
  summary.placement_policy = options.policy;
  if (options.emulated_link) summary.emulated.emplace_back("link");
  if (plan.memory.host_blocks > 0 || plan.placement.streamed_layers > 0) {
    summary.emulated.emplace_back("device memory");
  }
  if (prompt_facts.rereadable) summary.total_requests = prompt_facts.requests;
  return summary;
}

// What a fixed context spared, for people.
void report_fixed_context(const RunSummary& summary, Log& log) {
  if (!summary.fixed_context) return;
  std::string line = fmt::format(
      "fixed context: {} tokens in front of every line, {} prompt tokens computed and {} shared",
      summary.fixed_context->tokens, summary.prompt_tokens, summary.shared_prompt_tokens);
  if (summary.attention_bytes) {
    line += fmt::format("; decoding touched {:.1f} % of the tokens and read {} of KV, dense {}",
                        100.0 * summary.tokens_touched_fraction,
                        format_bytes(static_cast<std::uint64_t>(summary.attention_bytes->touched)),
                        format_bytes(static_cast<std::uint64_t>(summary.attention_bytes->dense)));
  }
  if (summary.prompt_tokens_touched_fraction) {
    line +=
        fmt::format("; prompts touched {:.1f} %", 100.0 * *summary.prompt_tokens_touched_fraction);
  }
  log.info(line);
}

// The last line of a run: what came out, and how to go on.
std::string closing_line(const RunOptions& options, const RecordCounts& counts,
                         const RunSummary& summary) {
  const double busy = std::max(summary.prefill_seconds + summary.decode_seconds, 1e-9);
  const std::string speed =
      options.job == JobKind::kScore
          ? fmt::format("{} tokens computed, {} shared: {:.1f} tok/s", summary.prompt_tokens,
                        summary.shared_prompt_tokens,
                        static_cast<double>(summary.prompt_tokens) / busy)
          : fmt::format(
                "{} prompt and {} generated tokens: {:.1f} generated tok/s over prefill and "
                "decode",
                summary.prompt_tokens, summary.generated_tokens,
                static_cast<double>(summary.generated_tokens) / busy);
  std::string link;
  if (summary.bytes_to_device + summary.bytes_to_host > 0) {
    link = fmt::format(", {} over the link to the device and {} back",
                       format_bytes(summary.bytes_to_device), format_bytes(summary.bytes_to_host));
    const TokenCacheUse& cache = summary.token_cache;
    if (cache.budget > 0 && cache.chosen > 0) {
      link +=
          fmt::format(", {:.0f} % of {} chosen on the host found in the token cache",
                      100.0 * static_cast<double>(cache.found) / static_cast<double>(cache.chosen),
                      format_bytes(cache.chosen));
    }
  }
  return fmt::format("{}: {} records, {} failed{}; {}{}, wall {:.1f} s", options.output,
                     counts.total(), counts.failed(),
                     counts.failed() > 0 ? " (--retry-failed redoes them)" : "", speed, link,
                     summary.wall_seconds);
}

bool output_exists(const RunOptions& options) {
  const OutputPaths paths(options.output);
  struct stat facts {};
  return ::lstat(paths.output.c_str(), &facts) == 0 || ::lstat(paths.part.c_str(), &facts) == 0;
}

}  // namespace

int generate(RunOptions options, Log& log) {
  const Clock::time_point start = Clock::now();
  Progress progress(log, options.progress);
  if (options.shard.count > 1) {
    log.info(fmt::format("shard {}/{} (from {})", options.shard.index, options.shard.count,
                         options.shard.origin));
  }

  // 1. The job: where it reads, where it writes, what model it names. Nothing is written yet.
  job_files(options).check();
  check_trace_location(options);
  progress.begin_phase("reading prompts");
  const PromptFileFacts prompt_facts = examine_prompt_file(options);
  ModelBundle model = open_model(options);
  for (const std::string& note : model.notes) log.info(note);
  if (options.adopt_generation_config && model.generation_config) {
    for (const std::string& line :
         adopt_generation_config(options, *model.generation_config, "generation_config.json")) {
      log.info(line);
    }
  }

  // 2. Does it fit, and how is memory divided? Known before anything large is loaded.
  const auto backend = Backend::open(options.device, options.threads);
  const std::optional<SparsityChoice> sparsity =
      choose_sparsity(options, model, prompt_facts, *backend, progress, log);
  RunProfile profile(options, model, *backend, progress, log);
  const std::optional<RunSchedule> schedule =
      choose_schedule(options, model, prompt_facts, *backend, profile, log);
  RunPlan plan = plan_run(options, model, backend->machine());
  log.info(fmt::format("model: {} ({} layers, {} weights of {}), device: {}, {} threads",
                       model.config.architecture, model.config.layers,
                       dtype_name(model.weights_dtype), format_bytes(model.weight_bytes),
                       backend->ops().name(), backend->threads().threads()));
  log.info(describe(plan, model));
  if (schedule) log.info(describe(*schedule));
  if (schedule && options.explain) {
    std::istringstream lines(explain_plan(schedule->plan));
    for (std::string line; std::getline(lines, line);) log.info(line);
  }
  std::optional<RunPrediction> prediction;
  if (options.predict) {
    if (const HardwareProfile* found = profile.find()) {
      prediction = predict_run(options, model, plan, prompt_facts, *found, log);
    }
  }
  if (options.explain) explain_options(options, log);
  if (options.dry_run) {
    log.info("dry run: everything needed is there; nothing was loaded or written");
    return 0;
  }

  // 3. The output file: lock, manifest, and what an earlier run already finished. Where there is
  // none yet it is created only after loading, so that refused weights leave nothing behind; nor
  // does --overwrite delete anything before.
  RunSummary summary = summary_of_setup(options, prompt_facts, model, plan, *backend);
  std::optional<OutputFile> output;
  summary.sparsity = sparsity;
  summary.prediction = prediction;
  if (schedule) {
    summary.plan = schedule->plan;
    summary.plan_origin = schedule->origin;
    summary.plan_profile = schedule->profile;
  }
  const auto open_output = [&] {
    Manifest manifest = make_manifest(options, prompt_facts, model.identity,
                                      dtype_name(plan.kv.dtype), plan.input_tokens);
    manifest.kernels = backend->ops().name();
    if (schedule) manifest.plan_hash = schedule->file_hash;
    output.emplace(options, prompt_facts, manifest);
    summary.resumed = output->resumed();
  };
  const auto begin_output = [&] {
    output->begin();
    // Before the first record, so that a resumed job follows the same plan and the same sparsity.
    if (sparsity) {
      write_file_atomically(system_file_ops(), OutputPaths(options.output).sparsity,
                            sparsity_choice_to_json(*sparsity) + "\n",
                            options.private_files ? 0600 : 0666);
    }
    if (schedule && schedule->store) {
      write_file_atomically(system_file_ops(), OutputPaths(options.output).plan,
                            plan_to_json(schedule->plan), options.private_files ? 0600 : 0666);
    }
  };
  const auto end_if_complete = [&]() -> std::optional<int> {
    if (!output || !output->already_complete()) return std::nullopt;
    write_missing_summary(options, output->counts());
    log.info(fmt::format("{} is already complete; --overwrite starts anew", options.output));
    return exit_code_of(output->counts());
  };
  if (output_exists(options)) open_output();
  if (const auto code = end_if_complete()) return *code;
  if (output && output->resumed() > 0) {
    log.info(fmt::format("resuming: {} of {} records are there already", output->resumed(),
                         prompt_facts.rereadable ? std::to_string(prompt_facts.requests) : "?"));
  }

  const auto close_summary = [&](int exit_code, const std::string& error) {
    summary.wall_seconds = seconds_since(start);
    summary.records = output->counts();
    summary.exit_code = exit_code;
    summary.error = error;
    write_summary(summary, options);
  };

  // The run's own error matters more than that its summary cannot be written either.
  const auto close_summary_if_possible = [&](int code, const std::string& error) {
    try {
      if (output && output->begun()) close_summary(code, error);
    } catch (const std::exception&) {
    }
  };

  try {
    // 4. Load: weights into the device's memory, then the buffers around them.
    progress.begin_phase("loading model");
    const Clock::time_point load_start = Clock::now();
    LoadedModel loaded(model, options, plan, *backend, progress, log);
    summary.load_seconds = seconds_since(load_start);
    if (!output) open_output();
    if (const auto code = end_if_complete()) return *code;  // somebody else finished it meanwhile
    begin_output();

    // 5. Run: every line through tokenizer, prefill and decode (engine.cpp), records as they
    // finish.
    Worker worker(options, plan, model, loaded, *backend);
    Tracing tracing(options, summary.emulated, loaded, worker, log);
    PromptReader prompts(options, &prompt_facts);
    Watchdog watchdog(options.watchdog_seconds, log);
    progress.begin_phase(options.job == JobKind::kScore ? "scoring" : "generating");
    JobEnd end = JobEnd::kStopped;
    try {
      end = run_job(prompts, *output, worker.engine(), progress, summary.total_requests, &watchdog);
    } catch (...) {
      worker.finish(loaded, plan, summary);
      throw;
    }
    worker.finish(loaded, plan, summary);
    tracing.finish();

    // 6. End: stopped by a signal, or complete and put into place in one rename.
    if (end == JobEnd::kStopped) {
      const int signal_number = stop_signal();
      progress.finish();
      close_summary(128 + signal_number, "stopped by a signal");
      log.info(
          fmt::format("stopped: {} records are kept in {}.part; run the same command to resume",
                      output->counts().total(), options.output));
      die_by_signal(signal_number);
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
  report_phases(summary, log);
  report_fixed_context(summary, log);
  log.info(closing_line(options, output->counts(), summary));
  return result;
}

}  // namespace triphase
