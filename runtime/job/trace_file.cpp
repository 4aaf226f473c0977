#include "runtime/job/trace_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>

#include "base/error.h"
#include "base/json.h"
#include "runtime/build_info.h"

namespace triphase {
namespace {

// An earlier trace is known by this beginning.
constexpr std::string_view kBeginning =
    "{\"displayTimeUnit\": \"ms\", \"otherData\": {\"format\": \"triphase-trace/1\"";

// In the order of TraceLane.
constexpr std::array<const char*, kTraceLanes> kLaneNames = {
    "steps", "phases", "host work", "compute", "recompute", "link to device", "link to host"};

// Microseconds, with the clock's nanoseconds kept.
void append_microseconds(std::string& text, TraceEvent::Clock::duration time) {
  const std::int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  fmt::format_to(std::back_inserter(text), "{}.{:03}", ns / 1000, ns % 1000);
}

void append_values(std::string& text, const TraceEvent& event) {
  text += ", \"args\": {";
  const char* separator = "";
  for (const TraceValue& value : event.values) {
    if (value.name == nullptr) break;
    fmt::format_to(std::back_inserter(text), "{}\"{}\": {}", separator, value.name, value.value);
    separator = ", ";
  }
  text += "}";
}

std::string beginning(const std::vector<std::string>& emulated) {
  std::string text = fmt::format(
      "{}, \"program\": {}, \"emulated\": {}}}, \"traceEvents\": [\n"
      "{{\"ph\": \"M\", \"pid\": 1, \"name\": \"process_name\", \"args\": {{\"name\": "
      "\"triphase\"}}}}",
      kBeginning, json_quote(fmt::format("{} {}", program_version(), build_commit())),
      json_quote(fmt::format("{}", fmt::join(emulated, ", "))));
  for (std::size_t lane = 0; lane < kLaneNames.size(); ++lane) {
    text += fmt::format(
        ",\n{{\"ph\": \"M\", \"pid\": 1, \"tid\": {0}, \"name\": \"thread_name\", \"args\": "
        "{{\"name\": \"{1}\"}}}}"
        ",\n{{\"ph\": \"M\", \"pid\": 1, \"tid\": {0}, \"name\": \"thread_sort_index\", "
        "\"args\": {{\"sort_index\": {0}}}}}",
        lane + 1, kLaneNames[lane]);
  }
  return text;
}

}  // namespace

void check_trace_location(const RunOptions& options) {
  if (options.trace.empty()) return;
  struct stat status = {};
  if (::stat(options.trace.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  if (status.st_size == 0) return;
  FileOps& ops = system_file_ops();
  const FileDescriptor file(ops, open_repeating(ops, options.trace, O_RDONLY | O_CLOEXEC, 0));
  if (!file.valid()) throw_io_error(options.trace, "open", errno);
  std::string there(kBeginning.size(), '\0');
  there.resize(read_at(ops, file.get(), there.data(), there.size(), 0, options.trace));
  if (there == kBeginning) return;
  throw Error(ErrorRole::kUsage, "E-CLI-OUTPUT", "--trace")
      .file(options.trace)
      .found("a file that is no trace")
      .expected("a new name, or an earlier trace");
}

TraceFile::TraceFile(const RunOptions& options, const std::vector<std::string>& emulated,
                     Trace& trace, Log& log, FileOps& ops)
    : path_(options.trace), trace_(&trace), log_(&log), ops_(&ops), start_(trace.start()) {
  file_ = FileDescriptor(ops, open_output(ops, path_, O_WRONLY | O_CREAT | O_TRUNC,
                                          options.private_files ? 0600 : 0666));
  if (!file_.valid()) throw_io_error(path_, "open", errno);
  put(beginning(emulated));
  trace.set_sink([this](std::vector<TraceEvent>& events) { write(events); });
}

TraceFile::~TraceFile() { close(); }

void TraceFile::close() {
  if (trace_ == nullptr) return;
  trace_->flush();
  trace_->set_sink({});
  put("\n]}\n");
  if (const std::uint64_t lost = trace_->lost(); lost > 0) {
    log_->warning(fmt::format("{}: {} events are missing, memory ran out", path_, lost));
  }
  trace_ = nullptr;
  file_.reset();
}

void TraceFile::write(std::vector<TraceEvent>& events) {
  // Where two spans begin together the longer one holds the other, and comes first.
  std::ranges::stable_sort(events, [](const TraceEvent& a, const TraceEvent& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  text_.clear();
  for (const TraceEvent& event : events) append(event);
  put(text_);
}

void TraceFile::append(const TraceEvent& event) {
  using Kind = TraceEvent::Kind;
  const auto common = [&](const char* type, TraceEvent::Clock::time_point time) {
    fmt::format_to(std::back_inserter(text_),
                   ",\n{{\"ph\": \"{}\", \"pid\": 1, \"tid\": {}, \"name\": \"{}\", \"ts\": ", type,
                   trace_track(event.lane), event.name);
    append_microseconds(text_, time - start_);
  };
  switch (event.kind) {
    case Kind::kSpan:
      common("X", event.begin);
      text_ += ", \"dur\": ";
      append_microseconds(text_, event.end - event.begin);
      append_values(text_, event);
      text_ += "}";
      return;
    case Kind::kCounter:
      common("C", event.begin);
      append_values(text_, event);
      text_ += "}";
      return;
    case Kind::kLine:
    case Kind::kLinePhase:
      for (const bool begins : {true, false}) {
        common(begins ? "b" : "e", begins ? event.begin : event.end);
        fmt::format_to(std::back_inserter(text_), ", \"cat\": \"line\", \"id\": {}", event.line);
        append_values(text_, event);
        text_ += "}";
      }
      return;
  }
}

void TraceFile::put(std::string_view text) {
  if (!file_.valid()) return;
  try {
    write_all(*ops_, file_.get(), text, path_);
  } catch (const Error& error) {
    log_->warning(fmt::format("the trace ends here: {}", error.message()));
    file_.reset();
  }
}

}  // namespace triphase
