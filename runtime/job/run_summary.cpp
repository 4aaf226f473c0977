#include "runtime/job/run_summary.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include "base/json.h"
#include "runtime/build_info.h"
#include "runtime/machine.h"

namespace triphase {
namespace {

std::string optional_count(const std::optional<std::uint64_t>& value) {
  return value ? fmt::to_string(*value) : "null";
}

// A rate, or null when no time was measured: never a number made of nothing.
std::string rate(double amount, double seconds) {
  return seconds > 0.0 ? json_number(amount / seconds) : "null";
}

std::string throughput(double amount, double seconds, std::string_view counts,
                       std::string_view leaves_out) {
  return fmt::format("{{\"value\": {}, \"counts\": {}, \"leaves_out\": {}}}", rate(amount, seconds),
                     json_quote(counts), json_quote(leaves_out));
}

std::string throughputs(const RunSummary& summary, double succeeded_here) {
  const double computing = summary.prefill_seconds + summary.decode_seconds;
  const auto prompt = static_cast<double>(summary.prompt_tokens);
  const auto generated = static_cast<double>(summary.generated_tokens);
  constexpr std::string_view kOutside = "loading, tokenizing, waiting for prompts, writing records";
  std::string out = "{\n";
  out += fmt::format("    \"requests_per_second\": {},\n",
                     throughput(succeeded_here, summary.wall_seconds,
                                "records written in this run / wall seconds", "nothing"));
  out += fmt::format(
      "    \"prompt_tokens_per_second\": {},\n",
      throughput(prompt, summary.prefill_seconds, "prompt tokens / prefill seconds", kOutside));
  out +=
      fmt::format("    \"generated_tokens_per_second\": {},\n",
                  throughput(generated, computing, "generated tokens / (prefill + decode seconds)",
                             "prompt tokens; loading, tokenizing, writing records"));
  out +=
      fmt::format("    \"decode_tokens_per_second\": {},\n",
                  throughput(generated, summary.decode_seconds, "generated tokens / decode seconds",
                             "prompt tokens; prefill, loading, tokenizing, writing records"));
  out +=
      fmt::format("    \"total_tokens_per_second\": {}\n  }}",
                  throughput(prompt + generated, computing,
                             "prompt and generated tokens / (prefill + decode seconds)", kOutside));
  return out;
}

std::string failed_by_code(const RecordCounts& records) {
  std::string out;
  for (const auto& [code, count] : records.failed_by_code) {
    out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", json_quote(code), count);
  }
  return "{" + out + "}";
}

std::string memory_list(const std::vector<MemoryUse>& memory) {
  std::string out;
  for (const MemoryUse& use : memory) {
    out += fmt::format(
        "{}\n    {{\"tier\": {}, \"tag\": {}, \"planned_bytes\": {}, \"peak_bytes\": {}}}",
        out.empty() ? "" : ",", json_quote(use.tier), json_quote(use.tag),
        optional_count(use.planned), use.peak);
  }
  return out.empty() ? "[]" : "[" + out + "\n  ]";
}

// Peaks of different tags need not fall together, so the sum bounds the tier's peak from above.
std::string tier_peaks(const std::vector<MemoryUse>& memory) {
  std::map<std::string, std::uint64_t> peaks = {{"device", 0}, {"host", 0}};
  for (const MemoryUse& use : memory) peaks[use.tier] += use.peak;
  std::string out;
  for (const auto& [tier, bytes] : peaks) {
    out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", json_quote(tier), bytes);
  }
  return "{" + out + "}";
}

std::string changed_options(const RunOptions& options) {
  std::string out;
  for (const auto& [name, value] : options.origins) {
    if (value.origin == "default") continue;
    out += fmt::format("{}\n    {}: {{\"value\": {}, \"origin\": {}}}", out.empty() ? "" : ",",
                       json_quote(name), json_quote(value.value), json_quote(value.origin));
  }
  return out.empty() ? "{}" : "{" + out + "\n  }";
}

std::string phase_boundaries(const std::vector<PhaseBoundary>& boundaries) {
  std::string out;
  for (const PhaseBoundary& at : boundaries) {
    out += fmt::format(
        "{}\n    {{\"phase\": {}, \"lines\": {}, \"steps\": {{\"first\": {}, \"last\": {}}}, "
        "\"contexts\": {{\"least\": {}, \"most\": {}}}, "
        "\"generated\": {{\"least\": {}, \"most\": {}}}}}",
        out.empty() ? "" : ",", static_cast<int>(at.phase), at.sequences, at.first_step,
        at.last_step, at.least_context, at.most_context, at.least_generated, at.most_generated);
  }
  return "[" + out + "]";
}

std::string phase_uses(const std::array<PhaseUse, 3>& phases) {
  std::string out;
  for (std::size_t index = 0; index < phases.size(); ++index) {
    out +=
        fmt::format("{}{{\"phase\": {}, \"steps\": {}, \"seconds\": {}}}", out.empty() ? "" : ", ",
                    index + 1, phases[index].steps, json_number(phases[index].seconds));
  }
  return "[" + out + "]";
}

std::string strings(const std::vector<std::string>& values) {
  std::string out;
  for (const std::string& value : values) out += (out.empty() ? "" : ", ") + json_quote(value);
  return "[" + out + "]";
}

// The plan that was followed, or null. The whole of a plan made for the job is in OUT.plan.json.
std::string plan_json(const RunSummary& summary) {
  if (!summary.plan) return "null";
  const Plan& plan = *summary.plan;
  const PhaseSchedule& s = plan.schedule;
  return fmt::format(
      "{{\"origin\": {}, \"profile\": {}, \"batch_size\": {}, \"input_len\": {}, "
      "\"output_len\": {}, \"p1\": {}, \"p2\": {}, \"alpha\": {}, \"beta\": {}, "
      "\"device_tokens\": {}, \"window_tokens\": {}, \"window_share\": {}, \"block_tokens\": {}, "
      "\"streamed_layers\": {}, \"predicted_tokens_per_second\": {}}}",
      json_quote(summary.plan_origin), json_quote(summary.plan_profile), plan.workload.batch,
      plan.workload.input_len, plan.workload.output_len, s.p1, s.p2, json_number(s.alpha),
      json_number(s.beta), s.device_tokens, s.window_tokens, json_number(s.window_share),
      plan.block_tokens, s.streamed_layers, json_number(plan.tokens_per_second));
}

// Null where attention was dense.
std::string attention_bytes(const std::optional<AttentionBytes>& bytes) {
  if (!bytes) return "null";
  return fmt::format("{{\"touched\": {:.0f}, \"dense\": {:.0f}}}", bytes->touched, bytes->dense);
}

// Null without --fixed-context.
std::string fixed_context(const std::optional<FixedContextUse>& context) {
  if (!context) return "null";
  return fmt::format("{{\"path\": {}, \"hash\": {}, \"tokens\": {}}}", json_quote(context->path),
                     json_quote(context->hash), context->tokens);
}

// Null without --predict.
std::string prediction_json(const std::optional<RunPrediction>& prediction) {
  if (!prediction) return "null";
  const RunPrediction& p = *prediction;
  return fmt::format(
      "{{\"profile\": {}, \"lines\": {}, \"miss_rate\": {}, \"steps\": {}, \"seconds\": "
      "{{\"prefill\": {}, \"decode\": {}}}, \"moved_bytes\": {{\"to_device\": {}, \"to_host\": "
      "{}}}, \"extrapolated\": {}}}",
      json_quote(p.profile), p.lines, json_number(p.miss_rate), p.steps,
      json_number(p.prefill_seconds), json_number(p.decode_seconds), json_number(p.bytes_to_device),
      json_number(p.bytes_to_host), p.extrapolated);
}

}  // namespace

std::string summary_to_json(const RunSummary& summary, const RunOptions& options) {
  const std::uint64_t total = summary.records.total();
  const auto written_here = static_cast<double>(total - std::min(total, summary.resumed));
  const MachineInfo machine = inspect_machine();
  std::string out = "{\n";
  const auto line = [&out](std::string_view name, std::string_view value) {
    out += fmt::format("{}  \"{}\": {}", out.size() > 2 ? ",\n" : "", name, value);
  };
  line("format", "\"triphase-summary/1\"");
  line("command", "\"run\"");
  line("program",
       fmt::format("{{\"version\": {}, \"commit\": {}, \"build\": {}, \"compiler\": {}}}",
                   json_quote(program_version()), json_quote(build_commit()),
                   json_quote(build_type()), json_quote(compiler())));
  line("complete", summary.complete ? "true" : "false");
  line("exit_code", fmt::to_string(summary.exit_code));
  line("error", summary.error.empty() ? std::string("null") : json_quote(summary.error));
  line("hardware", fmt::format("{{\"device\": {}, \"cpu\": {}, \"threads\": {}, \"simd\": {}, "
                               "\"host_memory_bytes\": {}}}",
                               json_quote(summary.device), json_quote(machine.cpu_name),
                               summary.threads, json_quote(summary.simd), machine.memory_total));
  line("emulated", strings(summary.emulated));
  line("model",
       fmt::format("{{\"path\": {}, \"type\": {}, \"fingerprint\": {}, \"weights_dtype\": {}, "
                   "\"kv_dtype\": {}}}",
                   json_quote(summary.model_path), json_quote(summary.model_type),
                   json_quote(summary.model_fingerprint), json_quote(summary.weights_dtype),
                   json_quote(summary.kv_dtype)));
  line("attention",
       fmt::format("{{\"policy\": {}, \"tokens_touched_fraction\": {}, "
                   "\"prompt_tokens_touched_fraction\": {}, \"decode_read_bytes\": {}, "
                   "\"calibration\": {}}}",
                   json_quote(summary.attention_policy),
                   json_number(summary.tokens_touched_fraction),
                   summary.prompt_tokens_touched_fraction
                       ? json_number(*summary.prompt_tokens_touched_fraction)
                       : "null",
                   attention_bytes(summary.attention_bytes),
                   summary.sparsity ? sparsity_choice_to_json(*summary.sparsity, 2) : "null"));
  line("fixed_context", fixed_context(summary.fixed_context));
  line("placement",
       fmt::format(
           "{{\"policy\": {}, \"preemptions\": {}, \"phases\": {}, \"phase_boundaries\": {}, "
           "\"plan\": {}}}",
           json_quote(summary.placement_policy), summary.preemptions, phase_uses(summary.phases),
           phase_boundaries(summary.phase_boundaries), plan_json(summary)));
  line("seed", fmt::to_string(options.seed));
  line("shard", fmt::format("{{\"index\": {}, \"count\": {}, \"origin\": {}}}", options.shard.index,
                            options.shard.count, json_quote(options.shard.origin)));
  line("options", changed_options(options));
  line("requests",
       fmt::format("{{\"total\": {}, \"succeeded\": {}, \"failed\": {}, \"failed_by_code\": {}, "
                   "\"resumed\": {}}}",
                   optional_count(summary.total_requests), summary.records.succeeded,
                   summary.records.failed(), failed_by_code(summary.records), summary.resumed));
  line("tokens",
       fmt::format(
           "{{\"prompt\": {}, \"shared_prompt\": {}, \"generated\": {}, \"recomputed\": {}}}",
           summary.prompt_tokens, summary.shared_prompt_tokens, summary.generated_tokens,
           summary.recomputed_tokens));
  line("seconds",
       fmt::format("{{\"wall\": {}, \"load\": {}, \"prefill\": {}, \"decode\": {}}}",
                   json_number(summary.wall_seconds), json_number(summary.load_seconds),
                   json_number(summary.prefill_seconds), json_number(summary.decode_seconds)));
  line("prediction", prediction_json(summary.prediction));
  line("steps", fmt::to_string(summary.steps));
  line("max_batch", fmt::to_string(summary.max_batch));
  line("throughput", throughputs(summary, written_here));
  line("memory", memory_list(summary.memory));
  line("peak_bytes", tier_peaks(summary.memory));
  line(
      "moved_bytes",
      fmt::format(
          "{{\"to_device\": {}, \"to_host\": {}, \"early\": {{\"bytes\": {}, \"unused\": {}}}, "
          "\"to_device_by_kind\": {{\"weights\": {}, "
          "\"kv_reloads\": {}, \"kv_blocks\": {}, \"kv_tokens\": {}, "
          "\"layer_inputs\": {}, \"attention_results\": {}}}}}",
          summary.bytes_to_device, summary.bytes_to_host, summary.early.bytes, summary.early.unused,
          summary.to_device.weights, summary.to_device.kv_reloads, summary.to_device.kv_blocks,
          summary.to_device.kv_tokens, summary.to_device.inputs, summary.to_device.results));
  line("layer_inputs",
       fmt::format("{{\"tokens\": {}, \"saved_bytes\": {}, \"recomputed_tokens\": {}}}",
                   summary.layer_inputs.tokens, summary.layer_inputs.saved_bytes,
                   summary.layer_inputs.recomputed_tokens));
  const HostAttentionUse& host = summary.host_attention;
  line("host_attention", fmt::format("{{\"rows\": {}, \"query_bytes\": {}, \"result_bytes\": {}, "
                                     "\"kv_bytes\": {}}}",
                                     host.rows, host.queries, host.results, host.kv));
  const TokenCacheUse& cache = summary.token_cache;
  line("token_cache",
       fmt::format("{{\"budget_bytes\": {}, \"chosen_bytes\": {}, \"found_bytes\": {}, "
                   "\"hit_rate\": {}}}",
                   cache.budget, cache.chosen, cache.found,
                   rate(static_cast<double>(cache.found), static_cast<double>(cache.chosen))));
  return out + "\n}\n";
}

void write_summary(const RunSummary& summary, const RunOptions& options, FileOps& ops) {
  write_file_atomically(ops, OutputPaths(options.output).summary, summary_to_json(summary, options),
                        options.private_files ? 0600 : 0666);
}

void write_missing_summary(const RunOptions& options, const RecordCounts& records, FileOps& ops) {
  struct stat status = {};
  if (::stat(OutputPaths(options.output).summary.c_str(), &status) == 0) return;
  RunSummary summary;
  summary.model_path = options.model;
  summary.records = records;
  summary.total_requests = records.total();
  summary.resumed = records.total();
  summary.complete = true;
  summary.exit_code = records.failed() == 0 ? 0 : 1;
  write_summary(summary, options, ops);
}

}  // namespace triphase
