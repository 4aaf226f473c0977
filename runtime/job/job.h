#pragma once

// The job around an engine: prompt lines in, records out, stopping, progress. The engine is behind
// a small interface so that the protocol can be tested without a model. One thread.

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/job/output_file.h"
#include "runtime/job/prompt_file.h"
#include "runtime/job/request.h"
#include "runtime/progress.h"
#include "runtime/watchdog.h"

namespace triphase {

class CompletionEngine {
 public:
  virtual ~CompletionEngine() = default;
  // May another request be submitted before the next step?
  [[nodiscard]] virtual bool has_room() const = 0;
  // Takes a request. A request that cannot run (too long, bad token id) comes back from the next
  // step() as a Completion with an error.
  virtual void submit(Request request) = 0;
  // Requests submitted and not yet returned.
  [[nodiscard]] virtual std::uint64_t in_flight() const = 0;
  // Requests in flight that are computed together; the others wait.
  [[nodiscard]] virtual std::uint64_t running() const = 0;
  // Whether completions are given and scored, not generated.
  [[nodiscard]] virtual bool scores() const { return false; }
  // Does some work and returns what finished. Called only while in_flight() > 0.
  [[nodiscard]] virtual std::vector<Completion> step() = 0;
  // Tokens of this run, for progress; prompts' where they were computed, not shared.
  [[nodiscard]] virtual std::uint64_t prompt_tokens() const = 0;
  [[nodiscard]] virtual std::uint64_t generated_tokens() const = 0;
};

enum class JobEnd : std::uint8_t { kAllLines, kLongerLinesLeft, kStopped };

struct JobSetting {
  std::optional<std::uint64_t> total_requests;  // of the file, for progress; nothing: not known
  // Lines that need more memory than this engine has get no record: another engine follows.
  bool leaves_longer_lines = false;
  Watchdog* watchdog = nullptr;
};

// Runs every line of `prompts` that `output` does not have yet. Ends early when stop_requested():
// the step under way is finished, its records are kept, unfinished requests are dropped (they are
// redone on resume). Everything appended is durable on return and when an exception leaves. Does
// not commit.
[[nodiscard]] JobEnd run_job(PromptReader& prompts, OutputFile& output, CompletionEngine& engine,
                             Progress& progress, const JobSetting& setting);

// 0 when every record succeeded, 1 when at least one has an error.
[[nodiscard]] int exit_code_of(const RecordCounts& counts);

}  // namespace triphase
