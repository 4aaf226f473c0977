#include "runtime/job/job.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "runtime/job/output_record.h"
#include "runtime/signals.h"

namespace triphase {
namespace {

// What a record needs of its request once the engine has taken it.
Request identity_of(const Request& request) {
  Request kept{static_cast<const LineIdentity&>(request)};
  kept.parts = request.parts;
  kept.prompt_form = request.prompt_form;
  kept.served_model = request.served_model;
  return kept;
}

// A line whose prompts are in the engine.
struct RunningLine {
  Request request;
  std::vector<Completion> completions;

  // Whether it was the last one.
  bool add(Completion completion) {
    completions.push_back(std::move(completion));
    if (completions.size() < request.parts) return false;
    std::ranges::sort(completions, {}, &Completion::part);
    return true;
  }
  // The first of its parts' errors, or null.
  [[nodiscard]] const RecordError* error() const {
    const auto failed = std::ranges::find_if(
        completions, [](const Completion& one) { return one.error.has_value(); });
    return failed == completions.end() ? nullptr : &*failed->error;
  }
};

// How much of a run's work is done. Requests that run count by the tokens that they have beside the
// most that they may get, so that there is an answer before the first line ends.
class WorkDone {
 public:
  void submitted(const Request& request) {
    if (request.part == 0) ++lines_;
    most_tokens_ += static_cast<double>(request.sampling.max_tokens);
  }
  void finished(const Completion& completion) { finished_tokens_ += completion.tokens.size(); }

  // Nothing: not known. `done` and `total`: of this run's lines.
  [[nodiscard]] std::optional<double> fraction(std::uint64_t done, std::uint64_t total,
                                               std::uint64_t generated_tokens) const {
    if (total == 0) return std::nullopt;
    double lines = static_cast<double>(done);
    if (most_tokens_ > 0.0) {
      const std::uint64_t unfinished =
          generated_tokens - std::min(generated_tokens, finished_tokens_);
      lines += static_cast<double>(unfinished) * static_cast<double>(lines_) / most_tokens_;
    }
    return std::min(lines / static_cast<double>(total), 1.0);
  }

 private:
  std::uint64_t lines_ = 0;
  double most_tokens_ = 0.0;  // the most that these requests can generate
  std::uint64_t finished_tokens_ = 0;
};

}  // namespace

JobEnd run_job(PromptReader& prompts, OutputFile& output, CompletionEngine& engine,
               Progress& progress, const JobSetting& setting) {
  const StopRequests by_signals;
  std::unordered_map<std::uint64_t, RunningLine> running;
  const RecordJob job{job_key(output.manifest()), output.manifest().started};
  bool more_lines = true;
  WorkDone work;
  bool failed = false;
  bool longer_lines_left = false;
  const std::uint64_t before = output.counts().total();
  const auto tell_failure = [&](std::uint64_t index, const RecordError& error) {
    if (!std::exchange(failed, true)) progress.first_failure(index + 1, error.code, error.message);
  };

  const auto admit = [&] {
    while (more_lines && engine.has_room() && !stop_requested()) {
      if (engine.in_flight() > 0 && prompts.would_block()) return;
      std::optional<PromptLine> line = prompts.next();
      if (!line) {
        more_lines = false;
      } else if (auto* bad = std::get_if<BadLine>(&*line)) {
        if (!output.finished(bad->index)) {
          output.append(bad->index, record_line(*bad, job), bad->error.code);
          tell_failure(bad->index, bad->error);
        }
      } else if (auto& request = std::get<Request>(*line); !output.finished(request.index)) {
        if (request.part == 0) running[request.index].request = identity_of(request);
        work.submitted(request);
        engine.submit(std::move(request));
      }
    }
  };
  const auto report = [&] {
    ProgressState state;
    state.done = output.counts().total();
    state.failed = output.counts().failed();
    state.resumed = output.resumed();
    state.total = setting.total_requests;
    state.running = engine.running();
    state.prompt_tokens = engine.prompt_tokens();
    state.generated_tokens = engine.generated_tokens();
    state.scores = engine.scores();
    if (const auto total = setting.total_requests) {
      state.fraction = work.fraction(state.done - before, *total - std::min(*total, before),
                                     state.generated_tokens);
    }
    progress.update(state);
  };

  // Who reads the records may pause as long as they like: printing is not watched.
  const auto step = [&] {
    const Watchdog::Guard guard(setting.watchdog);
    return engine.step();
  };
  for (;;) {
    admit();
    if (stop_requested() || engine.in_flight() == 0) break;
    for (Completion& completion : step()) {
      const auto line = running.find(completion.index);
      TRIPHASE_CHECK(line != running.end(), "the engine returned a request it was not given");
      work.finished(completion);
      if (!line->second.add(std::move(completion))) continue;
      const RecordError* error = line->second.error();
      if (setting.leaves_longer_lines && error != nullptr && error->code == kLineNeedsMemory) {
        longer_lines_left = true;
        running.erase(line);
        continue;
      }
      output.append(line->first, record_line(line->second.request, line->second.completions, job),
                    error == nullptr ? std::string() : error->code);
      if (error != nullptr) tell_failure(line->first, *error);
      running.erase(line);
    }
    report();
  }
  output.sync();
  if (stop_requested()) return JobEnd::kStopped;
  TRIPHASE_CHECK(!more_lines && running.empty(), "every line has its record");
  return longer_lines_left ? JobEnd::kLongerLinesLeft : JobEnd::kAllLines;
}

int exit_code_of(const RecordCounts& counts) { return counts.failed() == 0 ? 0 : 1; }

}  // namespace triphase
