#include "runtime/job/run_summary.h"

#include <fmt/format.h>

#include "base/json_writer.h"
#include "runtime/build_info.h"
#include "runtime/machine.h"

namespace triphase {
namespace {

using Layout = JsonWriter::Layout;

// A rate, or null when no time was measured: never a number made of nothing.
std::optional<double> rate(double amount, double seconds) {
  return seconds > 0.0 ? std::optional(amount / seconds) : std::nullopt;
}

// What `write` makes of it, or null.
template <class Optional, class Write>
void write_nullable(JsonWriter& json, std::string_view name, const Optional& value,
                    const Write& write) {
  json.key(name);
  if (value) {
    write(*value);
  } else {
    json.value(nullptr);
  }
}

void write_throughputs(JsonWriter& json, const RunSummary& summary, double succeeded_here) {
  const double computing = summary.seconds.prefill + summary.seconds.decode;
  const auto prompt = static_cast<double>(summary.tokens.prompt);
  const auto generated = static_cast<double>(summary.tokens.generated);
  constexpr std::string_view kOutside = "loading, tokenizing, waiting for prompts, writing records";
  const auto write = [&](std::string_view name, double amount, double seconds,
                         std::string_view counts, std::string_view leaves_out) {
    json.key(name).object(
        {{"value", rate(amount, seconds)}, {"counts", counts}, {"leaves_out", leaves_out}});
  };
  json.key("throughput").begin_object(Layout::kLines);
  write("requests_per_second", succeeded_here, summary.seconds.wall,
        "records written in this run / wall seconds", "nothing");
  write("prompt_tokens_per_second", prompt, summary.seconds.prefill,
        "prompt tokens computed, not shared ones / prefill seconds", kOutside);
  write("generated_tokens_per_second", generated, computing,
        "generated tokens / (prefill + decode seconds)",
        "prompt tokens; loading, tokenizing, writing records");
  write("decode_tokens_per_second", static_cast<double>(summary.tokens.by_decoding),
        summary.seconds.decode,
        "tokens of decode steps, so not each request's first one / decode seconds",
        "prompt tokens; prefill, loading, tokenizing, writing records");
  write(
      "total_tokens_per_second", prompt + generated, computing,
      "prompt tokens computed, not shared ones, and generated tokens / (prefill + decode seconds)",
      kOutside);
  json.end();
}

void write_memory(JsonWriter& json, const RunSummary& summary) {
  json.key("memory").begin_array(Layout::kLines);
  for (const MemoryUse& use : summary.memory) {
    json.object({{"tier", use.tier},
                 {"tag", use.tag},
                 {"planned_bytes", use.planned},
                 {"peak_bytes", use.peak}});
  }
  json.end();
  json.key("peak_bytes").object({{"device", summary.peak.device}, {"host", summary.peak.host}});
}

void write_changed_options(JsonWriter& json, const RunOptions& options) {
  json.key("options").begin_object(Layout::kLines);
  for (const auto& [name, value] : options.origins) {
    if (value.origin == "default") continue;
    json.key(name).object({{"value", value.value}, {"origin", value.origin}});
  }
  json.end();
}

void write_phases(JsonWriter& json, const RunSummary& summary) {
  json.key("phases").begin_array();
  for (std::size_t index = 0; index < summary.placement.phases.size(); ++index) {
    const PhaseUse& use = summary.placement.phases[index];
    json.object({{"phase", index + 1}, {"steps", use.steps}, {"seconds", use.seconds}});
  }
  json.end();
  json.key("phase_boundaries").begin_array(Layout::kRows);
  for (const PhaseBoundary& at : summary.placement.phase_boundaries) {
    json.begin_object();
    json.members({{"phase", static_cast<int>(at.phase)}, {"requests", at.sequences}});
    json.key("steps").object({{"first", at.first_step}, {"last", at.last_step}});
    json.key("contexts").object({{"least", at.least_context}, {"most", at.most_context}});
    json.key("generated").object({{"least", at.least_generated}, {"most", at.most_generated}});
    json.end();
  }
  json.end();
}

// The plan that was followed. The whole of a plan made for the job is in OUT.plan.json.
void write_plan(JsonWriter& json, const PlacementUse& placement, const Plan& plan) {
  const PhaseSchedule& s = plan.schedule;
  json.object({{"origin", placement.plan_origin},
               {"profile", placement.plan_profile},
               {"batch_size", plan.workload.batch},
               {"input_len", plan.workload.input_len},
               {"output_len", plan.workload.output_len},
               {"p1", s.p1},
               {"p2", s.p2},
               {"alpha", s.alpha},
               {"beta", s.beta},
               {"device_tokens", s.device_tokens},
               {"window_tokens", s.window_tokens},
               {"window_share", s.window_share},
               {"block_tokens", plan.block_tokens},
               {"streamed_layers", s.streamed_layers},
               {"on_demand", s.on_demand},
               {"longer_requests_above_tokens",
                plan.longer.empty() ? std::nullopt : std::optional(plan.longest_request)},
               {"predicted_tokens_per_second", plan.tokens_per_second}});
}

void write_attention(JsonWriter& json, const RunSummary& summary) {
  json.key("attention").begin_object();
  json.members({{"policy", summary.attention.method},
                {"tokens_attended_fraction", summary.attention.decode.fraction().value_or(1.0)},
                {"prompt_tokens_attended_fraction", summary.attention.prompts.fraction()}});
  const auto& bytes = summary.attention.read_bytes;
  write_nullable(json, "decode_read_bytes", bytes, [&](const AttentionBytes& read) {
    json.object({{"attended", JsonText{fmt::format("{:.0f}", read.attended)}},
                 {"dense", JsonText{fmt::format("{:.0f}", read.dense)}}});
  });
  write_nullable(json, "calibration", summary.attention.sparsity,
                 [&](const SparsityChoice& choice) { write_sparsity_choice(json, choice); });
  json.end();
  write_nullable(json, "fixed_context", summary.fixed_context, [&](const FixedContextUse& used) {
    json.object({{"path", used.path}, {"hash", used.hash}, {"tokens", used.tokens}});
  });
}

void write_prediction(JsonWriter& json, const RunPrediction& p) {
  json.begin_object().members({{"profile", p.profile},
                               {"requests", p.requests},
                               {"miss_rate", p.miss_rate},
                               {"steps", p.steps}});
  json.key("seconds").object({{"prefill", p.prefill_seconds}, {"decode", p.decode_seconds}});
  json.key("moved_bytes").object({{"to_device", p.bytes_to_device}, {"to_host", p.bytes_to_host}});
  json.member("extrapolated", p.extrapolated).end();
}

// What ran, on what, with which model.
void write_setting(JsonWriter& json, const RunSummary& summary) {
  const MachineInfo machine = inspect_machine();
  json.members({{"format", "triphase-summary/2"}, {"command", "run"}});
  json.key("program").object({{"version", program_version()},
                              {"commit", build_commit()},
                              {"build", build_type()},
                              {"compiler", compiler()}});
  json.members(
      {{"complete", summary.complete},
       {"exit_code", summary.exit_code},
       {"error", summary.error.empty() ? JsonScalar(nullptr) : JsonScalar(summary.error)}});
  json.key("hardware")
      .object({{"device", summary.hardware.device},
               {"cpu", machine.cpu_name},
               {"threads", summary.hardware.threads},
               {"simd", summary.hardware.simd},
               {"host_memory_bytes", machine.memory_total}});
  json.key("emulated").array(summary.emulated);
  json.key("model").object({{"path", summary.model.path},
                            {"type", summary.model.type},
                            {"fingerprint", summary.model.fingerprint},
                            {"weights_dtype", summary.model.weights_dtype},
                            {"kv_dtype", summary.model.kv_dtype}});
}

void write_counts(JsonWriter& json, const RunSummary& summary) {
  json.key("requests").begin_object();
  json.members({{"total", summary.total_requests},
                {"succeeded", summary.records.succeeded},
                {"failed", summary.records.failed()}});
  json.key("failed_by_code").begin_object();
  for (const auto& [code, count] : summary.records.failed_by_code) json.member(code, count);
  json.end().member("resumed", summary.resumed).end();
  json.key("tokens").object({{"prompt", summary.tokens.prompt},
                             {"shared_prompt", summary.tokens.shared_prompt},
                             {"generated", summary.tokens.generated},
                             {"recomputed", summary.tokens.recomputed}});
  json.key("seconds").object({{"wall", summary.seconds.wall},
                              {"load", summary.seconds.load},
                              {"prefill", summary.seconds.prefill},
                              {"decode", summary.seconds.decode}});
}

// What crossed the link, what was recomputed instead, what was attended on the host.
void write_moved_bytes(JsonWriter& json, const RunSummary& summary) {
  json.key("moved_bytes").begin_object();
  json.members({{"to_device", summary.moved.to_device}, {"to_host", summary.moved.to_host}});
  json.key("prefetched")
      .object(
          {{"bytes", summary.moved.prefetched.bytes}, {"unused", summary.moved.prefetched.unused}});
  json.key("to_device_by_kind")
      .object({{"weights", summary.moved.by_kind.weights},
               {"kv_reloads", summary.moved.by_kind.kv_reloads},
               {"kv_blocks", summary.moved.by_kind.kv_blocks},
               {"kv_tokens", summary.moved.by_kind.kv_tokens},
               {"cached_hidden_states", summary.moved.by_kind.inputs},
               {"attention_results", summary.moved.by_kind.results}});
  json.end();
  json.key("cached_hidden_states")
      .object({{"tokens", summary.cached_hidden_states.tokens},
               {"saved_bytes", summary.cached_hidden_states.saved_bytes},
               {"recomputed_tokens", summary.cached_hidden_states.recomputed_tokens}});
  const HostAttentionUse& host = summary.host_attention;
  json.key("host_attention")
      .object({{"rows", host.rows},
               {"query_bytes", host.queries},
               {"result_bytes", host.results},
               {"kv_bytes", host.kv}});
  const TokenCacheUse& cache = summary.token_cache;
  json.key("token_cache")
      .object({{"budget_bytes", cache.budget},
               {"chosen_bytes", cache.chosen},
               {"found_bytes", cache.found},
               {"hit_rate",
                rate(static_cast<double>(cache.found), static_cast<double>(cache.chosen))}});
}

}  // namespace

std::string summary_to_json(const RunSummary& summary, const RunOptions& options) {
  const std::uint64_t total = summary.records.total();
  const auto written_here = static_cast<double>(total - std::min(total, summary.resumed));
  std::string out;
  JsonWriter json(out, Layout::kLines);
  json.begin_object();
  write_setting(json, summary);
  write_attention(json, summary);
  json.key("placement").begin_object();
  json.members(
      {{"policy", summary.placement.policy}, {"preemptions", summary.placement.preemptions}});
  write_phases(json, summary);
  write_nullable(json, "plan", summary.placement.plan,
                 [&](const Plan& plan) { write_plan(json, summary.placement, plan); });
  json.end();
  json.member("seed", options.generation.seed);
  json.key("shard").object({{"index", options.files.shard.index},
                            {"count", options.files.shard.count},
                            {"origin", options.files.shard.origin}});
  write_changed_options(json, options);
  write_counts(json, summary);
  write_nullable(json, "prediction", summary.prediction,
                 [&](const RunPrediction& predicted) { write_prediction(json, predicted); });
  json.members({{"steps", summary.steps}, {"max_batch", summary.max_batch}});
  write_throughputs(json, summary, written_here);
  write_memory(json, summary);
  write_moved_bytes(json, summary);
  json.end();
  return out + "\n";
}

void write_summary(const RunSummary& summary, const RunOptions& options) {
  write_file_atomically(system_file_ops(), OutputPaths(options.files.output).summary,
                        summary_to_json(summary, options),
                        options.files.private_files ? 0600 : 0666);
}

void write_missing_summary(const RunOptions& options, const RecordCounts& records) {
  if (path_exists(OutputPaths(options.files.output).summary)) return;
  RunSummary summary;
  summary.model.path = options.files.model;
  summary.records = records;
  summary.total_requests = records.total();
  summary.resumed = records.total();
  summary.complete = true;
  summary.exit_code = records.failed() == 0 ? 0 : 1;
  write_summary(summary, options);
}

}  // namespace triphase
