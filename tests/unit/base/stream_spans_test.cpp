// Spans that events of a device time: on the trace's clock, however fast the device's own runs.

#include "base/stream_spans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace triphase {
namespace {

using Clock = TraceEvent::Clock;

// What the device of a test counts and does.
struct World {
  double speed = 1.0;  // of the device's clock beside the host's
  std::int64_t records = 0;
  std::int64_t waits = 0;
  std::int64_t fails_at = -1;  // the record from which on every call fails
  Clock::time_point start = Clock::now();

  [[nodiscard]] double device_seconds() const {
    return speed * std::chrono::duration<double>(Clock::now() - start).count();
  }
  void check() const {
    if (fails_at >= 0 && records >= fails_at) throw std::runtime_error("a lost device");
  }
};

class WorldStream final : public Stream {
 public:
  explicit WorldStream(World& world) : world_(&world) {}
  void synchronize() override {
    ++world_->waits;
    world_->check();
  }
  void wait_for(const Event& /*event*/) override {}

 private:
  World* world_;
};

class WorldEvent final : public Event {
 public:
  explicit WorldEvent(World& world) : world_(&world) {}
  void record(Stream& /*stream*/) override {
    world_->check();
    ++world_->records;
    at_ = world_->device_seconds();
  }
  void synchronize() override { ++world_->waits; }
  [[nodiscard]] bool done() override { return true; }
  [[nodiscard]] double seconds_since(const Event& earlier) const override {
    world_->check();
    return at_ - dynamic_cast<const WorldEvent&>(earlier).at_;
  }

 private:
  World* world_;
  double at_ = 0.0;
};

// Its work runs at once, so that the host knows when.
class WorldDevice final : public Device {
 public:
  explicit WorldDevice(World& world) : world_(&world) {}
  [[nodiscard]] std::string_view name() const override { return "of a test"; }
  [[nodiscard]] void* allocate(std::size_t /*bytes*/) override { return nullptr; }
  void release(void* /*data*/, std::size_t /*bytes*/) noexcept override {}
  [[nodiscard]] void* allocate_host(std::size_t /*bytes*/) override { return nullptr; }
  void release_host(void* /*data*/, std::size_t /*bytes*/) noexcept override {}
  void copy(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/,
            Stream& /*stream*/) override {}
  [[nodiscard]] std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<WorldStream>(*world_);
  }
  [[nodiscard]] std::unique_ptr<Event> make_event() override {
    return std::make_unique<WorldEvent>(*world_);
  }

 private:
  World* world_;
};

struct Traced {
  explicit Traced(World& the_world)
      : world(the_world), device(world), stream(device.make_stream()) {
    trace.set_sink([this](std::vector<TraceEvent>& left) {
      events.insert(events.end(), left.begin(), left.end());
    });
  }
  [[nodiscard]] std::vector<TraceEvent> spans(std::string_view name) {
    trace.flush();
    std::vector<TraceEvent> found;
    std::ranges::copy_if(events, std::back_inserter(found),
                         [&](const TraceEvent& event) { return name == event.name; });
    return found;
  }

  World& world;
  WorldDevice device;
  std::unique_ptr<Stream> stream;
  Trace trace;
  std::vector<TraceEvent> events;
};

void work(std::chrono::microseconds time) { std::this_thread::sleep_for(time); }

TEST(StreamSpans, LieWhereTheHostKnowsTheWorkWas) {
  for (const double speed : {1.0, 1.01, 0.99}) {
    World world{.speed = speed};
    Traced traced(world);
    std::vector<std::pair<Clock::time_point, Clock::time_point>> known;
    {
      StreamSpans spans(traced.device, *traced.stream, traced.trace);
      for (int step = 0; step < 40; ++step) {
        const Clock::time_point queued = Clock::now();
        {
          TraceSpan outer(&traced.trace, TraceLane::kCompute, "forward");
          outer.note("step", step);
          {
            const TraceSpan inner(&traced.trace, TraceLane::kCompute, "attend");
            work(std::chrono::microseconds(300));
          }
          const TraceSpan other(&traced.trace, TraceLane::kRecompute, "recompute");
          work(std::chrono::microseconds(100));
        }
        work(std::chrono::microseconds(200));  // the way back to the host
        spans.collect();
        known.emplace_back(queued, Clock::now());
        work(std::chrono::microseconds(500));
      }
    }
    const std::vector<TraceEvent> outer = traced.spans("forward");
    const std::vector<TraceEvent> inner = traced.spans("attend");
    const std::vector<TraceEvent> other = traced.spans("recompute");
    ASSERT_EQ(outer.size(), known.size());
    ASSERT_EQ(inner.size(), known.size());
    ASSERT_EQ(other.size(), known.size());
    for (std::size_t step = 0; step < known.size(); ++step) {
      EXPECT_EQ(outer[step].values[0].value, static_cast<std::int64_t>(step));
      EXPECT_GE(outer[step].begin, known[step].first) << "speed " << speed;
      EXPECT_LE(outer[step].end, known[step].second) << "speed " << speed;
      EXPECT_LE(outer[step].begin, inner[step].begin);
      EXPECT_LE(inner[step].end, other[step].begin);
      EXPECT_LE(other[step].end, outer[step].end);
      EXPECT_EQ(other[step].lane, TraceLane::kRecompute);
      const std::chrono::duration<double> length = inner[step].end - inner[step].begin;
      EXPECT_GE(length.count(), 0.98 * 300e-6);
    }
  }
}

// One pair of events a span and one origin, which is the only wait.
TEST(StreamSpans, AskTheDeviceForNothingButEvents) {
  World world;
  Traced traced(world);
  { const TraceSpan span(&traced.trace, TraceLane::kCompute, "before"); }
  EXPECT_EQ(world.records, 0) << "nothing times spans yet";
  {
    StreamSpans spans(traced.device, *traced.stream, traced.trace);
    EXPECT_EQ(world.waits, 1);
    for (int step = 0; step < 5; ++step) {
      const TraceSpan host(&traced.trace, TraceLane::kHost, "sample");
      { const TraceSpan span(&traced.trace, TraceLane::kCompute, "head"); }
      { const TraceSpan off(nullptr, TraceLane::kCompute, "head"); }
      { const TraceSpan unwanted(&traced.trace, TraceLane::kCompute, "wait", false); }
      spans.collect();
    }
    EXPECT_EQ(world.waits, 1);
    EXPECT_EQ(world.records, 1 + 5 * 2);
    // What nobody has waited for: the end does.
    { const TraceSpan span(&traced.trace, TraceLane::kCompute, "head"); }
  }
  EXPECT_EQ(world.waits, 2);
  EXPECT_EQ(traced.spans("head").size(), 6U);
  { const TraceSpan span(&traced.trace, TraceLane::kCompute, "after"); }
  EXPECT_EQ(world.records, 1 + 6 * 2);
  EXPECT_EQ(traced.spans("after").size(), 1U) << "by the host's clock again";
  EXPECT_EQ(traced.trace.lost(), 0U);
}

TEST(StreamSpans, AFailedDeviceEndsTheSpansAndNothingElse) {
  for (std::int64_t fails_at = 1; fails_at < 10; ++fails_at) {
    World world{.fails_at = fails_at};
    Traced traced(world);
    {
      StreamSpans spans(traced.device, *traced.stream, traced.trace);
      for (int step = 0; step < 3; ++step) {
        {
          const TraceSpan outer(&traced.trace, TraceLane::kCompute, "layer");
          const TraceSpan inner(&traced.trace, TraceLane::kCompute, "attend");
        }
        spans.collect();
      }
    }
    const std::size_t layers = traced.spans("layer").size();
    EXPECT_LT(layers, 3U) << fails_at;
    EXPECT_EQ(traced.spans("attend").size(), layers) << fails_at;
    EXPECT_GT(traced.trace.lost(), 0U) << fails_at;
  }
}

}  // namespace
}  // namespace triphase
