#include "runtime/job/job.h"

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

}  // namespace

JobEnd run_job(PromptReader& prompts, OutputFile& output, CompletionEngine& engine,
               Progress& progress, std::optional<std::uint64_t> total_requests,
               Watchdog* watchdog) {
  const StopRequests by_signals;
  std::unordered_map<std::uint64_t, Request> running;
  bool more_lines = true;

  const auto admit = [&] {
    while (more_lines && engine.has_room() && !stop_requested()) {
      if (engine.in_flight() > 0 && prompts.would_block()) return;
      std::optional<PromptLine> line = prompts.next();
      if (!line) {
        more_lines = false;
      } else if (auto* bad = std::get_if<BadLine>(&*line)) {
        if (!output.finished(bad->index)) {
          output.append(bad->index, record_line(*bad), bad->error.code);
        }
      } else if (auto& request = std::get<Request>(*line); !output.finished(request.index)) {
        running.emplace(request.index, identity_of(request));
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
    state.running = engine.in_flight();
    state.prompt_tokens = engine.prompt_tokens();
    state.generated_tokens = engine.generated_tokens();
    progress.update(state);
  };

  for (;;) {
    admit();
    if (stop_requested() || engine.in_flight() == 0) break;
    const Watchdog::Guard guard(watchdog);
    for (const Completion& completion : engine.step()) {
      const auto request = running.find(completion.index);
      TRIPHASE_CHECK(request != running.end(), "the engine returned a line it was not given");
      output.append(completion.index, record_line(request->second, completion),
                    completion.error ? completion.error->code : std::string());
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
