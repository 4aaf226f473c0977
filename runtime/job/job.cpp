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
  Request kept;
  kept.index = request.index;
  kept.line_form = request.line_form;
  kept.id = request.id;
  kept.id_is_number = request.id_is_number;
  kept.served_model = request.served_model;
  return kept;
}

// How much of a run's work is done. Requests that run count by the tokens that they have beside the
// most that they may get, so that there is an answer before the first request ends.
class WorkDone {
 public:
  void submitted(const Request& request) {
    ++requests_;
    most_tokens_ += static_cast<double>(request.sampling.max_tokens);
  }
  void finished(const Completion& completion) { finished_tokens_ += completion.tokens.size(); }

  // Nothing: not known. `done` and `total`: of this run's requests.
  [[nodiscard]] std::optional<double> fraction(std::uint64_t done, std::uint64_t total,
                                               std::uint64_t generated_tokens) const {
    if (total == 0) return std::nullopt;
    double requests = static_cast<double>(done);
    if (most_tokens_ > 0.0) {
      const std::uint64_t unfinished =
          generated_tokens - std::min(generated_tokens, finished_tokens_);
      requests += static_cast<double>(unfinished) * static_cast<double>(requests_) / most_tokens_;
    }
    return std::min(requests / static_cast<double>(total), 1.0);
  }

 private:
  std::uint64_t requests_ = 0;
  double most_tokens_ = 0.0;  // the most that these requests can generate
  std::uint64_t finished_tokens_ = 0;
};

}  // namespace

JobEnd run_job(PromptReader& prompts, OutputFile& output, CompletionEngine& engine,
               Progress& progress, std::optional<std::uint64_t> total_requests,
               Watchdog* watchdog) {
  const StopRequests by_signals;
  std::unordered_map<std::uint64_t, Request> running;
  bool more_lines = true;
  WorkDone work;
  bool failed = false;
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
          output.append(bad->index, record_line(*bad), bad->error.code);
          tell_failure(bad->index, bad->error);
        }
      } else if (auto& request = std::get<Request>(*line); !output.finished(request.index)) {
        running.emplace(request.index, identity_of(request));
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
    state.total = total_requests;
    state.running = engine.running();
    state.prompt_tokens = engine.prompt_tokens();
    state.generated_tokens = engine.generated_tokens();
    state.scores = engine.scores();
    if (total_requests) {
      state.fraction = work.fraction(state.done - std::min(state.done, state.resumed),
                                     *total_requests - std::min(*total_requests, state.resumed),
                                     state.generated_tokens);
    }
    progress.update(state);
  };

  for (;;) {
    admit();
    if (stop_requested() || engine.in_flight() == 0) break;
    const Watchdog::Guard guard(watchdog);
    for (const Completion& completion : engine.step()) {
      const auto request = running.find(completion.index);
      TRIPHASE_CHECK(request != running.end(), "the engine returned a request it was not given");
      output.append(completion.index, record_line(request->second, completion),
                    completion.error ? completion.error->code : std::string());
      if (completion.error) tell_failure(completion.index, *completion.error);
      work.finished(completion);
      running.erase(request);
    }
    report();
  }
  output.sync();
  if (stop_requested()) return JobEnd::kStopped;
  TRIPHASE_CHECK(!more_lines && running.empty(), "every line has its record");
  return JobEnd::kAllLines;
}

int exit_code_of(const RecordCounts& counts) { return counts.failed() == 0 ? 0 : 1; }

}  // namespace triphase
