#pragma once

// Which phase every running request is in, step by step: the boundaries for the summary, and spans
// for a trace. A request's phase is where its blocks are: all on the device (I), some on the host
// (II), some to be recomputed (III). Not thread safe.

#include <cstdint>
#include <vector>

#include "base/trace.h"
#include "scheduler/placement/phase_boundaries.h"

namespace triphase {

// What the log remembers of one request.
struct RequestPhase {
  Phase now = Phase::kOne;
  Phase latest = Phase::kOne;  // the latest it was in, even if its blocks came back since
  std::int64_t context = 0;    // tokens when `now` began
  TraceEvent::Clock::time_point admitted;
  TraceEvent::Clock::time_point since;  // when `now`, or the preemption, began
};

class PhaseLog {
 public:
  void set_trace(Trace* trace) { trace_ = trace; }

  // A request's life. `index`: its place in the job. A preemption ends with resumed().
  void admitted(RequestPhase& phase, std::int64_t context) const;
  void preempted(RequestPhase& phase, std::int64_t index) const;
  void resumed(RequestPhase& phase, std::int64_t index, std::int64_t context) const;
  void ended(const RequestPhase& phase, std::int64_t index) const;

  // After a step's placement: begin_step(), see() for every running request, end_step().
  void begin_step(std::int64_t step);
  void see(RequestPhase& phase, Phase now, std::int64_t index, std::int64_t context,
           std::int64_t prompt_tokens);
  void end_step();
  // The latest phase that any request of the step is in.
  [[nodiscard]] Phase of_step() const { return of_step_; }

  // Ends the span of the present phase; nothing may follow.
  void finish();

  [[nodiscard]] std::vector<PhaseBoundary> boundaries() const { return boundaries_.met(); }

 private:
  void end_phase(const RequestPhase& phase, std::int64_t index, const char* name) const;
  void end_batch_phase();

  PhaseBoundaries boundaries_;
  std::int64_t step_ = 0;
  Phase of_step_ = Phase::kOne;
  Trace* trace_ = nullptr;
  // The span of the phases lane that is open.
  Phase batch_phase_ = Phase::kOne;
  std::int64_t batch_steps_ = 0;  // 0: none is open
  std::int64_t batch_first_step_ = 0;
  TraceEvent::Clock::time_point batch_since_;
};

}  // namespace triphase
