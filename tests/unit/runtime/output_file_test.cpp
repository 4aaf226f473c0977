// The durability protocol (bad-inputs section 3, X1, X5-X11, L13, R11).

#include "runtime/job/output_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <regex>

#include "job_fixture.h"
#include "runtime/job/output_record.h"

namespace triphase {
namespace {

using testing::code_thrown;
using testing::exists;
using testing::job_options;
using testing::read_text;
using testing::run_whole_job;
using testing::TempFolder;
using testing::test_manifest;
using testing::write_text;

class OutputFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write_text(folder_ / "in.jsonl", testing::sample_prompts(60));
    reference_ = job_options(folder_, "reference.jsonl");
    ASSERT_EQ(run_whole_job(reference_), 1);
    expected_ = read_text(reference_.files.output);
  }

  // Runs the job and leaves it after `records` records, as a kill would.
  void run_partly(const RunOptions& options, int records) {
    const PromptFileFacts facts = examine_prompt_file(options);
    OutputFile output(options, facts, test_manifest(options));
    output.begin();
    PromptReader prompts(options, &facts);
    testing::FakeEngine engine;
    struct Enough {};
    engine.on_step = [&](std::uint64_t) {
      if (output.counts().total() >= static_cast<std::uint64_t>(records)) throw Enough{};
    };
    Log log({.verbosity = -1, .format = LogFormat::kText, .file = ""});
    Progress progress(log, ProgressMode::kOff);
    EXPECT_THROW((void)run_job(prompts, output, engine, progress, {}), Enough);
  }

  std::string refusal(const RunOptions& options, std::string* message = nullptr) {
    return code_thrown(
        [&] { OutputFile output(options, examine_prompt_file(options), test_manifest(options)); },
        message);
  }

  TempFolder folder_;
  RunOptions reference_;
  std::string expected_;
};

TEST_F(OutputFileTest, AResumedJobKeepsItsFirstStart) {
  const RunOptions options = job_options(folder_);
  run_partly(options, 5);
  const auto manifest = [&] {
    return parse_manifest(read_text(options.files.output + ".manifest.json"), "m");
  };
  Manifest first = manifest();
  first.started = 12345;
  write_text(options.files.output + ".manifest.json", manifest_to_json(first));
  EXPECT_EQ(job_start(options), 12345);
  EXPECT_EQ(run_whole_job(options), 1);
  EXPECT_EQ(manifest().started, 12345);
  RunOptions anew = options;
  anew.files.overwrite = true;
  ASSERT_EQ(setenv("SOURCE_DATE_EPOCH", "678", 1), 0);
  EXPECT_EQ(job_start(anew), 678);
  ASSERT_EQ(setenv("SOURCE_DATE_EPOCH", "soon", 1), 0);
  EXPECT_GT(job_start(anew), 1000000000);
  unsetenv("SOURCE_DATE_EPOCH");
}

TEST_F(OutputFileTest, ALineWithSeveralPromptsHasOneRecord) {
  write_text(folder_ / "lists.jsonl",
             "{\"custom_id\":\"a\",\"body\":{\"prompt\":[\"one\",\"four\",\"x\"]}}\n"
             "{\"custom_id\":\"b\",\"body\":{\"prompt\":[\"good\",\"bad\"]}}\n"
             "{\"custom_id\":\"c\",\"body\":{\"prompt\":\"end\"}}\n");
  RunOptions options = job_options(folder_, "lists.out");
  options.files.prompts = folder_ / "lists.jsonl";
  EXPECT_EQ(run_whole_job(options, system_file_ops(),
                          [](testing::FakeEngine& engine) { engine = testing::FakeEngine(2); }),
            1);
  const std::string text = read_text(options.files.output);
  EXPECT_EQ(std::ranges::count(text, '\n'), 3);
  const std::size_t first = text.find("\"index\":0,\"text\":\"<one>\"");
  const std::size_t second = text.find("\"index\":1,\"text\":\"<four>\"");
  const std::size_t third = text.find("\"index\":2,\"text\":\"<x>\"");
  EXPECT_TRUE(first < second && second < third && third < text.size()) << text;
  EXPECT_NE(text.find("\"prompt_tokens\":8"), std::string::npos);
  EXPECT_NE(text.find("E-IN-CONTEXT"), std::string::npos);
}

TEST_F(OutputFileTest, OutputAppearsOnlyWhenCompleteAndInInputOrder) {
  const RunOptions options = job_options(folder_);
  run_partly(options, 10);
  EXPECT_FALSE(exists(options.files.output));
  EXPECT_TRUE(exists(options.files.output + ".part"));
  EXPECT_EQ(run_whole_job(options), 1);
  EXPECT_EQ(read_text(options.files.output), expected_);
  EXPECT_FALSE(exists(options.files.output + ".part"));
  EXPECT_TRUE(exists(options.files.output + ".manifest.json"));
  std::istringstream lines(expected_);
  std::int64_t last = -1;
  std::uint64_t records = 0;
  for (std::string line; std::getline(lines, line); ++records) {
    const auto facts = read_record(line);
    ASSERT_TRUE(facts.has_value());
    EXPECT_GT(static_cast<std::int64_t>(facts->index), last);
    last = static_cast<std::int64_t>(facts->index);
  }
  EXPECT_EQ(records, examine_prompt_file(options).requests);
}

TEST_F(OutputFileTest, ResumesFromEveryNumberOfRecords) {
  for (int records = 1; records < 50; records += 4) {
    const RunOptions options = job_options(folder_, "out" + std::to_string(records));
    run_partly(options, records);
    {
      const OutputFile output(options, examine_prompt_file(options), test_manifest(options));
      EXPECT_GE(output.resumed(), static_cast<std::uint64_t>(records));
    }
    EXPECT_EQ(run_whole_job(options), 1);
    EXPECT_EQ(read_text(options.files.output), expected_) << records;
  }
}

TEST_F(OutputFileTest, ATornTailIsCutWhereverItTears) {
  const RunOptions options = job_options(folder_);
  run_partly(options, 20);
  const std::string part = read_text(options.files.output + ".part");
  for (std::size_t bytes = part.size() - 1; bytes > part.size() - 300; bytes -= 7) {
    write_text(options.files.output + ".part", part.substr(0, bytes));
    const OutputFile output(options, examine_prompt_file(options), test_manifest(options));
    const std::string now = read_text(options.files.output + ".part");
    EXPECT_TRUE(part.starts_with(now));
    EXPECT_EQ(now.back(), '\n');
    EXPECT_GT(now.size() + 300, bytes);
  }
  // What a power cut leaves: zeros where data did not arrive, and a garbled last line.
  for (const std::string& tail : {std::string(100, '\0'), std::string("{\"index\":3\n")}) {
    write_text(options.files.output + ".part", part + tail);
    { const OutputFile output(options, examine_prompt_file(options), test_manifest(options)); }
    EXPECT_EQ(read_text(options.files.output + ".part"), part);
  }
  EXPECT_EQ(run_whole_job(options), 1);
  EXPECT_EQ(read_text(options.files.output), expected_);
}

TEST_F(OutputFileTest, AMalformedLineInTheMiddleIsRefusedAndNothingChanges) {
  const RunOptions options = job_options(folder_);
  run_partly(options, 20);
  const std::string part = read_text(options.files.output + ".part");
  const std::size_t third = part.find('\n', part.find('\n') + 1) + 1;
  for (const char* wrong : {"garbage\n", "\n", "{\"index\":3}\n"}) {
    const std::string damaged = part.substr(0, third) + wrong + part.substr(third);
    write_text(options.files.output + ".part", damaged);
    std::string message;
    EXPECT_EQ(refusal(options, &message), "E-IN-RESUME");
    EXPECT_NE(message.find(".part:3: "), std::string::npos) << message;
    EXPECT_EQ(read_text(options.files.output + ".part"), damaged);
  }
}

TEST_F(OutputFileTest, RecordsOfOtherLinesOrTwiceAreRefused) {
  const RunOptions options = job_options(folder_);
  run_partly(options, 20);
  const std::string part = read_text(options.files.output + ".part");
  const std::string first = part.substr(0, part.find('\n') + 1);
  // No line of the job, a blank one, and one that has no record yet.
  for (const char* index : {"60", "7", "9223372036854775807", "59"}) {
    std::string foreign = first;
    const std::size_t at = foreign.find("\"index\":") + 8;
    foreign.replace(at, foreign.find(',', at) - at, index);
    write_text(options.files.output + ".part", part + foreign);
    EXPECT_EQ(refusal(options), "E-IN-RESUME") << index;
  }
  write_text(options.files.output + ".part", part + part);
  std::string message;
  EXPECT_EQ(refusal(options, &message), "E-IN-RESUME");
  EXPECT_NE(message.find("a second time"), std::string::npos) << message;
}

TEST_F(OutputFileTest, AnotherJobIsRefusedNamingTheDifferences) {
  const RunOptions options = job_options(folder_);
  run_partly(options, 20);
  const std::string part = read_text(options.files.output + ".part");
  const std::string manifest = read_text(options.files.output + ".manifest.json");
  RunOptions other = options;
  other.generation.seed = 5;
  other.generation.sampling.temperature = 0.5;
  other.generation.sampling.stop = {"x"};
  std::string message;
  EXPECT_EQ(refusal(other, &message), "E-IN-MANIFEST");
  EXPECT_NE(message.find("seed: 0 there, 5 now"), std::string::npos) << message;
  EXPECT_NE(message.find("temperature: 0 there, 0.5 now"), std::string::npos) << message;
  EXPECT_NE(message.find("stop"), std::string::npos) << message;
  other = options;
  other.files.input_format = InputFormat::kIds;
  EXPECT_EQ(refusal(other, &message), "E-IN-MANIFEST");
  EXPECT_NE(message.find("input-format: auto there, ids now"), std::string::npos) << message;
  write_text(options.files.prompts, testing::sample_prompts(61));
  EXPECT_EQ(refusal(options, &message), "E-IN-MANIFEST");
  EXPECT_NE(message.find("input hash"), std::string::npos) << message;
  RunOptions shard = options;
  shard.files.shard = {0, 4, "SLURM_ARRAY_TASK_ID"};
  EXPECT_EQ(refusal(shard, &message), "E-IN-MANIFEST");
  EXPECT_NE(message.find("--shard i/n explicitly"), std::string::npos) << message;
  EXPECT_NE(message.find("an --output of its own"), std::string::npos) << message;
  EXPECT_EQ(read_text(options.files.output + ".part"), part);
  EXPECT_EQ(read_text(options.files.output + ".manifest.json"), manifest);
}

TEST_F(OutputFileTest, RecordsWithoutOrWithADamagedManifestAreRefused) {
  const RunOptions options = job_options(folder_);
  run_partly(options, 20);
  const std::string manifest = read_text(options.files.output + ".manifest.json");
  for (std::size_t bytes : {std::size_t{0}, manifest.size() / 2}) {
    write_text(options.files.output + ".manifest.json", manifest.substr(0, bytes));
    EXPECT_EQ(refusal(options), "E-IN-MANIFEST");
  }
  std::filesystem::remove(options.files.output + ".manifest.json");
  EXPECT_EQ(refusal(options), "E-IN-RESUME");
}

TEST_F(OutputFileTest, ResumeModes) {
  RunOptions options = job_options(folder_);
  options.files.resume = ResumeMode::kRequire;
  EXPECT_EQ(refusal(options), "E-IN-RESUME");
  EXPECT_FALSE(exists(options.files.output + ".part"));
  options.files.resume = ResumeMode::kAuto;
  run_partly(options, 20);
  options.files.resume = ResumeMode::kNever;
  EXPECT_EQ(refusal(options), "E-IN-RESUME");
  options.files.resume = ResumeMode::kRequire;
  EXPECT_EQ(run_whole_job(options), 1);
  options.files.resume = ResumeMode::kNever;
  EXPECT_EQ(refusal(options), "E-IN-RESUME");
  EXPECT_EQ(read_text(options.files.output), expected_);
}

TEST_F(OutputFileTest, ACompleteOutputIsRecognisedAndLeftAlone) {
  const struct timespec before = [&] {
    struct stat status = {};
    stat(reference_.files.output.c_str(), &status);
    return status.st_mtim;
  }();
  {
    const OutputFile output(reference_, examine_prompt_file(reference_), test_manifest(reference_));
    EXPECT_TRUE(output.already_complete());
    EXPECT_EQ(output.counts().total(), examine_prompt_file(reference_).requests);
    EXPECT_GT(output.counts().failed(), 0U);
  }
  EXPECT_EQ(run_whole_job(reference_), 1);
  struct stat after = {};
  stat(reference_.files.output.c_str(), &after);
  EXPECT_EQ(after.st_mtim.tv_nsec, before.tv_nsec);
  EXPECT_FALSE(exists(reference_.files.output + ".part"));
  RunOptions other = reference_;
  other.generation.seed = 3;
  EXPECT_EQ(refusal(other), "E-IN-MANIFEST");
  EXPECT_FALSE(exists(reference_.files.output + ".part"));
}

TEST_F(OutputFileTest, ADamagedCompleteOutputIsNotCalledComplete) {
  write_text(reference_.files.output, expected_.substr(0, expected_.size() - 5));
  EXPECT_EQ(refusal(reference_), "E-IN-RESUME");
  write_text(reference_.files.output, expected_.substr(0, expected_.find('\n') + 1));
  std::string message;
  EXPECT_EQ(refusal(reference_, &message), "E-IN-RESUME");
  EXPECT_NE(message.find("1 records"), std::string::npos) << message;
  std::filesystem::remove(reference_.files.output + ".manifest.json");
  EXPECT_EQ(refusal(reference_), "E-IN-RESUME");
}

TEST_F(OutputFileTest, OverwriteStartsAnew) {
  RunOptions options = job_options(folder_);
  run_partly(options, 20);
  options.generation.seed = 9;
  options.files.overwrite = true;
  EXPECT_EQ(run_whole_job(options), 1);
  EXPECT_EQ(read_text(options.files.output), expected_);
  options.files.overwrite = false;
  EXPECT_EQ(run_whole_job(options), 1);
}

TEST_F(OutputFileTest, RetryFailedRedoesOnlyTheFailures) {
  RunOptions options = reference_;
  options.files.retry_failed = true;
  std::uint64_t steps = 0;
  const auto repaired = [&](testing::FakeEngine& engine) {
    engine.fail_marked = false;
    engine.on_step = [&](std::uint64_t) { ++steps; };
  };
  std::uint64_t failures_of_engine = 0;
  std::istringstream lines(expected_);
  for (std::string line; std::getline(lines, line);) {
    failures_of_engine += line.find("E-IN-CONTEXT") != std::string::npos ? 1 : 0;
  }
  ASSERT_GT(failures_of_engine, 1U);
  EXPECT_EQ(run_whole_job(options, system_file_ops(), repaired), 1);
  EXPECT_EQ(steps, failures_of_engine);
  const std::string now = read_text(options.files.output);
  EXPECT_EQ(now.find("E-IN-CONTEXT"), std::string::npos);
  EXPECT_NE(now.find("E-IN-JSON"), std::string::npos) << "those lines fail again";
  EXPECT_EQ(std::count(now.begin(), now.end(), '\n'),
            std::count(expected_.begin(), expected_.end(), '\n'));
}

TEST_F(OutputFileTest, AnInterruptedRetryLosesNothing) {
  RunOptions options = reference_;
  options.files.retry_failed = true;
  const auto stop_early = [](testing::FakeEngine& engine) {
    engine.fail_marked = false;
    engine.on_step = [](std::uint64_t step) {
      if (step == 2) throw std::runtime_error("killed");
    };
  };
  EXPECT_THROW((void)run_whole_job(options, system_file_ops(), stop_early), std::runtime_error);
  EXPECT_EQ(read_text(options.files.output), expected_)
      << "the old output stays until the new is whole";
  // Without --retry-failed the newer records must not be thrown away silently.
  RunOptions plain = options;
  plain.files.retry_failed = false;
  EXPECT_EQ(refusal(plain), "E-IN-RESUME");
  EXPECT_EQ(run_whole_job(options, system_file_ops(),
                          [](testing::FakeEngine& engine) { engine.fail_marked = false; }),
            1);
  EXPECT_EQ(read_text(options.files.output).find("E-IN-CONTEXT"), std::string::npos);
}

TEST_F(OutputFileTest, RetryFailedAlsoWorksOnAnUnfinishedJob) {
  RunOptions options = job_options(folder_);
  run_partly(options, 40);
  options.files.retry_failed = true;
  EXPECT_EQ(run_whole_job(options, system_file_ops(),
                          [](testing::FakeEngine& engine) { engine.fail_marked = false; }),
            1);
  const std::string now = read_text(options.files.output);
  EXPECT_EQ(now.find("E-IN-CONTEXT"), std::string::npos);
  EXPECT_EQ(std::count(now.begin(), now.end(), '\n'),
            std::count(expected_.begin(), expected_.end(), '\n'));
}

TEST_F(OutputFileTest, CompletedOrderKeepsTheOrderOfFinishing) {
  RunOptions options = job_options(folder_);
  options.files.order = RecordOrder::kCompleted;
  run_partly(options, 20);
  const std::string part = read_text(options.files.output + ".part");
  EXPECT_EQ(run_whole_job(options), 1);
  const std::string now = read_text(options.files.output);
  // The records of OUT.part but for their checks.
  const std::string uncheck =
      std::regex_replace(part, std::regex(R"re(,"check":"[0-9a-f]{16}")re"), "");
  EXPECT_NE(uncheck, part);
  EXPECT_TRUE(now.starts_with(uncheck));
  EXPECT_NE(now, expected_);
  EXPECT_EQ(now.size(), expected_.size());
}

TEST_F(OutputFileTest, ForeignBytesEndTheRunBeforeItsNextRecord) {
  RunOptions options = job_options(folder_);
  const auto append_to_part = [&](testing::FakeEngine& engine) {
    engine.on_step = [&](std::uint64_t step) {
      if (step == 9) std::ofstream(options.files.output + ".part", std::ios::app) << "x\n";
    };
  };
  std::string message;
  EXPECT_EQ(code_thrown([&] { (void)run_whole_job(options, system_file_ops(), append_to_part); },
                        &message),
            "E-IN-PART");
  EXPECT_NE(message.find("bytes, expected the"), std::string::npos) << message;
  EXPECT_FALSE(exists(options.files.output));
  const std::string part = read_text(options.files.output + ".part");
  EXPECT_TRUE(part.ends_with("x\n"));
  // A last line that is no record is cut like a torn one.
  EXPECT_EQ(run_whole_job(options), 1);
  EXPECT_EQ(read_text(options.files.output), expected_);
}

// Whatever byte of OUT.part is changed while the job runs, no output is published with it.
TEST_F(OutputFileTest, EveryRecordIsReadBackBeforeItIsPublished) {
  const RunOptions options = job_options(folder_);
  run_partly(options, 20);
  const std::string part = read_text(options.files.output + ".part");
  for (const RecordOrder order : {RecordOrder::kInput, RecordOrder::kCompleted}) {
    for (std::size_t at = 0; at < part.size(); at += 37) {
      RunOptions damaged = job_options(folder_, "damaged");
      damaged.files.order = order;
      damaged.files.overwrite = true;
      const auto change_a_byte = [&](testing::FakeEngine& engine) {
        engine.on_step = [&](std::uint64_t step) {
          if (step != 30) return;
          std::fstream file(damaged.files.output + ".part",
                            std::ios::in | std::ios::out | std::ios::binary);
          file.seekg(static_cast<std::streamoff>(at));
          const char now = static_cast<char>(file.get());
          file.seekp(static_cast<std::streamoff>(at));
          file.put(static_cast<char>(now ^ 1));
        };
      };
      const std::string code =
          code_thrown([&] { (void)run_whole_job(damaged, system_file_ops(), change_a_byte); });
      EXPECT_EQ(code, "E-IN-PART") << at;
      EXPECT_FALSE(exists(damaged.files.output)) << at;
    }
  }
}

// Each is a record of the right shape.
TEST_F(OutputFileTest, ChangedRecordsAreNotResumed) {
  const RunOptions options = job_options(folder_);
  run_partly(options, 20);
  const std::string part = read_text(options.files.output + ".part");
  const std::string first = part.substr(0, part.find('\n') + 1);
  const auto with = [&](std::string_view old_text, std::string_view new_text) {
    std::string changed = first;
    const std::size_t at = changed.find(old_text);
    EXPECT_NE(at, std::string::npos) << old_text;
    return changed.replace(at, old_text.size(), new_text);
  };
  const std::string check = first.substr(first.find(",\"check\""));
  for (const std::string& changed :
       {with("\"id\":\"line 0\"", "\"id\":\"line 9\""), with("\"index\":0", "\"index\":59"),
        with("\"index\":0", "\"index\":7"), with(check, "}\n"), with("<", "(")}) {
    const std::string damaged = changed + part.substr(first.size());
    write_text(options.files.output + ".part", damaged);
    std::string message;
    EXPECT_EQ(refusal(options, &message), "E-IN-RESUME") << changed;
    EXPECT_NE(message.find(".part:1: "), std::string::npos) << message;
    EXPECT_EQ(read_text(options.files.output + ".part"), damaged);
  }
}

TEST_F(OutputFileTest, ACompleteOutputHasEveryLineOnceAndInOrder) {
  std::vector<std::string> records;
  std::istringstream lines(expected_);
  for (std::string line; std::getline(lines, line);) records.push_back(line + "\n");
  const auto join = [](const std::vector<std::string>& parts) {
    std::string text;
    for (const std::string& part : parts) text += part;
    return text;
  };
  std::vector<std::vector<std::string>> damages(4, records);
  damages[0][1] = records[0];
  std::swap(damages[1][0], damages[1][1]);
  // A blank line instead of the last, and none of the job.
  for (const auto& [which, index] : {std::pair(2, "7"), std::pair(3, "60")}) {
    std::string& last = damages[static_cast<std::size_t>(which)].back();
    const std::size_t at = last.find("\"index\":") + 8;
    last.replace(at, last.find(',', at) - at, index);
  }
  for (const auto& damage : damages) {
    write_text(reference_.files.output, join(damage));
    std::string message;
    EXPECT_EQ(refusal(reference_, &message), "E-IN-RESUME") << message;
    EXPECT_NE(message.find("index"), std::string::npos) << message;
  }
  write_text(reference_.files.output, expected_);
  EXPECT_EQ(refusal(reference_), "");
}

TEST_F(OutputFileTest, OverwriteDeletesNothingBeforeItBegins) {
  reference_.files.overwrite = true;
  const std::string manifest = read_text(reference_.files.output + ".manifest.json");
  {
    const OutputFile output(reference_, examine_prompt_file(reference_), test_manifest(reference_));
    EXPECT_TRUE(exists(reference_.files.output + ".part")) << "which is the lock";
  }
  EXPECT_FALSE(exists(reference_.files.output + ".part"));
  EXPECT_EQ(read_text(reference_.files.output), expected_);
  EXPECT_EQ(read_text(reference_.files.output + ".manifest.json"), manifest);
}

TEST_F(OutputFileTest, TwoRunsOnOneOutputAreRefusedNamingTheOther) {
  const RunOptions options = job_options(folder_);
  const OutputFile first(options, examine_prompt_file(options), test_manifest(options));
  std::string message;
  EXPECT_EQ(refusal(options, &message), "E-IN-LOCKED");
  EXPECT_NE(message.find("process " + std::to_string(getpid())), std::string::npos) << message;
  RunOptions unlocked = options;
  unlocked.files.lock = false;
  EXPECT_EQ(refusal(unlocked), "");
}

TEST_F(OutputFileTest, TheOutputMustNotBeTheInput) {
  RunOptions options = job_options(folder_, "in.jsonl");
  EXPECT_EQ(refusal(options), "E-CLI-OUTPUT");
  std::filesystem::create_hard_link(folder_ / "in.jsonl", folder_ / "link.jsonl");
  EXPECT_EQ(refusal(job_options(folder_, "link.jsonl")), "E-CLI-OUTPUT");
  std::filesystem::create_symlink(folder_ / "in.jsonl", folder_ / "symlink.jsonl");
  EXPECT_EQ(refusal(job_options(folder_, "symlink.jsonl")), "E-CLI-OUTPUT");
  std::filesystem::create_hard_link(folder_ / "in.jsonl", folder_ / "x.part");
  EXPECT_EQ(refusal(job_options(folder_, "x")), "E-CLI-OUTPUT");
}

TEST_F(OutputFileTest, BadPlacesAreRefusedBeforeAnythingIsCreated) {
  EXPECT_EQ(refusal(job_options(folder_, "missing/out.jsonl")), "E-IO-OPEN");
  std::filesystem::create_directory(folder_ / "directory");
  EXPECT_EQ(refusal(job_options(folder_, "directory")), "E-CLI-OUTPUT");
  EXPECT_EQ(refusal(job_options(folder_, "in.jsonl/out")), "E-IO-OPEN");
  std::filesystem::create_symlink("/etc/passwd", folder_ / "evil.jsonl.part");
  EXPECT_EQ(refusal(job_options(folder_, "evil.jsonl")), "E-CLI-OUTPUT");
  EXPECT_FALSE(exists(folder_ / "evil.jsonl.manifest.json"));
}

TEST_F(OutputFileTest, PrivateFilesAreForTheOwnerOnly) {
  RunOptions options = job_options(folder_);
  options.files.private_files = true;
  EXPECT_EQ(run_whole_job(options), 1);
  for (const std::string& path : {options.files.output, options.files.output + ".manifest.json"}) {
    struct stat status = {};
    ASSERT_EQ(stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600U) << path;
  }
}

TEST_F(OutputFileTest, APipeCannotBeResumed) {
  const RunOptions options = job_options(folder_);
  run_partly(options, 20);
  RunOptions from_pipe = options;
  from_pipe.files.prompts = "-";
  EXPECT_EQ(code_thrown([&] { OutputFile output(from_pipe, {}, test_manifest(from_pipe, {})); }),
            "E-IN-RESUME");
}

TEST_F(OutputFileTest, EmptyInputGivesAnEmptyOutput) {
  write_text(folder_ / "in.jsonl", "");
  const RunOptions options = job_options(folder_);
  EXPECT_EQ(run_whole_job(options), 0);
  EXPECT_TRUE(exists(options.files.output));
  EXPECT_EQ(read_text(options.files.output), "");
  EXPECT_EQ(run_whole_job(options), 0);
}

// Kills at random moments from outside, as the kernel's out-of-memory killer does (X1, X5).
TEST_F(OutputFileTest, SurvivesKillsAtAnyMoment) {
  write_text(folder_ / "in.jsonl", testing::sample_prompts(400));
  reference_.files.overwrite = true;
  ASSERT_EQ(run_whole_job(reference_), 1);
  expected_ = read_text(reference_.files.output);
  RunOptions options = job_options(folder_);
  options.files.sync_seconds = 0.001;
  unsigned random = 12345;
  int kills = 0;
  for (int attempt = 0; attempt < 400 && !exists(options.files.output); ++attempt) {
    const pid_t child = fork();
    if (child == 0) {
      try {
        (void)run_whole_job(options, system_file_ops(), [](testing::FakeEngine& engine) {
          engine.on_step = [](std::uint64_t) { usleep(100); };
        });
        _exit(0);
      } catch (...) {
        _exit(99);
      }
    }
    random = random * 1664525 + 1013904223;
    usleep(2000 + (random >> 16) % 8000);
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << WEXITSTATUS(status);
    kills += WIFSIGNALED(status) ? 1 : 0;
  }
  EXPECT_GT(kills, 5);
  EXPECT_EQ(run_whole_job(options), 1);
  EXPECT_EQ(read_text(options.files.output), expected_);
}

}  // namespace
}  // namespace triphase
