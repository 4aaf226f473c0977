#include "runtime/job/trace_file.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include "base/error.h"
#include "base/json_writer.h"
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
std::string microseconds(TraceEvent::Clock::duration time) {
  const std::int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
}

void write_values(JsonWriter& json, const TraceEvent& event) {
  json.key("args").begin_object();
  for (const TraceValue& value : event.values) {
    if (value.name == nullptr) break;
    json.member(value.name, value.value);
  }
  json.end();
}

// An object of the list of events; the first one begins it.
void write_name(std::string& text, std::string_view of, std::optional<std::size_t> track,
                JsonMember value) {
  text += track ? ",\n" : "\n";
  JsonWriter json(text, JsonWriter::Layout::kSpaced);
  json.begin_object().members({{"ph", "M"}, {"pid", 1}});
  if (track) json.member("tid", *track);
  json.member("name", of).key("args").object({value}).end();
}

std::string beginning(const std::vector<std::string>& emulated) {
  std::string text(kBeginning);
  text += ", \"program\": ";
  append_json_quoted(text, fmt::format("{} {}", program_version(), build_commit()));
  text += ", \"emulated\": ";
  append_json_quoted(text, fmt::format("{}", fmt::join(emulated, ", ")));
  text += "}, \"traceEvents\": [";
  write_name(text, "process_name", std::nullopt, {"name", "triphase"});
  for (std::size_t lane = 0; lane < kLaneNames.size(); ++lane) {
    write_name(text, "thread_name", lane + 1, {"name", kLaneNames[lane]});
    write_name(text, "thread_sort_index", lane + 1, {"sort_index", lane + 1});
  }
  return text;
}

}  // namespace

void check_trace_location(const RunOptions& options) {
  if (options.looking.trace.empty()) return;
  require_earlier_output("--trace", options.looking.trace, kBeginning, "trace");
}

TraceFile::TraceFile(const RunOptions& options, const std::vector<std::string>& emulated,
                     Trace& trace, Log& log, FileOps& ops)
    : path_(options.looking.trace), trace_(&trace), log_(&log), ops_(&ops), start_(trace.start()) {
  file_ = FileDescriptor(ops, open_output(ops, path_, O_WRONLY | O_CREAT | O_TRUNC,
                                          options.files.private_files ? 0600 : 0666));
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
    log_->warning(fmt::format("{}: {} events are missing: memory ran out, or the device failed",
                              path_, lost));
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
  const auto write = [&](const char* type, TraceEvent::Clock::time_point time) {
    text_ += ",\n";
    JsonWriter json(text_, JsonWriter::Layout::kSpaced);
    json.begin_object().members({{"ph", type},
                                 {"pid", 1},
                                 {"tid", trace_track(event.lane)},
                                 {"name", event.name},
                                 {"ts", JsonText{microseconds(time - start_)}}});
    if (event.kind == Kind::kSpan) {
      json.member("dur", JsonText{microseconds(event.end - event.begin)});
    } else if (event.kind != Kind::kCounter) {
      json.members({{"cat", "request"}, {"id", event.request}});
    }
    write_values(json, event);
    json.end();
  };
  switch (event.kind) {
    case Kind::kSpan:
      return write("X", event.begin);
    case Kind::kCounter:
      return write("C", event.begin);
    case Kind::kRequest:
    case Kind::kRequestPhase:
      write("b", event.begin);
      return write("e", event.end);
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
