#pragma once

// The file of `run --trace`: Chrome's trace event format as a JSON object, which Perfetto opens.
// Schema: docs/schemas/trace.schema.json; what the lanes mean: docs/trace.md. A trace is for
// looking at, so a write that fails ends the trace with a warning and not the job.

#include <string>
#include <vector>

#include "base/trace.h"
#include "runtime/job/file_ops.h"
#include "runtime/log.h"
#include "runtime/options/run_options.h"

namespace triphase {

// Refuses --trace FILE that is there and is no trace of an earlier run: it would be overwritten.
// What no output may be, CommandFiles refuses. Throws E-CLI-OUTPUT.
void check_trace_location(const RunOptions& options);

// A lane's thread number ("tid") in the file; they count from 1.
[[nodiscard]] constexpr int trace_track(TraceLane lane) { return static_cast<int>(lane) + 1; }

class TraceFile {
 public:
  // Opens the file, replacing an earlier trace, and takes what `trace` has from now on. `emulated`:
  // as in the summary. Throws E-IO-*. Trace and log must outlive this.
  TraceFile(const RunOptions& options, const std::vector<std::string>& emulated, Trace& trace,
            Log& log, FileOps& ops = system_file_ops());
  // Closes.
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Takes the rest of the events and ends the JSON; only once.
  void close();

 private:
  void write(std::vector<TraceEvent>& events);
  void append(const TraceEvent& event);
  void put(std::string_view text);

  std::string path_;
  Trace* trace_;
  Log* log_;
  FileOps* ops_;
  FileDescriptor file_;  // none: closed, or given up
  TraceEvent::Clock::time_point start_;
  std::string text_;  // kept to reuse its memory
};

}  // namespace triphase
