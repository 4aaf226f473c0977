// The trace file: its schema, its times, where it may lie, and what a full disk does to it.

#include "runtime/job/trace_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>

#include "job_fixture.h"
#include "json_schema.h"
#include "tests/support/paths.h"

namespace triphase {
namespace {

using testing::code_thrown;
using testing::read_text;
using testing::TempFolder;
using testing::write_text;

Json parsed(const std::string& text) {
  JsonProblem problem;
  std::optional<Json> value = parse_json(text, problem);
  EXPECT_TRUE(value.has_value()) << problem.found << " at " << problem.byte << ": " << text;
  return value ? std::move(*value) : Json();
}

// A span of `lane` from so many microseconds after the trace's start, so many long.
TraceEvent span_at(const Trace& trace, TraceLane lane, const char* name, std::int64_t from,
                   std::int64_t length) {
  const auto begin = trace.start() + std::chrono::microseconds(from);
  return {.lane = lane,
          .name = name,
          .begin = begin,
          .end = begin + std::chrono::microseconds(length),
          .values = {{{"bytes", from}}}};
}

// A log whose text can be read.
struct Told {
  Told() : file(std::tmpfile()), log({}, file) {}
  ~Told() { std::fclose(file); }
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;

  std::string text() {
    std::rewind(file);
    std::string all(4096, '\0');
    all.resize(std::fread(all.data(), 1, all.size(), file));
    return all;
  }
  std::FILE* file;
  Log log;
};

struct Fixture {
  Fixture() {
    options = testing::job_options(folder);
    options.looking.trace = folder / "trace.json";
  }
  TempFolder folder;
  RunOptions options;
  Told told;
};

TEST(TraceFile, FollowsItsSchemaWithEventsOfEveryKind) {
  Fixture f;
  Trace trace;
  {
    TraceFile file(f.options, {"link", "device memory"}, trace, f.told.log);
    trace.add(span_at(trace, TraceLane::kCompute, "attend", 10, 5));
    trace.add(span_at(trace, TraceLane::kCompute, "layer", 10, 50));
    trace.flush();
    TraceEvent event = span_at(trace, TraceLane::kPhases, "Phase II", 20, 7);
    event.kind = TraceEvent::Kind::kRequestPhase;
    event.request = 3;
    trace.add(event);
    event.kind = TraceEvent::Kind::kRequest;
    event.name = "request";
    event.values = {};
    trace.add(event);
    event.kind = TraceEvent::Kind::kCounter;
    event.name = "KV bytes";
    event.values = {{{"device", 1}, {"host", 2}}};
    trace.add(event);
    { const TraceSpan empty(&trace, TraceLane::kHost, "sample"); }
  }
  const Json json = parsed(read_text(f.options.looking.trace));
  const Json schema = parsed(read_text(source_path("docs/schemas/trace.schema.json")));
  EXPECT_EQ(testing::schema_violation(schema, json, schema), "");
  EXPECT_EQ(*json.find("otherData")->find("emulated")->string(), "link, device memory");

  std::vector<const Json*> spans;
  int begins = 0;
  for (const Json& event : *json.find("traceEvents")->array()) {
    const std::string& type = *event.find("ph")->string();
    if (type == "X") spans.push_back(&event);
    if (type == "b") ++begins;
  }
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(begins, 2);
  // The span that holds the other comes first, though it ended later.
  EXPECT_EQ(*spans[0]->find("name")->string(), "layer");
  EXPECT_DOUBLE_EQ(spans[0]->find("ts")->number().value(), 10.0);
  EXPECT_DOUBLE_EQ(spans[0]->find("dur")->number().value(), 50.0);
  EXPECT_EQ(*spans[1]->find("name")->string(), "attend");
  EXPECT_EQ(spans[1]->find("args")->find("bytes")->integer(), 10);
  EXPECT_EQ(f.told.text(), "");
}

TEST(TraceFile, ReplacesAnEarlierTraceAndNothingElse) {
  Fixture f;
  write_text(f.options.files.prompts, "");
  const auto refusal = [&] {
    return code_thrown([&] {
      job_files(f.options).check();
      check_trace_location(f.options);
    });
  };
  EXPECT_EQ(refusal(), "") << "a new name";
  Trace trace;
  { const TraceFile file(f.options, {}, trace, f.told.log); }
  EXPECT_EQ(refusal(), "") << "an earlier trace";
  const std::string first = read_text(f.options.looking.trace);
  Trace second;
  { const TraceFile file(f.options, {}, second, f.told.log); }
  EXPECT_EQ(read_text(f.options.looking.trace), first);

  write_text(f.options.looking.trace, "");
  EXPECT_EQ(refusal(), "") << "an empty file";
  write_text(f.options.looking.trace, "{\"weight_map\": {}}");
  EXPECT_EQ(refusal(), "E-CLI-OUTPUT");
  f.options.looking.trace = f.folder.path();
  EXPECT_EQ(refusal(), "E-CLI-OUTPUT");
  for (const char* companion : {"", ".part", ".summary.json", ".manifest.json"}) {
    f.options.looking.trace = f.options.files.output + companion;
    EXPECT_EQ(refusal(), "E-CLI-OUTPUT") << f.options.looking.trace;
  }
  f.options.looking.trace = f.options.files.prompts;
  EXPECT_EQ(refusal(), "E-CLI-OUTPUT") << "an input, though an empty one";
  f.options.looking.trace = f.folder / "missing/trace.json";
  EXPECT_EQ(code_thrown([&] { const TraceFile file(f.options, {}, trace, f.told.log); }),
            "E-IO-OPEN");
}

class FullDisk : public FileOps {
 public:
  ssize_t write(int fd, const void* data, std::size_t bytes) override {
    if (full) {
      errno = ENOSPC;
      return -1;
    }
    return FileOps::write(fd, data, bytes);
  }
  bool full = false;
};

TEST(TraceFile, AFullDiskEndsTheTraceAndNotTheJob) {
  Fixture f;
  FullDisk disk;
  Trace trace;
  {
    TraceFile file(f.options, {}, trace, f.told.log, disk);
    disk.full = true;
    for (int i = 0; i < 3; ++i) {
      trace.add(span_at(trace, TraceLane::kSteps, "step", i, 1));
      EXPECT_NO_THROW(trace.flush());
    }
  }
  const std::string told = f.told.text();
  EXPECT_NE(told.find("the trace ends here"), std::string::npos) << told;
  EXPECT_EQ(told.find("the trace ends here"), told.rfind("the trace ends here")) << "said once";
}

TEST(Trace, OffRecordsNothingAndManySpansLeaveInTime) {
  {
    TraceSpan off(nullptr, TraceLane::kSteps, "step");
    off.note("rows", 1);
  }
  Trace trace;
  std::size_t left = 0;
  trace.set_sink([&](std::vector<TraceEvent>& events) { left += events.size(); });
  for (int i = 0; i < 10000; ++i) {
    trace.add(span_at(trace, TraceLane::kSteps, "step", i, 1));
    trace.flush_if_large();
  }
  EXPECT_GE(left, 5000U);
  trace.flush();
  EXPECT_EQ(left, 10000U);
  EXPECT_EQ(trace.lost(), 0U);
}

}  // namespace
}  // namespace triphase
