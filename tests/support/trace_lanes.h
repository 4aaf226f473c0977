#pragma once

// Reads a Trace's events in tests: by lane, nested or not, overlapping or not.

#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/trace.h"

namespace triphase {

// Keeps everything a Trace hands over.
class KeptTrace {
 public:
  KeptTrace() {
    trace_.set_sink([this](std::vector<TraceEvent>& events) {
      events_.insert(events_.end(), events.begin(), events.end());
    });
  }
  [[nodiscard]] Trace* trace() { return &trace_; }
  [[nodiscard]] const std::vector<TraceEvent>& events() {
    trace_.flush();
    return events_;
  }

  // Spans in order of their beginning, the longer first.
  [[nodiscard]] std::vector<TraceEvent> lane(TraceLane lane) {
    std::vector<TraceEvent> found;
    for (const TraceEvent& event : events()) {
      if (event.kind == TraceEvent::Kind::kSpan && event.lane == lane) found.push_back(event);
    }
    std::ranges::stable_sort(found, [](const TraceEvent& a, const TraceEvent& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    return found;
  }
  [[nodiscard]] std::vector<TraceEvent> lines(TraceEvent::Kind kind, std::int64_t line) {
    std::vector<TraceEvent> found;
    for (const TraceEvent& event : events()) {
      if (event.kind == kind && event.line == line) found.push_back(event);
    }
    return found;
  }

 private:
  Trace trace_;
  std::vector<TraceEvent> events_;
};

inline std::int64_t value_of(const TraceEvent& event, std::string_view name) {
  for (const TraceValue& value : event.values) {
    if (value.name != nullptr && value.name == name) return value.value;
  }
  return 0;
}

inline std::int64_t sum_of(const std::vector<TraceEvent>& events, std::string_view name) {
  std::int64_t sum = 0;
  for (const TraceEvent& event : events) sum += value_of(event, name);
  return sum;
}

// Every span lies within one before it or begins after it ended. `spans` as of KeptTrace::lane().
inline void expect_nested(const std::vector<TraceEvent>& spans) {
  std::vector<TraceEvent> open;
  for (const TraceEvent& span : spans) {
    ASSERT_LE(span.begin, span.end) << span.name;
    while (!open.empty() && open.back().end <= span.begin) open.pop_back();
    if (!open.empty()) {
      ASSERT_LE(span.end, open.back().end) << span.name << " in " << open.back().name;
    }
    open.push_back(span);
  }
}

inline bool overlap(const TraceEvent& a, const TraceEvent& b) {
  return a.begin < b.end && b.begin < a.end;
}

// Pairs of one span of each list that are under way together.
inline std::int64_t overlaps(const std::vector<TraceEvent>& a, const std::vector<TraceEvent>& b) {
  std::int64_t count = 0;
  for (const TraceEvent& one : a) {
    count += std::ranges::count_if(b, [&](const TraceEvent& other) { return overlap(one, other); });
  }
  return count;
}

}  // namespace triphase
