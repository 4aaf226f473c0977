// Joining shards (bad-inputs X12): the whole, or nothing and the reason.

#include "runtime/job/merge.h"

#include <gtest/gtest.h>

#include "job_fixture.h"

namespace triphase {
namespace {

using testing::code_thrown;
using testing::exists;
using testing::job_options;
using testing::read_text;
using testing::run_whole_job;
using testing::TempFolder;
using testing::write_text;

class MergeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write_text(folder_ / "in.jsonl", testing::sample_prompts(100));
    ASSERT_EQ(run_whole_job(job_options(folder_, "whole.jsonl")), 1);
    for (std::uint64_t shard = 0; shard < 3; ++shard) {
      RunOptions options = job_options(folder_, "out." + std::to_string(shard));
      options.files.shard = {shard, 3, "test"};
      if (shard == 1) options.files.order = RecordOrder::kInput;
      ASSERT_EQ(run_whole_job(options), 1);
      merge_.shards.push_back(options.files.output);
    }
    merge_.output = folder_ / "merged.jsonl";
  }

  void expect_refused(std::string_view code, std::string_view must_say) {
    std::string message;
    EXPECT_EQ(code_thrown([&] { (void)merge_shards(merge_); }, &message), code) << message;
    EXPECT_NE(message.find(must_say), std::string::npos) << message;
    EXPECT_FALSE(exists(merge_.output));
    EXPECT_FALSE(exists(merge_.output + ".manifest.json"));
  }

  TempFolder folder_;
  MergeOptions merge_;
};

TEST_F(MergeTest, GivesTheFileOfAnUnshardedRunInAnyOrderOfArguments) {
  std::swap(merge_.shards[0], merge_.shards[2]);
  const RecordCounts counts = merge_shards(merge_);
  EXPECT_EQ(read_text(merge_.output), read_text(folder_ / "whole.jsonl"));
  EXPECT_GT(counts.failed(), 0U);
  // The result is known as the output of the whole job.
  const RunOptions whole = job_options(folder_, "merged.jsonl");
  const OutputFile output(whole, examine_prompt_file(whole), testing::test_manifest(whole));
  EXPECT_TRUE(output.already_complete());
}

TEST_F(MergeTest, MissingShardsAreListed) {
  merge_.shards.erase(merge_.shards.begin() + 1);
  expect_refused("E-IN-MERGE", "2 of 3, missing 1");
}

TEST_F(MergeTest, AShardTwiceIsRefused) {
  const std::vector<std::string> all = merge_.shards;
  for (const std::size_t twice : {0, 1, 2}) {
    merge_.shards = all;
    merge_.shards[(twice + 1) % 3] = all[twice];
    expect_refused("E-IN-MERGE", "shard " + std::to_string(twice) + " a second time");
  }
}

TEST_F(MergeTest, ShardsOfOtherJobsAreRefused) {
  RunOptions options = job_options(folder_, "out.1");
  options.files.shard = {1, 3, "test"};
  options.generation.seed = 77;
  options.files.overwrite = true;
  ASSERT_EQ(run_whole_job(options), 1);
  expect_refused("E-IN-MERGE", "seed: 0 there, 77 now");
  expect_refused("E-IN-MERGE", "make shards anew with the same options");
}

TEST_F(MergeTest, MissingAndForeignRecordsAreRefused) {
  const std::string text = read_text(merge_.shards[1]);
  write_text(merge_.shards[1], text.substr(0, text.rfind('\n', text.size() - 2) + 1));
  expect_refused("E-IN-MERGE", "one for every line of the shard");
  write_text(merge_.shards[1], "junk\n" + text);
  expect_refused("E-IN-RESUME", "make the shard anew");
  write_text(merge_.shards[1], text + "junk");
  expect_refused("E-IN-MERGE", "4 bytes behind the last record");
  write_text(merge_.shards[1], text + text);
  expect_refused("E-IN-MERGE", "a second time");
  write_text(merge_.shards[1], read_text(merge_.shards[2]));
  expect_refused("E-IN-MERGE", "a line of shard 1/3");
  std::filesystem::remove(merge_.shards[1]);
  expect_refused("E-IN-MERGE", "finish the shard");
  std::filesystem::remove(merge_.shards[1] + ".manifest.json");
  expect_refused("E-IN-OPEN", "out.1.manifest.json");
}

// A retry that was stopped has records that the shard's output does not have yet.
TEST_F(MergeTest, NewerRecordsOfARetryAreFinishedFirst) {
  RunOptions options = job_options(folder_, "out.1");
  options.files.shard = {1, 3, "test"};
  options.files.order = RecordOrder::kInput;
  options.files.retry_failed = true;
  const auto repaired_until = [&](std::uint64_t last) {
    return [last](testing::FakeEngine& engine) {
      engine.fail_marked = false;
      engine.on_step = [last](std::uint64_t step) {
        if (step == last) throw std::runtime_error("killed");
      };
    };
  };
  const auto killed_at = [&](std::uint64_t step) {
    EXPECT_THROW((void)run_whole_job(options, system_file_ops(), repaired_until(step)),
                 std::runtime_error);
    EXPECT_TRUE(exists(options.files.output + ".part"));
  };
  // With a copy of the old successes alone the output is as new.
  killed_at(1);
  (void)merge_shards(merge_);
  const std::string before = read_text(merge_.output);
  std::filesystem::remove(merge_.output);
  std::filesystem::remove(merge_.output + ".manifest.json");

  killed_at(2);
  expect_refused("E-IN-MERGE", "an interrupted retry with newer records than the output");
  expect_refused("E-IN-MERGE", "out.1.part");
  ASSERT_EQ(run_whole_job(options, system_file_ops(), repaired_until(0)), 1);
  (void)merge_shards(merge_);
  EXPECT_NE(read_text(merge_.output), before);
}

TEST_F(MergeTest, DoesNotOverwriteUnasked) {
  const std::vector<std::string> told = {".summary.json", ".plan.json", ".sparsity.json"};
  write_text(merge_.output, "precious");
  for (const std::string& name : told) write_text(merge_.output + name, "of an older job");
  EXPECT_EQ(code_thrown([&] { (void)merge_shards(merge_); }), "E-CLI-OUTPUT");
  EXPECT_EQ(read_text(merge_.output), "precious");
  for (const std::string& name : told) EXPECT_TRUE(exists(merge_.output + name)) << name;
  merge_.overwrite = true;
  (void)merge_shards(merge_);
  for (const std::string& name : told) EXPECT_FALSE(exists(merge_.output + name)) << name;
  EXPECT_EQ(read_text(merge_.output), read_text(folder_ / "whole.jsonl"));
  merge_.output = merge_.shards[0];
  EXPECT_EQ(code_thrown([&] { (void)merge_shards(merge_); }), "E-CLI-OUTPUT");
}

TEST_F(MergeTest, TemporariesOfAKilledMergeGo) {
  const std::string mine = merge_.output + "2.0123456789abcdef.tmp";
  const std::vector<std::string> left = {merge_.output + ".0123456789abcdef.tmp",
                                         merge_.output + ".manifest.json.0123456789abcdef.tmp"};
  for (const std::string& path : left) write_text(path, "left");
  write_text(mine, "of another output");
  (void)merge_shards(merge_);
  for (const std::string& path : left) EXPECT_FALSE(exists(path)) << path;
  EXPECT_TRUE(exists(mine));
}

// 2^61 lines without a record would be 2^64 bytes of places for them.
TEST_F(MergeTest, ForeignNumbersSizeNothing) {
  std::string manifest = read_text(merge_.shards[2] + ".manifest.json");
  const std::string lines = "\"lines\": 100";
  ASSERT_NE(manifest.find(lines), std::string::npos) << manifest;
  manifest.replace(manifest.find(lines), lines.size(), "\"lines\": 4611686018427387904");
  write_text(merge_.shards[2] + ".manifest.json", manifest);
  std::string text = read_text(merge_.shards[2]);
  const std::string first = "\"index\":2,";
  const std::string far = "\"index\":2305843009213693952,";
  ASSERT_LT(text.find(first), text.find('\n'));
  text.replace(text.find(first), first.size(), far);
  write_text(merge_.shards[2], text);
  (void)merge_shards(merge_);
  const std::string merged = read_text(merge_.output);
  EXPECT_GT(merged.find(far), merged.rfind('\n', merged.size() - 2));
}

TEST_F(MergeTest, AnOutputHasOneWriter) {
  {
    RunOptions options = job_options(folder_, "merged.jsonl");
    OutputFile run(options, examine_prompt_file(options), testing::test_manifest(options));
    EXPECT_EQ(code_thrown([&] { (void)merge_shards(merge_); }), "E-IN-LOCKED");
    merge_.overwrite = true;
    EXPECT_EQ(code_thrown([&] { (void)merge_shards(merge_); }), "E-IN-LOCKED");
    EXPECT_TRUE(exists(merge_.output + ".part"));
    run.append(0, "{\"index\":0}", "");
  }
  merge_.overwrite = false;
  EXPECT_EQ(code_thrown([&] { (void)merge_shards(merge_); }), "E-CLI-OUTPUT");
  merge_.overwrite = true;
  (void)merge_shards(merge_);
  EXPECT_EQ(read_text(merge_.output), read_text(folder_ / "whole.jsonl"));
  EXPECT_FALSE(exists(merge_.output + ".part"));
}

}  // namespace
}  // namespace triphase
