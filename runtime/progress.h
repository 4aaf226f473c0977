#pragma once

// Shows how far a long command is: on a terminal one line redrawn in place, elsewhere a plain line
// every 10 seconds, or JSON lines with --progress=json. Uses the monotonic clock only. Not thread
// safe; drawing goes through Log.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "base/format_bytes.h"
#include "base/json_writer.h"
#include "runtime/log.h"
#include "runtime/options/run_options.h"

namespace triphase {

struct ProgressState {
  std::uint64_t done = 0;  // records in the output, failed and resumed ones included
  std::uint64_t failed = 0;
  std::uint64_t resumed = 0;           // part of `done` from earlier runs
  std::optional<std::uint64_t> total;  // nothing: shown as "?"
  std::uint64_t running = 0;           // sequences in the batch
  std::uint64_t prompt_tokens = 0;     // computed in this run
  std::uint64_t generated_tokens = 0;  // of this run
  bool scores = false;                 // nothing is generated
  std::optional<double> fraction;      // of this run's work in [0, 1]; nothing: not known
};

class Progress {
 public:
  using Clock = std::function<double()>;  // seconds, monotonic

  Progress(Log& log, ProgressMode mode, Clock clock = {});
  ~Progress();  // removes the status line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // The phases that follow are one part of a longer work: "cell 2 of 6 (vllm, swa)", from the share
  // `from` to the share `to` of it. ETAs are of the whole work, from the first part to the last.
  void begin_part(std::string_view name, double from, double to);
  void end_parts();
  // "reading prompts", "loading model", "generating", "writing output": shown at once (within a
  // part, on a terminal alone), and restarts the rates.
  void begin_phase(std::string_view name);
  // Cheap enough for every step: draws at most ten times a second (terminal) or every 10 s.
  void update(const ProgressState& state);
  // Warns of the first line of the prompt file (counted from 1) whose record is an error.
  void first_failure(std::uint64_t line, std::string_view code, std::string_view message);
  // For phases measured in bytes (loading, writing, reading).
  void update_bytes(std::uint64_t done, std::uint64_t total);
  // For phases that consist of windows, layers, questions, ...
  void update_items(std::uint64_t done, std::uint64_t total);
  // For work that takes a given time; `fraction` of it in [0, 1].
  void update_share(double fraction);
  void finish();

 private:
  [[nodiscard]] bool due(double now);
  // What is going on: its part, its phase, or both.
  [[nodiscard]] std::string label() const;
  // Seconds left when `fraction` of the phase is done: of the phase, or of all parts.
  [[nodiscard]] std::optional<double> eta(double now, double fraction) const;
  // `members`: of the line's JSON object.
  void draw(std::string_view text, std::initializer_list<JsonMember> members);

  Log& log_;
  ProgressMode mode_;
  Clock clock_;
  std::string phase_;
  double phase_start_ = 0.0;
  struct Part {
    std::string name;
    double from = 0.0;
    double to = 1.0;
    double whole_start = 0.0;
  };
  std::optional<Part> part_;
  double last_draw_ = -1e9;
};

// "1h02m", "3m05s", "12s": for ETA and reports.
[[nodiscard]] std::string format_duration(double seconds);

}  // namespace triphase
