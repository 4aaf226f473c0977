#pragma once

// What happened when, for `run --trace`: spans on lanes, counters, and the lives of requests.
// Whoever does the work adds events from its own thread; the job's thread hands them on between
// steps. All places that record take a Trace*, and null means off: then a span costs a branch or
// two. Spans of work that a device does later take its times (stream_spans.h). Spans are ranges of
// a profiler too, whether they are recorded or not.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace triphase {

class StreamSpans;

// Named ranges in whatever profiler watches this process, as NVTX (Nsight Systems shows them beside
// the kernels). In builds with the CUDA toolkit only; without a profiler a range costs a branch.
// Ranges of one thread nest.
#ifdef TRIPHASE_WITH_NVTX
void push_profiler_range(const char* name) noexcept;
void pop_profiler_range() noexcept;
#else
inline void push_profiler_range(const char* /*name*/) noexcept {}
inline void pop_profiler_range() noexcept {}
#endif

// Spans of one lane nest or follow each other. The order is that of the tracks in the file.
enum class TraceLane : std::uint8_t {
  kSteps,      // one span for each step of the engine
  kPhases,     // the latest phase that any running request is in
  kHost,       // the engine's own work: placement, sampling
  kCompute,    // the compute stream: the model's arithmetic, and its waits for weights and KV
  kRecompute,  // the same stream: KV computed again from cached hidden states
  kToDevice,   // the link, one span for each transfer
  kToHost,
};
inline constexpr int kTraceLanes = 7;

struct TraceValue {
  const char* name = nullptr;  // null: not used
  std::int64_t value = 0;
};

struct TraceEvent {
  using Clock = std::chrono::steady_clock;
  enum class Kind : std::uint8_t {
    kSpan,          // on a lane
    kRequest,       // a request's life, from admission to its end
    kRequestPhase,  // within it: a phase, or a preemption
    kCounter,       // the values from `begin` on
  };

  Kind kind = Kind::kSpan;
  TraceLane lane = TraceLane::kSteps;
  const char* name = "";     // of static storage
  std::int64_t request = 0;  // its index in the job; of kRequest and kRequestPhase
  Clock::time_point begin;
  Clock::time_point end;
  std::array<TraceValue, 4> values{};
};

class Trace {
 public:
  using Sink = std::function<void(std::vector<TraceEvent>& events)>;

  // From any thread. An event for which there is no memory is counted as lost.
  void add(const TraceEvent& event) noexcept;
  void count_lost(std::uint64_t events) noexcept;

  // What times the spans of the compute stream; null, as at first: the host's clock. Only while no
  // such span is open.
  void set_stream_spans(StreamSpans* spans) { stream_spans_ = spans; }
  [[nodiscard]] StreamSpans* stream_spans() const { return stream_spans_; }

  // Where events go; without a sink they are kept.
  void set_sink(Sink sink) { sink_ = std::move(sink); }
  // Hands over what there is, or only if there is much of it. One thread, and only while no span is
  // open that holds others.
  void flush();
  void flush_if_large();

  [[nodiscard]] std::uint64_t lost() const;
  // No event is earlier.
  [[nodiscard]] TraceEvent::Clock::time_point start() const { return start_; }

 private:
  const TraceEvent::Clock::time_point start_ = TraceEvent::Clock::now();
  mutable std::mutex mutex_;
  std::vector<TraceEvent> events_;
  std::vector<TraceEvent> leaving_;
  std::uint64_t lost_ = 0;
  Sink sink_;
  StreamSpans* stream_spans_ = nullptr;
};

// A span from construction to destruction. On a lane of the compute stream it covers the work that
// is queued meanwhile.
class TraceSpan {
 public:
  // `wanted`: whether there is anything to see; else it is no range either.
  TraceSpan(Trace* trace, TraceLane lane, const char* name, bool wanted = true)
      : trace_(wanted ? trace : nullptr), wanted_(wanted) {
    if (wanted_) push_profiler_range(name);
    if (trace_ != nullptr) begin(lane, name);
  }
  ~TraceSpan() {
    if (trace_ != nullptr) end();
    if (wanted_) pop_profiler_range();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

  // A value of the event, by a name of static storage; as many as TraceEvent has room for.
  void note(const char* name, std::int64_t value) {
    if (trace_ != nullptr) put(name, value);
  }

 private:
  void begin(TraceLane lane, const char* name);
  void end();
  void put(const char* name, std::int64_t value);
  // Null: the host's clock times the span.
  [[nodiscard]] StreamSpans* stream_spans() const;

  Trace* trace_;
  bool wanted_;
  std::optional<TraceEvent> event_;
};

}  // namespace triphase
