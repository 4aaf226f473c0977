// What `triphase bench` rests on: report forms, sampling, and the checks before timing.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "runtime/bench/check.h"
#include "runtime/bench/measure.h"
#include "runtime/bench/report.h"

namespace triphase::bench {
namespace {

const std::vector<Row> kRows = {
    {{"op", "a,\"b\""}, {"bytes", std::int64_t{4096}}, {"GB/s", 12.345678}},
    {{"op", "c"}, {"bytes", std::int64_t{7}}, {"GB/s", 0.0}}};

TEST(BenchReport, HasFourForms) {
  EXPECT_EQ(format_report(kRows, "md"),
            "| op    | bytes |  GB/s |\n| ----- | ----: | ----: |\n"
            "| a,\"b\" |  4096 | 12.35 |\n| c     |     7 |       |\n");
  EXPECT_EQ(format_report(kRows, "csv"), "op,bytes,GB/s\n\"a,\"\"b\"\"\",4096,12.3457\nc,7,\n");
  EXPECT_EQ(format_report(kRows, "jsonl"),
            "{\"op\": \"a,\\\"b\\\"\", \"bytes\": 4096, \"GB/s\": 12.345678}\n"
            "{\"op\": \"c\", \"bytes\": 7, \"GB/s\": 0}\n");
  EXPECT_EQ(format_report({kRows[1]}, "json"),
            "[\n  {\"op\": \"c\", \"bytes\": 7, \"GB/s\": 0}\n]\n");
  EXPECT_EQ(format_report({}, "csv"), "");
}

TEST(BenchReport, ForPeopleWhatAllRowsShareStandsAboveTheTable) {
  const std::vector<Row> rows = {
      {{"op", "a"}, {"batch", std::int64_t{1}}, {"us", 5.0}, {"us_p10", 4.0}, {"GB/s", 123456.7}},
      {{"op", "a"}, {"batch", std::int64_t{2}}, {"us", 5.0}, {"us_p10", 4.5}, {"GB/s", 0.0}}};
  EXPECT_EQ(readable_report(rows),
            "op a (more columns: --format json)\n\n"
            "| batch |  us |   GB/s |\n| ----: | --: | -----: |\n"
            "|     1 |   5 | 123457 |\n|     2 |   5 |        |\n");
  EXPECT_EQ(readable_report({}), "");
}

TEST(BenchReport, ListsAndWideCharactersKeepTheirPlace) {
  const std::vector<Row> rows = {{{"a", "1 ± 2"}, {"b", std::vector<double>{0.5, std::nan("")}}},
                                 {{"a", "12345"}, {"b", std::vector<double>{}}}};
  EXPECT_EQ(format_report(rows, "md"),
            "| a     |           b |\n| ----- | ----------: |\n| 1 ± 2 | [0.5, null] |\n| 12345 |  "
            "        [] |\n");
  EXPECT_EQ(format_report(rows, "jsonl"),
            "{\"a\": \"1 ± 2\", \"b\": [0.5, null]}\n{\"a\": \"12345\", \"b\": []}\n");
}

TEST(BenchReport, SharesAboveTheCeilingAreExplained) {
  const std::vector<Row> rows = {{{"op", "a"}, {"% of read", 99.0}, {"% of copy", 140.0}},
                                 {{"op", "b"}, {"% of read", 103.0}, {"% of copy", 150.0}}};
  const std::vector<std::string> notes = above_ceilings(rows);
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_THAT(notes[0], ::testing::StartsWith(
                            "1 of 2 rows have more than 100 % in \"% of read\" (up to 103 %): the "
                            "ceiling was measured before"));
  EXPECT_THAT(notes[1], ::testing::HasSubstr("copies are slower than what only reads"));
  EXPECT_TRUE(above_ceilings({rows[0]}).size() == 1 && above_ceilings({}).empty());
}

TEST(BenchMeasure, ARowKeepsItsSamplesAsTheyWereTaken) {
  const Row row = timed_row({{"op", "a"}}, timing_of({2e-6, 4e-6, 3e-6}), {{"GB/s", 1.0}});
  EXPECT_EQ(format_report({row}, "jsonl"),
            "{\"op\": \"a\", \"us\": 3, \"us_p10\": 2.2, \"us_p90\": 3.8, \"samples\": 3, "
            "\"us_samples\": [2, 4, 3], \"GB/s\": 1}\n");
}

TEST(BenchMeasure, CallsCountUpAndSamplesAreBounded) {
  const auto backend = Backend::open("cpu", 1);
  std::int64_t next = 0;
  volatile double sink = 0.0;
  const Timing timing = measure(*backend, {.samples = 9, .seconds = 1e9, .sample_seconds = 1e-4},
                                [&](std::int64_t i) {
                                  EXPECT_EQ(i, next++);
                                  for (int n = 0; n < 2000; ++n) sink = sink + n;
                                });
  ASSERT_EQ(timing.us_samples.size(), 9U);
  const auto [least, most] = std::ranges::minmax(timing.us_samples);
  EXPECT_LE(least, timing.low * 1e6);
  EXPECT_GE(most, timing.high * 1e6);
  EXPECT_THAT(timing.us_samples, ::testing::Contains(timing.median * 1e6));
  EXPECT_GT(timing.median, 0.0);
  EXPECT_LE(timing.low, timing.median);
  EXPECT_LE(timing.median, timing.high);
  // Out of time at once: still enough samples for a spread.
  EXPECT_EQ(measure(*backend, {.samples = 50, .seconds = 0.0, .sample_seconds = 0.0},
                    [&](std::int64_t) { sink = 1.0; })
                .us_samples.size(),
            5U);
}

TEST(BenchCheck, AcceptsTheBackendsOwnKernels) {
  const auto backend = Backend::open("cpu", 2);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    check_linear(*backend, dtype);
    check_attention(*backend, 8, 2, 64, dtype);
    check_attention(*backend, 3, 3, 80, dtype);
  }
}

TEST(BenchMemory, ComesBackAsItWasFilled) {
  const auto backend = Backend::open("cpu", 1);
  BenchMemory memory(*backend);
  std::vector<float> values((1 << 16) / sizeof(float));
  const Buffer a = memory.random(std::ssize(values), DType::kF32, 5);
  memory.copy(values.data(), a.data(), a.bytes());
  double sum = 0.0;
  for (const float value : values) {
    ASSERT_LE(std::abs(value), 1.0F);
    sum += value;
  }
  EXPECT_LT(std::abs(sum / static_cast<double>(values.size())), 0.05);
  EXPECT_THROW((void)memory.random(16, DType::kI32, 1), Error);
}

}  // namespace
}  // namespace triphase::bench
