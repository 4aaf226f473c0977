// Spans that events time, on a device that runs its work whenever it likes: their times are those
// of the work, not of its queueing.

#include "base/stream_spans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "memory/transfer/stream_transfer_engine.h"
#include "tests/emulated/emulated_device.h"

namespace triphase::emulated {
namespace {

using Clock = TraceEvent::Clock;
using std::chrono::milliseconds;

constexpr std::uint64_t kSchedules = 6;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

class StreamSpansOnDevice : public testing::TestWithParam<std::uint64_t> {
 protected:
  StreamSpansOnDevice()
      : device(DeviceSettings{.schedule = GetParam()}),
        compute(device.make_stream()),
        link(device.make_stream()) {
    trace.set_sink([this](std::vector<TraceEvent>& left) {
      events.insert(events.end(), left.begin(), left.end());
    });
  }

  static void work(milliseconds time, Stream& stream) {
    run_on(stream, [time] { std::this_thread::sleep_for(time); });
  }
  [[nodiscard]] std::vector<TraceEvent> lane(TraceLane lane) {
    trace.flush();
    std::vector<TraceEvent> found;
    std::ranges::copy_if(events, std::back_inserter(found),
                         [&](const TraceEvent& event) { return event.lane == lane; });
    return found;
  }

  EmulatedDevice device;
  std::unique_ptr<Stream> compute;
  std::unique_ptr<Stream> link;
  Trace trace;
  std::vector<TraceEvent> events;
};

TEST_P(StreamSpansOnDevice, HaveTheTimesOfTheWork) {
  // An event before and after everything that is recorded of a span, and around its work alone.
  struct Around {
    std::unique_ptr<Event> before, begin, end, after;
  };
  std::vector<Around> around;
  StreamSpans spans(device, *compute, trace);
  const std::int64_t waits = device.counts().waits;
  Clock::time_point step_begin, step_queued, step_end;
  for (int step = 0; step < 3; ++step) {
    step_begin = Clock::now();
    {
      const TraceSpan layer(&trace, TraceLane::kCompute, "layer");
      for (const milliseconds time : {milliseconds(3), milliseconds(1)}) {
        Around& events_around = around.emplace_back(Around{
            device.make_event(), device.make_event(), device.make_event(), device.make_event()});
        events_around.before->record(*compute);
        {
          const TraceSpan part(&trace, TraceLane::kCompute, "attend");
          events_around.begin->record(*compute);
          work(time, *compute);
          events_around.end->record(*compute);
        }
        events_around.after->record(*compute);
      }
    }
    step_queued = Clock::now();
    compute->synchronize();
    spans.collect();
    step_end = Clock::now();
  }
  EXPECT_EQ(device.counts().waits - waits, 3) << "one for each step";
  const std::vector<TraceEvent> traced = lane(TraceLane::kCompute);
  ASSERT_EQ(traced.size(), 9U);
  std::size_t part = 0;
  for (std::size_t at = 0; at < traced.size(); at += 3) {
    EXPECT_STREQ(traced[at].name, "layer") << "what holds others comes first";
    EXPECT_LE(traced[at].begin, traced[at + 1].begin);
    EXPECT_LE(traced[at + 1].end, traced[at + 2].begin);
    EXPECT_LE(traced[at + 2].end, traced[at].end);
    if (at > 0) {
      EXPECT_LE(traced[at - 3].end, traced[at].begin);
    }
    for (const std::size_t inner : {at + 1, at + 2}) {
      const Around& known = around[part++];
      const double length = seconds(traced[inner].end - traced[inner].begin);
      EXPECT_GE(length, known.end->seconds_since(*known.begin) - 1e-8);
      EXPECT_LE(length, known.after->seconds_since(*known.before) + 1e-8);
      EXPECT_LT(known.begin->seconds_since(*known.end), 0.0) << "backwards";
    }
  }
  // The host had queued all of the last step before any of its work was done.
  EXPECT_GE(traced[6].begin, step_begin);
  EXPECT_GT(traced[6].end, step_queued);
  EXPECT_LE(traced[6].end, step_end);
}

// What compute waits for is a span of the wait, and the transfer lies before its end.
TEST_P(StreamSpansOnDevice, AreOnOneClockWithTheLink) {
  StreamSpans spans(device, *compute, trace);
  StreamTransferEngine engine(device, *compute, {});
  engine.set_trace(&trace);
  constexpr std::size_t kBytes = 1 << 20;
  auto* from = static_cast<std::byte*>(device.allocate_host(kBytes));
  auto* to = static_cast<std::byte*>(device.allocate(kBytes));
  for (int step = 0; step < 4; ++step) {
    {
      const TraceSpan span(&trace, TraceLane::kCompute, "mlp");
      work(milliseconds(8), *compute);
    }
    {
      const TraceSpan span(&trace, TraceLane::kCompute, "wait for KV");
      engine.hold(engine.move_bytes(Lane::kToDevice, to, from, kBytes));
    }
    {
      const TraceSpan span(&trace, TraceLane::kCompute, "attend");
      work(milliseconds(1), *compute);
    }
    compute->synchronize();
    spans.collect();
  }
  engine.set_trace(nullptr);
  const std::vector<TraceEvent> traced = lane(TraceLane::kCompute);
  const std::vector<TraceEvent> moved = lane(TraceLane::kToDevice);
  ASSERT_EQ(moved.size(), 4U);
  ASSERT_EQ(traced.size(), 12U);
  // Transfers may be placed a step earlier or later than what is beside them, by a clock that was
  // corrected meanwhile.
  const milliseconds about(4);
  for (std::size_t step = 0; step < moved.size(); ++step) {
    const TraceEvent& before = traced[3 * step];
    const TraceEvent& wait = traced[3 * step + 1];
    EXPECT_GE(moved[step].begin, before.end - about) << "it may change what compute reads";
    EXPECT_LE(moved[step].end, wait.end + about);
    EXPECT_GT(seconds(wait.end - wait.begin), 0.0);
    if (step > 0) {
      EXPECT_LE(moved[step - 1].end, moved[step].begin);
    }
  }
  device.release(to, kBytes);
  device.release_host(from, kBytes);
}

TEST_P(StreamSpansOnDevice, OffRecordsNoEvent) {
  { const TraceSpan span(&trace, TraceLane::kCompute, "layer"); }
  { const TraceSpan span(nullptr, TraceLane::kCompute, "layer"); }
  EXPECT_EQ(device.counts().events, 0);
  {
    StreamSpans spans(device, *compute, trace);
    EXPECT_EQ(device.counts().events, 1);
    { const TraceSpan span(nullptr, TraceLane::kCompute, "layer"); }
    { const TraceSpan span(&trace, TraceLane::kHost, "place"); }
    EXPECT_EQ(device.counts().events, 1);
    { const TraceSpan span(&trace, TraceLane::kRecompute, "recompute"); }
    EXPECT_EQ(device.counts().events, 3);
  }
  { const TraceSpan span(&trace, TraceLane::kCompute, "layer"); }
  EXPECT_EQ(device.counts().events, 3);
}

INSTANTIATE_TEST_SUITE_P(Schedules, StreamSpansOnDevice,
                         testing::Range<std::uint64_t>(0, kSchedules));

}  // namespace
}  // namespace triphase::emulated
