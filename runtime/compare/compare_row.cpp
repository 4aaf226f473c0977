#include "runtime/compare/compare_row.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <numeric>

#include "base/error.h"
#include "base/json.h"
#include "runtime/job/file_ops.h"
#include "runtime/job/trace_file.h"

namespace triphase::compare {
namespace {

constexpr std::uint64_t kMaxSummaryBytes = std::uint64_t{16} << 20;

[[noreturn]] void unreadable(const std::string& path, std::string_view found) {
  throw Error(ErrorRole::kIo, "E-IO-READ", "read")
      .file(path)
      .found(found)
      .expected("a file as triphase run writes it");
}

// Member by member down a path of names.
const Json& at(const Json& root, std::initializer_list<const char*> names,
               const std::string& path) {
  const Json* value = &root;
  for (const char* name : names) {
    value = value->find(name);
    if (value == nullptr) unreadable(path, fmt::format("no {}", name));
  }
  return *value;
}

double number(const Json& value) { return value.number().value_or(0.0); }
std::uint64_t count(const Json& value) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(value.integer().value_or(0), 0));
}
std::string text(const Json& value) {
  return value.string() != nullptr ? *value.string() : std::string();
}

Json parse_line(std::string_view line, const std::string& path) {
  return parse_json_file(line, path, ErrorRole::kIo, "E-IO-READ");
}

constexpr std::uint64_t kHost = trace_track(TraceLane::kHost);
constexpr std::uint64_t kCompute = trace_track(TraceLane::kCompute);
constexpr std::uint64_t kToDevice = trace_track(TraceLane::kToDevice);
constexpr std::uint64_t kToHost = trace_track(TraceLane::kToHost);

void add_span(const Json& event, const std::string& path, LaneSeconds& seconds) {
  const std::string name = text(at(event, {"name"}, path));
  const double length = number(at(event, {"dur"}, path)) * 1e-6;
  const auto track = count(at(event, {"tid"}, path));
  // A GPU samples on its compute stream, and the host waits for the whole step meanwhile.
  if (track == kCompute && (name == "forward" || name == "sample")) seconds.compute += length;
  if (name.starts_with("wait for weights") || name.starts_with("wait for KV")) {
    seconds.waiting += length;
    seconds.compute -= length;
  }
  if (track == kHost && (name == "place" || name == "sample")) seconds.host += length;
  if (name == "wait for device") seconds.host -= length;
  if (track == kToDevice) seconds.to_device += length;
  if (track == kToHost) seconds.to_host += length;
}

void add_failure(const Json& error, const std::string& path, std::vector<Failure>& failures) {
  const std::string code = text(at(error, {"code"}, path));
  auto known = std::ranges::find(failures, code, &Failure::code);
  if (known == failures.end()) {
    failures.push_back({code, 0, text(at(error, {"message"}, path))});
    known = failures.end() - 1;
  }
  ++known->lines;
}

std::vector<std::int64_t> token_ids(const Json& completion, const std::string& path) {
  const JsonArray* list = at(completion, {"tokens"}, path).array();
  if (list == nullptr) unreadable(path, "tokens that are no list");
  std::vector<std::int64_t> ids;
  for (const Json& token : *list) ids.push_back(token.integer().value_or(-1));
  return ids;
}

std::string with_cell(std::string label, const Cell& cell) {
  if (cell.attention != "dense") label += ", " + cell.attention;
  if (cell.batch_size != "0") label += ", batch " + cell.batch_size;
  return label;
}

}  // namespace

std::string Cell::label() const { return with_cell(policy, *this); }

bool Cell::is_baseline() const { return policy != "triphase" && !policy.starts_with("triphase:"); }

std::string Cell::shown_policy() const {
  const std::size_t colon = std::min(policy.find(':'), policy.size());
  const std::string_view name = std::string_view(policy).substr(0, colon);
  if (name == "triphase" || name == "device-only") return policy;
  return fmt::format("{}-style{}", name, std::string_view(policy).substr(colon));
}

std::string Cell::shown_label() const { return with_cell(shown_policy(), *this); }

bool Row::completed_any() const { return infeasible.empty() && median().tokens_per_second > 0.0; }

bool Row::has_speed() const {
  return !timed.empty() && std::ranges::all_of(timed, [](const Measured& run) {
    return run.prefill_seconds + run.decode_seconds > 0.0;
  });
}

bool Row::wrong() const { return identical == false && median().reproducible; }

const Measured& Row::median() const {
  std::vector<std::size_t> order(timed.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t at) { return timed[at].tokens_per_second; });
  return timed.at(order.at((order.size() - 1) / 2));
}
double Row::slowest() const {
  return std::ranges::min(timed, {}, &Measured::tokens_per_second).tokens_per_second;
}
double Row::fastest() const {
  return std::ranges::max(timed, {}, &Measured::tokens_per_second).tokens_per_second;
}

Measured read_summary(const std::string& path) {
  const Json json = parse_line(read_small_file(system_file_ops(), path, kMaxSummaryBytes), path);
  Measured run;
  run.tokens_per_second =
      number(at(json, {"throughput", "generated_tokens_per_second", "value"}, path));
  run.prefill_seconds = number(at(json, {"seconds", "prefill"}, path));
  run.decode_seconds = number(at(json, {"seconds", "decode"}, path));
  run.to_device_bytes = count(at(json, {"moved_bytes", "to_device"}, path));
  run.to_host_bytes = count(at(json, {"moved_bytes", "to_host"}, path));
  run.device_peak_bytes = count(at(json, {"peak_bytes", "device"}, path));
  run.host_peak_bytes = count(at(json, {"peak_bytes", "host"}, path));
  run.preemptions = count(at(json, {"placement", "preemptions"}, path));
  run.lines = count(at(json, {"requests", "total"}, path));
  run.failed_lines = count(at(json, {"requests", "failed"}, path));
  run.max_batch = static_cast<std::int64_t>(count(at(json, {"max_batch"}, path)));
  run.tokens_attended = number(at(json, {"attention", "tokens_attended_fraction"}, path));
  run.kv_dtype = text(at(json, {"model", "kv_dtype"}, path));
  run.cached_hidden_states = count(at(json, {"cached_hidden_states", "tokens"}, path));
  run.device = text(at(json, {"hardware", "device"}, path));
  const std::string cpu = text(at(json, {"hardware", "cpu"}, path));
  run.machine = run.device.ends_with(cpu) ? run.device : run.device + ", " + cpu;
  run.model_fingerprint = text(at(json, {"model", "fingerprint"}, path));
  if (const JsonArray* emulated = at(json, {"emulated"}, path).array()) {
    for (const Json& name : *emulated) run.emulated.push_back(text(name));
  }
  const Json* deterministic = at(json, {"options"}, path).find("deterministic");
  run.reproducible =
      run.device.starts_with("cpu: ") ||
      (deterministic != nullptr && text(at(*deterministic, {"value"}, path)) == "true");
  return run;
}

// One event a line, so that a trace of any length takes no memory.
Traced read_trace(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) unreadable(path, "no such file");
  Traced traced;
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with("{\"ph\"")) continue;
    if (line.ends_with(',')) line.pop_back();
    const Json event = parse_line(line, path);
    const std::string type = text(at(event, {"ph"}, path));
    if (type == "C") {
      traced.memory.push_back({std::ssize(traced.memory),
                               number(at(event, {"args", "device"}, path)),
                               number(at(event, {"args", "host"}, path))});
    } else if (type == "X") {
      add_span(event, path, traced.seconds);
      if (number(at(event, {"tid"}, path)) == 2.0) {
        traced.phases.push_back(
            {static_cast<std::int64_t>(number(at(event, {"args", "first_step"}, path))),
             text(at(event, {"name"}, path))});
      }
    }
  }
  std::ranges::sort(traced.phases, {}, &PhaseStart::step);
  return traced;
}

std::string Failure::text() const {
  if (lines == 1) return fmt::format("{}: 1 line: {}", code, message);
  return fmt::format("{}: {} lines, the first: {}", code, lines, message);
}

Completions read_completions(const std::string& path, std::vector<Failure>& failures) {
  std::ifstream file(path, std::ios::binary);
  if (!file) unreadable(path, "no such file");
  Completions completions;
  std::string line;
  while (std::getline(file, line)) {
    const Json record = parse_line(line, path);
    std::optional<LineTokens>& tokens = completions.emplace_back();
    const Json* error = record.find("error");
    if (error != nullptr && !error->is_null()) {
      add_failure(*error, path, failures);
      continue;
    }
    tokens.emplace();
    if (record.find("response") == nullptr) {
      tokens->push_back(token_ids(record, path));
      continue;
    }
    const JsonArray* choices = at(record, {"response", "body", "choices"}, path).array();
    if (choices == nullptr) unreadable(path, "choices that are no list");
    for (const Json& choice : *choices) tokens->push_back(token_ids(choice, path));
  }
  return completions;
}

std::optional<bool> identical(const Completions& reference, const Completions& other) {
  if (reference.size() != other.size()) return false;
  std::optional<bool> same;
  for (std::size_t line = 0; line < reference.size(); ++line) {
    if (!reference[line] || !other[line]) continue;
    if (*reference[line] != *other[line]) return false;
    same = true;
  }
  return same;
}

std::optional<double> agreement(const Completions& reference, const Completions& other) {
  double sum = 0.0;
  double prompts = 0.0;
  for (std::size_t line = 0; line < std::min(reference.size(), other.size()); ++line) {
    if (!reference[line] || !other[line]) continue;
    for (std::size_t part = 0; part < std::min(reference[line]->size(), other[line]->size());
         ++part) {
      const std::vector<std::int64_t>& expected = (*reference[line])[part];
      if (expected.empty()) continue;
      const auto differs = std::ranges::mismatch(expected, (*other[line])[part]);
      sum += static_cast<double>(differs.in1 - expected.begin()) /
             static_cast<double>(expected.size());
      prompts += 1.0;
    }
  }
  if (prompts == 0.0) return std::nullopt;
  return sum / prompts;
}

}  // namespace triphase::compare
