// The verdict of `triphase compare`, also where triphase lost or nothing ran.

#include <gtest/gtest.h>

#include "runtime/compare/report_page.h"
#include "runtime/compare/verdict.h"
#include "runtime/job/file_ops.h"
#include "runtime/job/output_record.h"
#include "runtime/job/run_summary.h"

namespace triphase::compare {
namespace {

Row ran(const std::string& policy, const std::vector<double>& speeds,
        std::optional<bool> identical = true, std::uint64_t failed = 0) {
  Row row{.cell = {policy, "dense", "0"}};
  for (const double speed : speeds) {
    row.timed.push_back(
        {.tokens_per_second = speed, .lines = 12, .failed_lines = failed, .kv_dtype = "bf16"});
  }
  row.same_as = "another";
  row.identical = identical;
  return row;
}

Row reference(const std::string& policy, const std::vector<double>& speeds,
              std::uint64_t failed = 0) {
  Row row = ran(policy, speeds, std::nullopt, failed);
  row.same_as.reset();
  return row;
}

Row cannot_run(const std::string& policy) {
  Row row{.cell = {policy, "dense", "0"}};
  row.infeasible = "does not fit";
  return row;
}

Verdict only_verdict(const std::vector<Row>& rows) {
  const std::vector<Verdict> all = verdicts(rows);
  EXPECT_EQ(all.size(), 1U);
  return all.at(0);
}

TEST(Verdict, TheBestBaselineIsBesideTriphase) {
  const Verdict verdict = only_verdict({reference("triphase", {200, 198, 210}),
                                        ran("flexgen", {50, 51, 52}), ran("vllm", {100, 99, 101})});
  EXPECT_EQ(verdict.sentence,
            "triphase was fastest: 200.0 generated tokens/s, 2.00x the best baseline, vllm-style "
            "(100.0); all completions were identical.");
  EXPECT_EQ(verdict.remark, "");
}

TEST(Verdict, TriphaseLost) {
  EXPECT_EQ(only_verdict({reference("triphase", {100, 100}), ran("flexgen:cpu", {150, 150}),
                          ran("device-only", {120, 120})})
                .sentence,
            "flexgen-style:cpu was fastest: 150.0 generated tokens/s, 1.50x triphase (100.0); all "
            "completions were identical.");
}

TEST(Verdict, RepetitionsThatOverlapHaveNoWinner) {
  EXPECT_EQ(
      only_verdict({reference("triphase", {110, 100, 90}), ran("zero", {105, 95, 85})}).sentence,
      "triphase and zero-style are not told apart: 100.0 and 95.0 generated tokens/s, and their "
      "repetitions overlap; all completions were identical.");
}

TEST(Verdict, OneRepetitionHasNoSpread) {
  EXPECT_EQ(only_verdict({reference("vllm", {100}), ran("zero", {80})}).sentence,
            "vllm-style was fastest: 100.0 generated tokens/s, 1.25x zero-style (80.0), in one "
            "repetition; all completions were identical.");
}

TEST(Verdict, WhoFailedMoreLinesOrCannotRunIsLeftOut) {
  const Verdict verdict =
      only_verdict({reference("triphase", {100, 100}, 1), ran("device-only", {900, 900}, true, 9),
                    cannot_run("zero"), ran("accelerate", {0, 0}, std::nullopt, 12)});
  EXPECT_EQ(verdict.sentence,
            "triphase generated 100.0 tokens/s; no other policy did as much of the job; all "
            "completions were identical.");
  EXPECT_EQ(verdict.remark,
            "1 line failed in each of these cells. Left out: device-only (more lines failed), "
            "zero-style (cannot run), accelerate-style (more lines failed).");
}

TEST(Verdict, NothingRan) {
  EXPECT_EQ(only_verdict({cannot_run("zero")}).sentence, "No policy can run this job.");
  EXPECT_EQ(only_verdict({cannot_run("zero"), reference("triphase", {0}, 3)}).sentence,
            "No policy completed a line.");
  Row empty = reference("triphase", {0});
  empty.timed.front().lines = 0;
  EXPECT_EQ(only_verdict({cannot_run("zero"), empty}).sentence,
            "The prompt file has no lines: nothing was compared.");
}

TEST(Verdict, CompletionsThatDifferAreSaid) {
  EXPECT_NE(only_verdict({reference("triphase", {100, 100}), ran("vllm", {50, 50}, false)})
                .sentence.find("completions DIFFER"),
            std::string::npos);
  // Of different KV types each may be a reference.
  EXPECT_NE(only_verdict({reference("triphase", {100, 100}), reference("vllm", {50, 50})})
                .sentence.find("no completions could be compared"),
            std::string::npos);
}

TEST(Verdict, CloseCallsOnAGpuMayDiffer) {
  std::vector<Row> rows = {reference("triphase", {100, 100}), ran("vllm", {50, 50}, false)};
  EXPECT_TRUE(rows[1].wrong());
  EXPECT_NE(report_page({{}, {}}, rows).find(">NO<"), std::string::npos);
  for (Row& row : rows) {
    for (Measured& run : row.timed) run.reproducible = false;
  }
  EXPECT_FALSE(rows[1].wrong());
  const std::string sentence = only_verdict(rows).sentence;
  EXPECT_EQ(sentence.find("DIFFER"), std::string::npos);
  EXPECT_NE(sentence.find("; completions differ, as they may on a GPU at close calls; "
                          "--deterministic compares exactly."),
            std::string::npos);
  const std::string page = report_page({{}, {}}, rows);
  EXPECT_EQ(page.find(">NO<"), std::string::npos);
  EXPECT_NE(page.find("<td>no</td>"), std::string::npos);
  // Equal completions are equal there too.
  rows[1].identical = true;
  EXPECT_NE(only_verdict(rows).sentence.find("all completions were identical"), std::string::npos);
}

TEST(Verdict, EachAttentionMethodHasOneAndThePolicysFastestBatchCounts) {
  std::vector<Row> rows = {reference("triphase", {100, 100}), ran("triphase", {150, 150}),
                           ran("vllm", {75, 75}), reference("triphase", {300, 300})};
  rows[1].cell.batch_size = "8";
  rows[3].cell.attention = "swa";
  const std::vector<Verdict> all = verdicts(rows);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].sentence,
            "With dense attention, triphase at batch 8 was fastest: 150.0 generated tokens/s, "
            "2.00x the best baseline, vllm-style at its largest batch (75.0); all completions were "
            "identical.");
  EXPECT_EQ(all[1].sentence,
            "With swa attention, triphase at its largest batch generated 300.0 tokens/s; no other "
            "policy was asked for.");
}

// As a job on `device` leaves its summary.
Measured summary_on(const std::string& device, const OptionOrigin& deterministic) {
  RunSummary summary;
  summary.hardware.device = device;
  RunOptions options;
  options.origins = {{"deterministic", deterministic}};
  const std::string path = testing::TempDir() + "compare_test.summary.json";
  write_file_atomically(system_file_ops(), path, summary_to_json(summary, options), 0600);
  return read_summary(path);
}

TEST(ReadSummary, AGpuIsReproducibleIfItIsDeterministic) {
  const OptionOrigin unset = {"false", "default"};
  EXPECT_TRUE(summary_on("cpu: any", unset).reproducible);
  EXPECT_FALSE(summary_on("cuda:0 (any)", unset).reproducible);
  EXPECT_FALSE(summary_on("cuda:0 (any)", {"false", "config file"}).reproducible);
  EXPECT_TRUE(summary_on("cuda:0 (any)", {"true", "command line"}).reproducible);
}

Request request_of(LineForm form, std::uint64_t index, std::uint64_t parts = 1) {
  Request request;
  request.line_form = form;
  request.index = index;
  request.parts = parts;
  return request;
}

Completion completed(std::uint64_t index, std::uint64_t part, std::vector<std::int32_t> tokens) {
  Completion completion;
  completion.index = index;
  completion.part = part;
  completion.tokens = std::move(tokens);
  return completion;
}

TEST(ReadCompletions, OfEitherForm) {
  const auto read = [](LineForm form, std::vector<Failure>& failures) {
    const bool several = form == LineForm::kOpenAi;
    std::vector<Completion> first = {completed(0, 0, {1, 2, 3, 4})};
    if (several) first.push_back(completed(0, 1, {5, 6}));
    Completion failed = completed(1, 0, {});
    failed.error = {.code = "E-IN-CONTEXT", .message = "prompt: too long"};
    const std::string text = record_line(request_of(form, 0, first.size()), first) + "\n" +
                             record_line(request_of(form, 1), failed) + "\n";
    const std::string path = testing::TempDir() + "compare_test.jsonl";
    write_file_atomically(system_file_ops(), path, text, 0600);
    return read_completions(path, failures);
  };
  for (const LineForm form : {LineForm::kSimple, LineForm::kOpenAi}) {
    std::vector<Failure> failures;
    const Completions lines = read(form, failures);
    LineTokens expected = {{1, 2, 3, 4}};
    if (form == LineForm::kOpenAi) expected.push_back({5, 6});
    EXPECT_EQ(lines, (Completions{expected, std::nullopt}));
    ASSERT_EQ(failures.size(), 1U);
    EXPECT_EQ(failures[0].text(), "E-IN-CONTEXT: 1 line: prompt: too long");
  }
}

TEST(Agreement, IsAMeanOverPrompts) {
  const Completions reference = {LineTokens{{1, 2, 3, 4}, {5, 6}}, std::nullopt};
  EXPECT_EQ(identical(reference, reference), true);
  EXPECT_EQ(agreement(reference, reference), 1.0);
  const Completions other = {LineTokens{{1, 2, 3, 9}, {7, 6}}, LineTokens{{1}}};
  EXPECT_EQ(identical(reference, other), false);
  EXPECT_EQ(agreement(reference, other), 0.375);
  // The same tokens of other prompts are others.
  EXPECT_EQ(identical({LineTokens{{1, 2}, {3}}}, {LineTokens{{1}, {2, 3}}}), false);
  EXPECT_EQ(agreement({std::nullopt}, reference), std::nullopt);
}

TEST(ReportPage, NamesNoSystemThatDidNotRun) {
  const std::string page =
      report_page({{}, {}}, {reference("triphase", {2, 2}), ran("flexgen", {1, 1}),
                             cannot_run("vllm"), ran("accelerate", {1, 1}, true, 2)});
  EXPECT_LT(page.find("triphase was fastest"), page.find("<svg"));
  EXPECT_LT(page.find("NAME-style: our version"), page.find("<svg"));
  for (const std::string name : {"flexgen", "vllm", "accelerate"}) {
    for (std::size_t at = 0; (at = page.find(name, at)) != std::string::npos; at += name.size()) {
      EXPECT_EQ(page.substr(at + name.size(), 6), "-style") << page.substr(at, 60);
    }
  }
}

}  // namespace
}  // namespace triphase::compare
