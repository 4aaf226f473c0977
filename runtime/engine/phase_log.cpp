#include "runtime/engine/phase_log.h"

#include <algorithm>

namespace triphase {
namespace {

using Clock = TraceEvent::Clock;

}  // namespace

void PhaseLog::admitted(RequestPhase& phase, std::int64_t context) const {
  if (trace_ == nullptr) return;
  phase.admitted = phase.since = Clock::now();
  phase.context = context;
}

void PhaseLog::preempted(RequestPhase& phase, std::int64_t index) const {
  if (trace_ == nullptr) return;
  end_phase(phase, index, phase_name(phase.now));
  phase.since = Clock::now();
}

void PhaseLog::resumed(RequestPhase& phase, std::int64_t index, std::int64_t context) const {
  if (trace_ == nullptr) return;
  end_phase(phase, index, "preempted");
  phase.since = Clock::now();
  phase.context = context;
}

void PhaseLog::ended(const RequestPhase& phase, std::int64_t index) const {
  if (trace_ == nullptr) return;
  end_phase(phase, index, phase_name(phase.now));
  trace_->add({.kind = TraceEvent::Kind::kRequest,
               .lane = TraceLane::kPhases,
               .name = "request",
               .request = index,
               .begin = phase.admitted,
               .end = Clock::now()});
}

void PhaseLog::begin_step(std::int64_t step) {
  step_ = step;
  of_step_ = Phase::kOne;
}

void PhaseLog::see(RequestPhase& phase, Phase now, std::int64_t index, std::int64_t context,
                   std::int64_t prompt_tokens) {
  of_step_ = std::max(of_step_, now);
  if (now == phase.now) return;
  if (trace_ != nullptr) end_phase(phase, index, phase_name(phase.now));
  if (now > phase.latest) {
    boundaries_.enter(now, step_, context, prompt_tokens);
    phase.latest = now;
  }
  phase.now = now;
  phase.context = context;
  if (trace_ != nullptr) phase.since = Clock::now();
}

void PhaseLog::end_step() {
  if (trace_ == nullptr) return;
  if (batch_steps_ > 0 && batch_phase_ != of_step_) end_batch_phase();
  if (batch_steps_ == 0) {
    batch_phase_ = of_step_;
    batch_first_step_ = step_;
    batch_since_ = Clock::now();
  }
  ++batch_steps_;
}

void PhaseLog::finish() {
  if (trace_ != nullptr && batch_steps_ > 0) end_batch_phase();
}

void PhaseLog::end_batch_phase() {
  trace_->add({.lane = TraceLane::kPhases,
               .name = phase_name(batch_phase_),
               .begin = batch_since_,
               .end = Clock::now(),
               .values = {{{"first_step", batch_first_step_}, {"steps", batch_steps_}}}});
  batch_steps_ = 0;
}

void PhaseLog::end_phase(const RequestPhase& phase, std::int64_t index, const char* name) const {
  trace_->add({.kind = TraceEvent::Kind::kRequestPhase,
               .lane = TraceLane::kPhases,
               .name = name,
               .request = index,
               .begin = phase.since,
               .end = Clock::now(),
               .values = {{{"context", phase.context}}}});
}

}  // namespace triphase
