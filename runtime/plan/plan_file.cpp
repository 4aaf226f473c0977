#include "runtime/plan/plan_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json_reader.h"
#include "base/json_writer.h"

namespace triphase {
namespace {

constexpr std::string_view kCode = "E-PLAN-FILE";
constexpr std::int64_t kMany = std::int64_t{1} << 40;
constexpr double kLongSeconds = 1e15;

void write_phase(JsonWriter& json, const PhasePrediction& phase) {
  json.object({{"steps", phase.steps},
               {"seconds", phase.seconds},
               {"compute_seconds", phase.compute_seconds},
               {"transfer_seconds", phase.transfer_seconds},
               {"recompute_seconds", phase.recompute_seconds}});
}

PhasePrediction read_phase(JsonObjectReader reader) {
  PhasePrediction phase;
  phase.steps = reader.integer("steps", 0, kMany);
  phase.seconds = reader.number("seconds", 0.0, kLongSeconds);
  phase.compute_seconds = reader.number("compute_seconds", 0.0, kLongSeconds);
  phase.transfer_seconds = reader.number("transfer_seconds", 0.0, kLongSeconds);
  phase.recompute_seconds = reader.number("recompute_seconds", 0.0, kLongSeconds);
  reader.finish();
  return phase;
}

// In the order of ScheduleKind.
constexpr std::string_view kKinds[] = {"adaptive", "paper", "device"};

void write_schedule(JsonWriter& json, const Plan& plan) {
  const PhaseSchedule& s = plan.schedule;
  json.object({{"kind", kKinds[static_cast<std::size_t>(plan.kind)]},
               {"p1", s.p1},
               {"p2", s.p2},
               {"alpha", s.alpha},
               {"beta", s.beta},
               {"device_tokens", s.device_tokens},
               {"window_tokens", s.window_tokens},
               {"window_share", s.window_share},
               {"input_tokens", s.input_tokens},
               {"streamed_layers", s.streamed_layers},
               {"on_demand", s.on_demand}});
}

void read_schedule(JsonObjectReader reader, Plan& plan) {
  const std::string kind = reader.text("kind");
  const auto found = std::ranges::find(kKinds, kind);
  if (found == std::end(kKinds)) {
    reader.fail("kind", reader.value("kind").describe(), "\"adaptive\", \"paper\" or \"device\"");
  }
  plan.kind = static_cast<ScheduleKind>(found - std::begin(kKinds));
  PhaseSchedule& s = plan.schedule;
  s.host_tier = plan.kind != ScheduleKind::kDevice;
  s.p1 = reader.integer("p1", 0, kMany);
  s.p2 = reader.integer("p2", s.p1, kMany);
  s.alpha = reader.number("alpha", 0.0, 1.0);
  s.beta = reader.number("beta", 0.0, 1.0);
  s.device_tokens = reader.integer("device_tokens", 0, kMany);
  s.window_tokens = reader.integer("window_tokens", 0, kMany);
  s.window_share = reader.number("window_share", 0.0, 1.0);
  s.input_tokens = reader.integer("input_tokens", 0, kMany);
  s.streamed_layers = reader.integer("streamed_layers", 0, 1 << 20);
  s.on_demand = reader.has("on_demand") && reader.boolean("on_demand");
  reader.finish();
  if (s.on_demand && s.host_tier) {
    reader.fail("on_demand", "true", "false where kind is not \"device\"");
  }
  if (s.beta > 0.0 && s.input_tokens == 0) {
    reader.fail("input_tokens", "0", "cached hidden states where beta is above 0");
  }
}

void write_plan(JsonWriter& json, const Plan& plan) {
  constexpr auto kLines = JsonWriter::Layout::kLines;
  json.begin_object(kLines).member("format", kPlanFormat);
  json.key("model").object({{"name", plan.model_name}, {"fingerprint", plan.model_fingerprint}});
  json.members({{"profile", plan.profile_fingerprint}, {"machine", plan.machine}});
  json.key("workload").begin_object();
  json.members({{"batch_size", plan.workload.batch},
                {"input_len", plan.workload.input_len},
                {"output_len", plan.workload.output_len},
                {"caching_ratio", plan.workload.caching_ratio},
                {"miss_rate", plan.workload.miss_rate}});
  if (plan.workload.longest > 0) json.member("longest", plan.workload.longest);
  json.end();
  json.key("budget").object(
      {{"device_bytes", plan.budget.device_memory}, {"host_bytes", plan.budget.host_memory}});
  json.members({{"kv_dtype", dtype_name(plan.kv_dtype)},
                {"block_tokens", plan.block_tokens},
                {"recompute_source", plan.recompute_source}});
  write_schedule(json.key("schedule"), plan);
  json.member("prefill_seconds", plan.prefill_seconds);
  json.key("phases").begin_array(kLines);
  for (const PhasePrediction& phase : plan.phases) write_phase(json, phase);
  json.end();
  json.members({{"decode_seconds", plan.decode_seconds},
                {"tokens_per_second", plan.tokens_per_second},
                {"device_peak_bytes", plan.device_peak},
                {"host_peak_bytes", plan.host_peak},
                {"paper_objective_seconds", plan.paper_objective},
                {"paper_schedule_seconds", plan.paper_schedule_seconds},
                {"extrapolated", plan.extrapolated}});
  json.key("neighbours").begin_array(kLines);
  for (const PlanNeighbour& neighbour : plan.neighbours) {
    json.object({{"change", neighbour.change},
                 {"seconds", neighbour.seconds},
                 {"infeasible", neighbour.infeasible}});
  }
  json.end();
  if (!plan.longer.empty()) {
    json.key("longer_requests").begin_object(kLines).member("above_tokens", plan.longest_request);
    write_plan(json.key("plan"), plan.longer.front());
    json.end();
  }
  json.end();
}

Plan read_plan(JsonObjectReader top, bool of_longer_requests);

// The plan of requests that are longer than those of `plan`.
void read_longer_requests(JsonObjectReader reader, Plan& plan) {
  plan.longest_request = reader.integer("above_tokens", 1, kMany);
  plan.longer.push_back(read_plan(reader.object("plan"), true));
  reader.finish();
  // A record must not depend on which of the two plans it was made under.
  const Plan& longer = plan.longer.front();
  const auto same = [&](std::string_view field, auto found, auto expected) {
    if (found == expected) return;
    reader.fail(field, fmt::to_string(found), fmt::format("{}, as of shorter requests", expected));
  };
  same("plan.kv_dtype", dtype_name(longer.kv_dtype), dtype_name(plan.kv_dtype));
  same("plan.block_tokens", longer.block_tokens, plan.block_tokens);
  same("plan.schedule.input_tokens", longer.schedule.input_tokens, plan.schedule.input_tokens);
}

Plan read_plan(JsonObjectReader top, bool of_longer_requests) {
  top.format(kPlanFormat);
  Plan plan;
  JsonObjectReader model = top.object("model");
  plan.model_name = model.text("name");
  plan.model_fingerprint = model.text("fingerprint");
  model.finish();
  plan.profile_fingerprint = top.text("profile");
  plan.machine = top.text("machine");
  JsonObjectReader workload = top.object("workload");
  plan.workload.batch = workload.integer("batch_size", 1, 1 << 20);
  plan.workload.input_len = workload.integer("input_len", 1, 1 << 30);
  plan.workload.output_len = workload.integer("output_len", 1, 1 << 30);
  plan.workload.caching_ratio = workload.number("caching_ratio", 0.0, 1.0);
  plan.workload.miss_rate = workload.number("miss_rate", 0.0, 1.0);
  if (workload.has("longest")) plan.workload.longest = workload.integer("longest", 1, kMany);
  workload.finish();
  JsonObjectReader budget = top.object("budget");
  plan.budget.device_memory = budget.bytes("device_bytes");
  if (plan.budget.device_memory == 0) budget.fail("device_bytes", "0", "at least 1 byte");
  plan.budget.host_memory = budget.bytes("host_bytes");
  budget.finish();
  const auto dtype = dtype_from_name(top.text("kv_dtype"));
  if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16 &&
      dtype != DType::kInt8) {
    top.fail("kv_dtype", top.value("kv_dtype").describe(), "int8, fp16, bf16 or fp32");
  }
  plan.kv_dtype = *dtype;
  plan.block_tokens = top.integer("block_tokens", 1, 4096);
  plan.recompute_source = top.text("recompute_source");
  if (plan.recompute_source != "never" && plan.recompute_source != "hidden-states-int8") {
    top.fail("recompute_source", top.value("recompute_source").describe(),
             "\"never\" or \"hidden-states-int8\"");
  }
  read_schedule(top.object("schedule"), plan);
  plan.schedule.kv_dtype = plan.kv_dtype;
  plan.schedule.block_tokens = plan.block_tokens;
  plan.prefill_seconds = top.number("prefill_seconds", 0.0, kLongSeconds);
  std::vector<JsonObjectReader> phases = top.objects("phases");
  if (phases.size() != 3) {
    top.fail("phases", top.value("phases").describe(), "an array of 3");
  }
  for (std::size_t phase = 0; phase < 3; ++phase) plan.phases[phase] = read_phase(phases[phase]);
  plan.decode_seconds = top.number("decode_seconds", 0.0, kLongSeconds);
  plan.tokens_per_second = top.number("tokens_per_second", 0.0, kLongSeconds);
  plan.device_peak = top.bytes("device_peak_bytes");
  plan.host_peak = top.bytes("host_peak_bytes");
  plan.paper_objective = top.number("paper_objective_seconds", 0.0, kLongSeconds);
  plan.paper_schedule_seconds = top.number("paper_schedule_seconds", 0.0, kLongSeconds);
  plan.extrapolated = top.boolean("extrapolated");
  for (JsonObjectReader& reader : top.objects("neighbours")) {
    PlanNeighbour neighbour;
    neighbour.change = reader.text("change");
    neighbour.seconds = reader.number("seconds", 0.0, kLongSeconds);
    neighbour.infeasible = reader.text("infeasible");
    reader.finish();
    plan.neighbours.push_back(std::move(neighbour));
  }
  if (top.has("longer_requests")) {
    if (of_longer_requests) {
      top.fail("longer_requests", "a third plan", "at most two for a job");
    }
    read_longer_requests(top.object("longer_requests"), plan);
  }
  top.finish();
  return plan;
}

}  // namespace

std::string plan_to_json(const Plan& plan) {
  std::string out;
  JsonWriter json(out, JsonWriter::Layout::kLines);
  write_plan(json, plan);
  return out + "\n";
}

Plan parse_plan(std::string_view text, std::string_view file) {
  const Json json = parse_json_file(text, file, ErrorRole::kInput, kCode);
  return read_plan(JsonObjectReader(json, "", file, kCode), false);
}

void require_plan_for_model(const Plan& plan, std::string_view model_fingerprint,
                            std::string_view file) {
  if (plan.model_fingerprint == model_fingerprint) return;
  throw Error(ErrorRole::kInput, "E-PLAN-MODEL", "model.fingerprint")
      .file(file)
      .found(fmt::format("{} ({})",
                         plan.model_fingerprint.empty() ? "none" : plan.model_fingerprint,
                         plan.model_name))
      .expected(fmt::format("{}, the model given", model_fingerprint))
      .hint("make the plan again with triphase plan");
}

void require_plan_for_machine(const Plan& plan, std::string_view machine, std::string_view file) {
  if (plan.machine == machine) return;
  throw Error(ErrorRole::kInput, "E-PLAN-MACHINE", "machine")
      .file(file)
      .found(plan.machine)
      .expected(machine)
      .hint("--plan-force takes it all the same; its times are of the other machine");
}

}  // namespace triphase
