#include "base/trace.h"

#include <new>
#include <utility>

#include "base/stream_spans.h"

namespace triphase {
namespace {

constexpr std::size_t kLarge = 4096;

}  // namespace

void Trace::add(const TraceEvent& event) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    events_.push_back(event);
  } catch (const std::bad_alloc&) {
    ++lost_;
  }
}

void Trace::count_lost(std::uint64_t events) noexcept {
  const std::lock_guard lock(mutex_);
  lost_ += events;
}

void Trace::flush() {
  if (!sink_) return;
  leaving_.clear();
  {
    const std::lock_guard lock(mutex_);
    std::swap(events_, leaving_);
  }
  // Outside of the lock: a slow disk must not hold up the lanes.
  sink_(leaving_);
}

void Trace::flush_if_large() {
  {
    const std::lock_guard lock(mutex_);
    if (events_.size() < kLarge) return;
  }
  flush();
}

std::uint64_t Trace::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

StreamSpans* TraceSpan::stream_spans() const {
  const bool of_stream =
      event_->lane == TraceLane::kCompute || event_->lane == TraceLane::kRecompute;
  return of_stream ? trace_->stream_spans() : nullptr;
}

void TraceSpan::begin(TraceLane lane, const char* name) {
  event_.emplace();
  event_->lane = lane;
  event_->name = name;
  if (StreamSpans* spans = stream_spans()) {
    spans->open();
  } else {
    event_->begin = TraceEvent::Clock::now();
  }
}

void TraceSpan::end() {
  if (StreamSpans* spans = stream_spans()) {
    spans->close(*event_);
  } else {
    event_->end = TraceEvent::Clock::now();
    trace_->add(*event_);
  }
}

void TraceSpan::put(const char* name, std::int64_t value) {
  for (TraceValue& slot : event_->values) {
    if (slot.name != nullptr) continue;
    slot = {name, value};
    return;
  }
}

}  // namespace triphase
