#include "runtime/options/parse_run_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "runtime/engine/sampling_limits.h"
#include "runtime/options/option_names.h"
#include "runtime/refuse.h"

namespace triphase {
namespace {

[[noreturn]] void refuse_pair(std::string_view first, std::string_view second) {
  refuse_conflict(first, fmt::format("together with {}", second), "only one of them");
}

// Earlier records are either kept or discarded, and a pipe is read once: nothing can be looked at
// before, or again. `input`: the option that names the file of lines.
void refuse_job_contradictions(const OptionValues& values, std::string_view input) {
  const auto if_so = [](bool so, std::string option) { return so ? std::move(option) : ""; };
  const std::string piped = if_so(values.text(input) == "-", fmt::format("--{} -", input));
  const std::string overwrite = if_so(values.flag("overwrite"), "--overwrite");
  const std::string never = if_so(values.text("resume") == "never", "--resume=never");
  const std::string require = if_so(values.text("resume") == "require", "--resume=require");
  const std::string retry = if_so(values.flag("retry-failed"), "--retry-failed");
  const std::string strict = if_so(values.flag("strict"), "--strict");
  const std::string chosen = if_so(values.text("kv-sparsity") == "auto", "--kv-sparsity auto");
  const std::pair<std::string_view, std::string_view> pairs[] = {
      {overwrite, require}, {overwrite, retry}, {never, retry},  {piped, require},
      {piped, retry},       {piped, strict},    {piped, chosen},
  };
  for (const auto& [first, second] : pairs) {
    if (!first.empty() && !second.empty()) refuse_pair(first, second);
  }
}

void refuse_larger_part(const OptionValues& values) {
  if (values.has("device-memory") && values.has("device-kv-memory") &&
      values.size("device-kv-memory") > values.size("device-memory")) {
    refuse_conflict("--device-kv-memory",
                    fmt::format("{} of --device-memory {}", values.text("device-kv-memory"),
                                values.text("device-memory")),
                    "a part of it");
  }
}

SamplingParams read_sampling(const OptionValues& values) {
  SamplingParams sampling;
  sampling.max_tokens = values.integer("max-tokens");
  sampling.temperature = values.real("temperature");
  sampling.top_p = values.real("top-p");
  sampling.top_k = values.integer("top-k");
  sampling.min_p = values.real("min-p");
  sampling.repetition_penalty = values.real("repetition-penalty");
  sampling.stop = values.texts("stop");
  if (sampling.stop.size() > kStopStringsLimit) {
    refuse_option("--stop", fmt::format("{} strings", sampling.stop.size()),
                  fmt::format("at most {}", kStopStringsLimit));
  }
  for (const std::string& stop : sampling.stop) {
    if (stop.size() <= kStopBytesLimit) continue;
    refuse_option("--stop", fmt::format("{} bytes", stop.size()),
                  fmt::format("at most {}", kStopBytesLimit));
  }
  if (values.has("logprobs")) sampling.logprobs = values.integer("logprobs");
  sampling.ignore_eos = values.flag("ignore-eos");
  return sampling;
}

[[noreturn]] void bad_shard(std::string_view origin, std::string_view found,
                            std::string_view expected) {
  throw Error(ErrorRole::kUsage, "E-CLI-SHARD", origin)
      .found(found)
      .expected(expected)
      .hint("--shard i/n sets it explicitly");
}

// i = (id - min) / step of count, which must be whole and below count.
std::optional<Shard> slurm_array_shard(const Environment& environment) {
  const char* id_text = environment("SLURM_ARRAY_TASK_ID");
  const char* count_text = environment("SLURM_ARRAY_TASK_COUNT");
  if (id_text == nullptr || count_text == nullptr) return std::nullopt;
  const char* min_text = environment("SLURM_ARRAY_TASK_MIN");
  const char* step_text = environment("SLURM_ARRAY_TASK_STEP");
  const auto id = read_unsigned(id_text);
  const auto count = read_unsigned(count_text);
  const auto min = read_unsigned(min_text == nullptr ? "0" : min_text);
  const auto step = read_unsigned(step_text == nullptr ? "1" : step_text);
  const std::string found =
      fmt::format("id {}, min {}, step {}, count {}", id_text, min_text == nullptr ? "0" : min_text,
                  step_text == nullptr ? "1" : step_text, count_text);
  constexpr std::string_view kExpected = "(id - min) / step to be whole and below the count";
  if (!id || !count || !min || !step || *step == 0 || *id < *min) {
    bad_shard("SLURM_ARRAY_TASK_ID", found, kExpected);
  }
  const std::uint64_t index = (*id - *min) / *step;
  if ((*id - *min) % *step != 0 || index >= *count) {
    bad_shard("SLURM_ARRAY_TASK_ID", found, kExpected);
  }
  return Shard{index, *count, "SLURM_ARRAY_TASK_ID"};
}

std::optional<Shard> rank_shard(const Environment& environment, const char* rank_name,
                                const char* size_name) {
  const char* rank_text = environment(rank_name);
  const char* size_text = environment(size_name);
  if (rank_text == nullptr || size_text == nullptr) return std::nullopt;
  const auto rank = read_unsigned(rank_text);
  const auto size = read_unsigned(size_text);
  if (!rank || !size || *rank >= *size) {
    bad_shard(rank_name, fmt::format("{} of {}", rank_text, size_text), "a rank below the size");
  }
  return Shard{*rank, *size, rank_name};
}

// A task of srun. Batch scripts and shells of an allocation have a rank and its size as well, but
// are alone: they are no step, or one of those that Slurm numbers from the top.
std::optional<Shard> slurm_step_shard(const Environment& environment) {
  constexpr std::uint64_t kNoStepOfSrun = 0xfffffff0;
  const char* step_text = environment("SLURM_STEP_ID");
  if (step_text == nullptr) return std::nullopt;
  const auto step = read_unsigned(step_text);
  if (!step || *step >= kNoStepOfSrun) return std::nullopt;
  return rank_shard(environment, "SLURM_PROCID", "SLURM_NTASKS");
}

std::string joined(const std::vector<std::string>& texts) {
  return fmt::format("{}", fmt::join(texts, ", "));
}

// What every job has: where its lines come from, how they are read, and where records go.
void read_job_options(const OptionValues& values, std::string_view input,
                      const Environment& environment, RunOptions& options) {
  refuse_job_contradictions(values, input);
  options.files.prompts = values.text(input);
  options.files.output = values.text("output");
  options.reading.truncate = value_of(kTruncateNames, values.text("truncate")).value();
  options.reading.strict = values.flag("strict");
  options.reading.replace_invalid_utf8 = values.text("invalid-utf8") == "replace";
  options.reading.allow_duplicate_ids = values.flag("allow-duplicate-ids");
  options.reading.no_special = values.flag("no-special");
  options.reading.max_line_bytes = values.size("max-line-bytes");

  options.files.order = value_of(kOrderNames, values.text("order")).value();
  options.files.resume = value_of(kResumeNames, values.text("resume")).value();
  options.files.overwrite = values.flag("overwrite");
  options.files.retry_failed = values.flag("retry-failed");
  options.files.sync_seconds = values.seconds("sync-every");
  options.files.lock = !values.flag("no-lock");
  options.files.private_files = values.flag("private");
  options.files.shard =
      find_shard(values.text("shard"), values.all().at("shard").origin, environment);
  options.looking.dry_run = values.flag("dry-run");
  options.looking.explain = values.flag("explain");
}

}  // namespace

void read_model_options(const OptionValues& values, RunOptions& options) {
  options.files.model = values.text("model");
  options.machine.threads = values.integer("threads");
  options.machine.device = values.text("device");
  options.machine.deterministic = values.flag("deterministic");
  options.machine.device_memory = values.optional_size("device-memory");
  options.looking.progress = value_of(kProgressNames, values.text("progress")).value();
}

void read_weight_options(const OptionValues& values, RunOptions& options) {
  options.weights.random = values.flag("random-weights");
  options.weights.check = value_of(kCheckWeightsNames, values.text("check-weights")).value();
  options.weights.allow_trailing_bytes = values.flag("allow-trailing-bytes");
}

double sparsity_option(const std::string& text) {
  const std::optional<double> sparsity = read_real(text);
  if (!sparsity || *sparsity < 0.0 || *sparsity > kMaxSparsity) {
    refuse_option("--kv-sparsity", text,
                  fmt::format("a number from 0 to {}; 0.8 leaves out 80 %", kMaxSparsity));
  }
  return *sparsity;
}

void check_needs_no_context(const AttentionOptions& attention) {
  if (!needs_fixed_context(attention)) return;
  refuse_conflict(fmt::format("--attention {}", attention_name(attention.kind)),
                  "without --fixed-context", "the directory of a context's key clusters with it",
                  "triphase cluster makes one");
}

EmulatedLink link_option(const std::string& text) {
  const std::optional<EmulatedLink> link = read_link(text);
  if (!link) {
    refuse_option("--emulate-link", text,
                  "a rate in GB/s or MB/s and, after a comma, a time in us: 20GB/s,2us");
  }
  return *link;
}

Shard find_shard(const std::string& option_text, std::string_view option_origin,
                 const Environment& environment) {
  if (!option_text.empty()) {
    const std::size_t slash = std::min(option_text.find('/'), option_text.size());
    const std::string_view text = option_text;
    const auto index = read_unsigned(text.substr(0, slash));
    const auto count = read_unsigned(text.substr(std::min(slash + 1, text.size())));
    if (!index || !count || *index >= *count) {
      bad_shard("--shard", option_text, "i/n with i from 0 and below n");
    }
    return {*index, *count, std::string(option_origin)};
  }
  if (const auto shard = slurm_array_shard(environment)) return *shard;
  if (const auto shard = slurm_step_shard(environment)) return *shard;
  if (const auto shard = rank_shard(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")) {
    return *shard;
  }
  return {};
}

void read_attention_options(const OptionValues& values, AttentionOptions& attention) {
  // Of a long and of a short context: some budgets are numbers of tokens, some are shares.
  const auto budgets = [](const AttentionOptions& options) {
    return std::array{budget_tokens(options, 100'000, 100'000), budget_tokens(options, 1000, 100)};
  };
  const AttentionOptions plain{.kind = attention.kind};
  const std::string sparsity = values.text("kv-sparsity");
  for (const std::string& option : values.texts("attention-option")) {
    AttentionOptions alone = plain;
    set_attention_option(alone, option);
    if (sparsity.empty() || budgets(alone) == budgets(plain)) continue;
    refuse_conflict("--attention-option",
                    fmt::format("{} beside --kv-sparsity {}", option, sparsity),
                    "one of them: both say how many tokens are attended");
  }
  if (!sparsity.empty() && sparsity != "auto") {
    set_keep_ratio(attention, 1.0 - sparsity_option(sparsity));
  }
  for (const std::string& option : values.texts("attention-option")) {
    set_attention_option(attention, option);
  }
  if (attention.squeezed.coarse_threshold && !attention.squeezed.two_levels) {
    refuse_conflict("--attention-option", "squeezed.coarse_threshold without groups of clusters",
                    "squeezed.levels=2 with it");
  }
}

bool is_option_of(const std::string& option, const std::string& method) {
  return option.starts_with(method + ".");
}

void refuse_stray_options(std::span<const std::string> attention_options,
                          std::span<const std::string> methods) {
  for (const std::string& option : attention_options) {
    const bool known = std::ranges::any_of(
        methods, [&](const std::string& method) { return is_option_of(option, method); });
    if (known) continue;
    throw Error(ErrorRole::kUsage, "E-CLI-ATTOPTION", "--attention-option")
        .found(option)
        .expected(fmt::format("METHOD.NAME=VALUE with one of {}", fmt::join(methods, ", ")));
  }
}

namespace {

// How decoding attends. Only triphase run has prompts to choose a sparsity by.
void read_attention(const OptionValues& values, RunOptions& options) {
  options.attention.kind = attention_from_name(values.text("attention"));
  read_attention_options(values, options.attention);
}

void read_auto_sparsity(const OptionValues& values, RunOptions& options) {
  options.auto_sparsity = values.text("kv-sparsity") == "auto";
  options.max_divergence = values.real("max-divergence");
  if (!options.auto_sparsity && values.given("max-divergence")) {
    refuse_conflict("--max-divergence", "alone", "--kv-sparsity auto with it");
  }
  if (!options.auto_sparsity) return;
  AttentionOptions attention;
  attention.kind = attention_from_name(values.text("attention"));
  if (has_keep_ratio(attention)) return;
  refuse_conflict("--kv-sparsity auto",
                  fmt::format("with --attention {}", attention_name(attention.kind)),
                  "a sparse --attention that attends a share of the tokens, such as swa or sparq");
}

// Of run, score and eval.
void read_batch_options(const OptionValues& values, RunOptions& options) {
  read_model_options(values, options);
  read_weight_options(values, options);
  options.machine.batch_size = values.integer("batch-size");
  options.machine.prefill_chunk = values.integer("prefill-chunk");
  options.machine.cached_hidden_states = values.integer("cached-hidden-states");
}

// Of run and score.
void read_machine_options(const OptionValues& values, RunOptions& options) {
  read_batch_options(values, options);
  read_attention(values, options);
  refuse_larger_part(values);
  options.machine.device_kv_memory = values.optional_size("device-kv-memory");
  options.machine.token_cache = values.optional_size("token-cache");
  options.machine.host_memory = values.optional_size("host-memory");
  options.machine.kv_dtype = dtype_from_name(values.text("kv-dtype"));
  options.machine.policy = values.text("policy");
  options.machine.policy_options = values.texts("policy-option");
  options.machine.kv_block = values.integer("kv-block");
  options.machine.max_context = values.integer("max-context");
  options.machine.watchdog_seconds = values.seconds("watchdog");
  options.looking.redact = values.flag("redact");

  for (const auto& [name, value] : values.all()) {
    if (name == "help") continue;
    const bool is_flag = find_option(values.command(), name)->type == OptionType::kFlag;
    const std::string unset = is_flag ? "off" : "not set";
    options.origins[name] = {value.texts.empty() ? unset : joined(value.texts), value.origin};
  }
}

void read_fixed_context(const OptionValues& values, RunOptions& options) {
  options.files.fixed_context = values.text("fixed-context");
  if (options.files.fixed_context.empty()) check_needs_no_context(options.attention);
}

}  // namespace

RunOptions parse_eval_options(const OptionValues& values) {
  RunOptions options;
  read_batch_options(values, options);
  options.files.fixed_context = values.text("fixed-context");
  options.machine.policy = "device-only";
  return options;
}

namespace {

// Which plan --policy triphase follows. What a plan decides cannot be given beside it.
void read_plan_options(const OptionValues& values, RunOptions& options) {
  const bool plans = values.has("plan") || values.has("profile");
  for (const char* dependent : {"plan-force", "plan-strict"}) {
    if (values.flag(dependent) && !plans) {
      refuse_conflict(fmt::format("--{}", dependent), "alone", "--plan or --profile with it");
    }
  }
  if (values.has("plan") && values.has("profile")) refuse_pair("--plan", "--profile");
  const std::string_view which = values.has("plan") ? "--plan" : "--profile";
  options.looking.predict = values.flag("predict");
  // A prediction needs the machine's times under every policy.
  const bool only_predicts = options.looking.predict && !values.has("plan");
  const bool other = options.machine.policy != "triphase";
  if (plans && !only_predicts && (other || !options.machine.policy_options.empty())) {
    refuse_conflict(which, other ? "--policy " + options.machine.policy : "--policy-option",
                    "--policy triphase, which then has no options: the others follow no plan");
  }
  options.plan.file = values.text("plan");
  options.plan.force = values.flag("plan-force");
  options.plan.strict = values.flag("plan-strict");
  options.plan.profile = values.text("profile");
  options.plan.recompute = value_of(kRecomputeNames, values.text("recompute")).value();
  const Shard& shard = options.files.shard;
  if (options.plan.recompute == RecomputeMode::kOn && shard.count > 1 && !values.has("plan") &&
      !other) {
    refuse_conflict("--recompute on",
                    fmt::format("in shard {}/{} (from {})", shard.index, shard.count, shard.origin),
                    "--plan with it: plans that shards make for themselves differ");
  }
  if (values.has("miss-rate")) options.plan.miss_rate = values.real("miss-rate");
}

}  // namespace

RunOptions parse_run_options(const OptionValues& values, const Environment& environment) {
  RunOptions options;
  read_job_options(values, "prompts", environment, options);
  options.files.input_format = value_of(kInputFormatNames, values.text("input-format")).value();
  options.generation.sampling = read_sampling(values);
  options.generation.seed = values.unsigned_integer("seed");
  options.generation.adopt_config = values.text("generation-config") == "auto";
  options.looking.trace = values.text("trace");
  read_auto_sparsity(values, options);
  read_machine_options(values, options);
  read_fixed_context(values, options);
  if (values.has("emulate-link")) {
    options.machine.emulated_link = link_option(values.text("emulate-link"));
  }
  read_plan_options(values, options);
  return options;
}

RunOptions parse_score_options(const OptionValues& values, const Environment& environment) {
  RunOptions options;
  options.job = JobKind::kScore;
  read_job_options(values, "requests", environment, options);
  options.token_logprobs = values.flag("token-logprobs");
  read_machine_options(values, options);
  if (needs_fixed_context(options.attention)) {
    refuse_option("--attention", attention_name(options.attention.kind),
                  "another method: it looks up a fixed context, and requests have none");
  }
  return options;
}

}  // namespace triphase
