#include "base/stream_spans.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace triphase {

StreamSpans::StreamSpans(Device& device, Stream& stream, Trace& trace)
    : device_(&device), stream_(&stream), trace_(&trace), origin_(device.make_event()) {
  origin_->record(stream);
  origin_->synchronize();
  origin_time_ = Clock::now();
  traced_until_ = trace.start();
  trace.set_stream_spans(this);
}

StreamSpans::~StreamSpans() {
  trace_->set_stream_spans(nullptr);
  if (spans_.empty()) return;
  try {
    stream_->synchronize();
  } catch (const std::exception&) {
    // A failed device says so where its results are wanted.
    give_up();
  }
  collect();
}

std::unique_ptr<Event> StreamSpans::take_event() {
  if (spare_events_.empty()) return device_->make_event();
  std::unique_ptr<Event> event = std::move(spare_events_.back());
  spare_events_.pop_back();
  return event;
}

void StreamSpans::give_up() noexcept {
  trace_->count_lost(spans_.size());
  spans_.clear();
  open_.clear();
  failed_ = true;
}

void StreamSpans::open() noexcept {
  if (failed_) return;
  try {
    if (spans_.empty()) first_queued_ = Clock::now();
    Span& span = spans_.emplace_back();
    span.begin = take_event();
    span.end = take_event();
    span.begin->record(*stream_);
    open_.push_back(spans_.size() - 1);
  } catch (const std::exception&) {
    give_up();
  }
}

void StreamSpans::close(const TraceEvent& span) noexcept {
  if (failed_) return;
  try {
    last_closed_ = open_.back();
    open_.pop_back();
    spans_[last_closed_].traced = span;
    spans_[last_closed_].end->record(*stream_);
  } catch (const std::exception&) {
    give_up();
  }
}

StreamSpans::Clock::time_point StreamSpans::time_of(const Event& event) const {
  const std::chrono::duration<double> since(event.seconds_since(*origin_));
  return origin_time_ + std::chrono::duration_cast<Clock::duration>(since);
}

void StreamSpans::keep_within_what_the_host_knows() {
  const Clock::time_point now = Clock::now();
  const Clock::time_point begin = time_of(*spans_.front().begin);
  const Clock::time_point end = time_of(*spans_[last_closed_].end);
  if (end > now) {
    origin_time_ -= end - now;
  } else if (begin < first_queued_) {
    origin_time_ += std::min(first_queued_ - begin, now - end);
  }
}

void StreamSpans::collect() noexcept {
  if (spans_.empty()) return;
  try {
    keep_within_what_the_host_knows();
    // Spans of a lane follow each other, also where the count was set back.
    const auto traced = [&](const Event& event) { return std::max(time_of(event), traced_until_); };
    for (Span& span : spans_) {
      span.traced.begin = traced(*span.begin);
      span.traced.end = traced(*span.end);
      trace_->add(span.traced);
    }
    std::unique_ptr<Event>& last = spans_[last_closed_].end;
    traced_until_ = traced(*last);
    origin_time_ = time_of(*last);
    std::swap(origin_, last);
    for (Span& span : spans_) {
      spare_events_.push_back(std::move(span.begin));
      spare_events_.push_back(std::move(span.end));
    }
    spans_.clear();
  } catch (const std::exception&) {
    give_up();
  }
}

}  // namespace triphase
