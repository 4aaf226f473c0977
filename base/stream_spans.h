#pragma once

// Spans of work that a stream does after the host has queued it. Two events around the work are
// recorded on the stream, and read at a wait of the host that happens anyway. The times are put on
// the trace's clock. A device's clock runs at a speed of its own, so every collect() counts anew
// from the last event. It also keeps each span within what the host knows: work begins after it was
// queued and ends before the wait returned. For the thread that uses the stream. A failed device
// ends the spans and not the job.

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/device.h"
#include "base/trace.h"

namespace triphase {

class StreamSpans {
 public:
  using Clock = TraceEvent::Clock;

  // From now on `stream` times the trace's spans of the compute stream. Waits for the stream once.
  // All arguments must outlive this.
  StreamSpans(Device& device, Stream& stream, Trace& trace);
  // Waits for the stream where spans are not collected.
  ~StreamSpans();
  StreamSpans(const StreamSpans&) = delete;
  StreamSpans& operator=(const StreamSpans&) = delete;

  void open() noexcept;
  // Ends the span that was opened last; `span` says which it is, with times to be filled in.
  void close(const TraceEvent& span) noexcept;
  // Adds the spans to the trace. The host has waited for every span, and none is open.
  void collect() noexcept;

  // When the device reached the event, which may be of any of its streams.
  [[nodiscard]] Clock::time_point time_of(const Event& event) const;

 private:
  struct Span {
    std::unique_ptr<Event> begin;
    std::unique_ptr<Event> end;
    TraceEvent traced;
  };

  [[nodiscard]] std::unique_ptr<Event> take_event();
  void keep_within_what_the_host_knows();
  void give_up() noexcept;

  Device* device_;
  Stream* stream_;
  Trace* trace_;
  std::unique_ptr<Event> origin_;
  Clock::time_point origin_time_;
  std::vector<Span> spans_;         // in the order in which they were opened
  std::vector<std::size_t> open_;   // of spans_, the innermost last
  std::size_t last_closed_ = 0;     // of spans_
  Clock::time_point first_queued_;  // when the first of spans_ was opened
  Clock::time_point traced_until_;
  std::vector<std::unique_ptr<Event>> spare_events_;
  bool failed_ = false;
};

}  // namespace triphase
