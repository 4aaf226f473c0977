// A power cut at every call: what was not synced is lost in any part, names in any order. Whatever
// survives, what was promised is there, and the same command ends with the same bytes.

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <map>
#include <memory>
#include <random>

#include "job_fixture.h"
#include "runtime/job/merge.h"

namespace triphase {
namespace {

using testing::exists;
using testing::FakeEngine;
using testing::job_options;
using testing::read_text;
using testing::run_whole_job;
using testing::TempFolder;
using testing::test_manifest;
using testing::write_text;

struct PowerCut {};

// For the runs afterwards, whose power stays on: waiting for the disk tells nothing.
class NoSyncOps : public FileOps {
 public:
  int fsync(int) override { return 0; }
  int fdatasync(int) override { return 0; }
};

// Does every call on the folder's files, and remembers what of it is on the disk for sure. The n-th
// call throws PowerCut; the ones after it fail. crash() then leaves in the folder what a disk could
// have kept.
class PowerCutOps : public FileOps {
 public:
  PowerCutOps(std::string folder, int n) : folder_(std::move(folder)), n_(n) {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      auto file = std::make_shared<File>();
      file->kept = file->now = read_text(entry.path());
      names_.emplace(entry.path(), std::move(file));
    }
    kept_names_ = names_;
  }

  int open(const char* path, int flags, mode_t mode) override {
    if (cut()) return -1;
    const int fd = FileOps::open(path, flags, mode);
    const bool elsewhere = std::filesystem::path(path).parent_path() != folder_;
    if (fd < 0 || (flags & O_DIRECTORY) != 0 || elsewhere) return fd;
    if (!names_.contains(path)) {
      names_[path] = std::make_shared<File>();
      name_changes_.push_back({"", path});
      name_changes_.back().file = names_[path];
    }
    open_[fd] = names_[path];
    return fd;
  }
  int close(int fd) override {
    open_.erase(fd);
    return FileOps::close(fd);
  }
  ssize_t write(int fd, const void* data, std::size_t bytes) override {
    return cut() ? -1 : remember(fd, data, FileOps::write(fd, data, bytes), open_[fd]->now.size());
  }
  ssize_t pwrite(int fd, const void* data, std::size_t bytes, off_t offset) override {
    if (cut()) return -1;
    ++part_writes_;
    return remember(fd, data, FileOps::pwrite(fd, data, bytes, offset),
                    static_cast<std::size_t>(offset));
  }
  ssize_t pread(int fd, void* data, std::size_t bytes, off_t offset) override {
    return cut() ? -1 : FileOps::pread(fd, data, bytes, offset);
  }
  int fsync(int fd) override {
    if (cut()) return -1;
    if (open_.contains(fd)) {
      keep(*open_[fd]);
    } else {
      kept_names_ = names_;
      name_changes_.clear();
    }
    return 0;
  }
  int fdatasync(int fd) override {
    if (cut()) return -1;
    keep(*open_[fd]);
    return 0;
  }
  int ftruncate(int fd, off_t bytes) override {
    if (cut()) return -1;
    File& file = *open_[fd];
    file.now.resize(static_cast<std::size_t>(bytes));
    file.changes.push_back({file.now.size(), "", /*truncates=*/true});
    return FileOps::ftruncate(fd, bytes);
  }
  int rename(const char* from, const char* to) override {
    if (cut()) return -1;
    name_changes_.push_back({from, to, names_[from]});
    apply(name_changes_.back(), names_);
    return FileOps::rename(from, to);
  }
  int unlink(const char* path) override {
    if (cut()) return -1;
    if (names_.contains(path)) {
      name_changes_.push_back({path, "", nullptr});
      apply(name_changes_.back(), names_);
    }
    return FileOps::unlink(path);
  }

  [[nodiscard]] bool reached() const { return calls_ >= n_; }
  // Records before the last one: their sync was over, where every record is synced.
  [[nodiscard]] int promised() const { return std::max(part_writes_ - 1, 0); }

  // `share` of what was not synced survives: 0 nothing, 1 all.
  void crash(std::mt19937& random, double share) {
    std::bernoulli_distribution survives(share);
    Names names = kept_names_;
    for (const NameChange& change : name_changes_) {
      if (survives(random)) apply(change, names);
    }
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      std::filesystem::remove(entry.path());
    }
    for (const auto& [path, file] : names) {
      std::string text = file->kept;
      for (const Change& change : file->changes) {
        if (!change.truncates) {
          write_pages(change, survives, random, text);
        } else if (survives(random)) {
          text.resize(change.offset);
        }
      }
      // The size may be there before the bytes are.
      if (text.size() < file->now.size() && survives(random)) text.resize(file->now.size());
      write_text(path, text);
    }
  }

 private:
  struct Change {
    std::size_t offset = 0;
    std::string bytes;
    bool truncates = false;
  };
  struct File {
    std::string kept;
    std::string now;
    std::vector<Change> changes;  // since `kept`
  };
  using Names = std::map<std::string, std::shared_ptr<File>>;
  struct NameChange {
    std::string from;  // a name that goes
    std::string to;    // one that means `file` now
    std::shared_ptr<File> file;
  };
  static constexpr std::size_t kPage = 512;

  static void apply(const NameChange& change, Names& names) {
    names.erase(change.from);
    if (!change.to.empty()) names[change.to] = change.file;
  }
  static void keep(File& file) {
    file.kept = file.now;
    file.changes.clear();
  }
  static void write_pages(const Change& change, std::bernoulli_distribution& survives,
                          std::mt19937& random, std::string& text) {
    for (std::size_t done = 0; done < change.bytes.size();) {
      const std::size_t at = change.offset + done;
      const std::size_t bytes = std::min(change.bytes.size() - done, kPage - at % kPage);
      if (survives(random)) {
        text.resize(std::max(text.size(), at + bytes));
        text.replace(at, bytes, change.bytes, done, bytes);
      }
      done += bytes;
    }
  }
  ssize_t remember(int fd, const void* data, ssize_t written, std::size_t offset) {
    if (written <= 0) return written;
    File& file = *open_[fd];
    file.changes.push_back(
        {offset, {static_cast<const char*>(data), static_cast<std::size_t>(written)}});
    file.now.resize(std::max(file.now.size(), offset + static_cast<std::size_t>(written)));
    file.now.replace(offset, file.changes.back().bytes.size(), file.changes.back().bytes);
    return written;
  }
  bool cut() {
    errno = EIO;
    if (++calls_ == n_) throw PowerCut();
    return calls_ > n_;
  }

  std::string folder_;
  int n_;
  int calls_ = 0;
  int part_writes_ = 0;
  Names names_;
  Names kept_names_;
  std::vector<NameChange> name_changes_;  // since `kept_names_`
  std::map<int, std::shared_ptr<File>> open_;
};

class PowerCutTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write_text(in_ / "in.jsonl", testing::sample_prompts(25));
    const RunOptions reference = job_options(in_, "reference.jsonl");
    ASSERT_EQ(run_whole_job(reference), 1);
    expected_ = read_text(reference.files.output);
    options_ = job_options(in_);
    options_.files.output = out_ / "out.jsonl";
  }

  // A run that loses power at its n-th call; false: it had fewer, and lost power at its end.
  bool run_until_cut(PowerCutOps& ops, double share) {
    bool ended = false;
    try {
      EXPECT_EQ(run_whole_job(options_, ops), 1);
      ended = true;
    } catch (const PowerCut&) {
    }
    ops.crash(random_, share);
    if (ended || exists(options_.files.output)) {
      EXPECT_EQ(read_text(options_.files.output), expected_);
    }
    return !ended;
  }

  void expect_resumable() {
    NoSyncOps ops;
    EXPECT_EQ(run_whole_job(options_, ops), 1);
    EXPECT_EQ(read_text(options_.files.output), expected_);
    empty();
  }

  void empty() {
    for (const auto& entry : std::filesystem::directory_iterator(out_.path())) {
      std::filesystem::remove(entry.path());
    }
  }

  TempFolder in_;
  TempFolder out_;
  RunOptions options_;
  std::string expected_;
  std::mt19937 random_{1};
};

constexpr double kShares[] = {0.0, 0.2, 0.5, 0.8, 1.0};

TEST_F(PowerCutTest, WhatWasSyncedIsThereAndTheSameCommandResumes) {
  options_.files.sync_seconds = 0.0;
  bool cut = true;
  for (int n = 1; cut; ++n) {
    for (const double share : kShares) {
      SCOPED_TRACE("call " + std::to_string(n) + ", share " + std::to_string(share));
      PowerCutOps ops(out_.path(), n);
      cut = run_until_cut(ops, share);
      if (cut && !exists(options_.files.output)) {
        NoSyncOps plain;
        const OutputFile output(options_, examine_prompt_file(options_), test_manifest(options_),
                                plain);
        EXPECT_GE(output.resumed(), static_cast<std::uint64_t>(ops.promised()));
      }
      expect_resumable();
      if (HasFailure()) return;
    }
    ASSERT_LT(n, 1000);
  }
}

// Without a sync in between, pages of OUT.part are lost while later ones survive; and the power
// fails again while the job is resumed.
TEST_F(PowerCutTest, HolesAreDoneAgain) {
  bool cut = true;
  for (int n = 1; cut; ++n) {
    for (const double share : kShares) {
      const int again = std::uniform_int_distribution(1, 60)(random_);
      SCOPED_TRACE("calls " + std::to_string(n) + " and " + std::to_string(again) + ", share " +
                   std::to_string(share));
      PowerCutOps ops(out_.path(), n);
      cut = run_until_cut(ops, share);
      PowerCutOps second(out_.path(), again);
      run_until_cut(second, share);
      expect_resumable();
      if (HasFailure()) return;
    }
    ASSERT_LT(n, 1000);
  }
}

// Answers of another job: what fails in the reference is answered.
void answer_all(FakeEngine& engine) { engine.fail_marked = false; }

TEST_F(PowerCutTest, OverwrittenRecordsNeverPassForTheNewJobs) {
  RunOptions old = options_;
  old.generation.seed = 77;
  RunOptions overwriting = options_;
  overwriting.files.overwrite = true;
  bool cut = true;
  for (int n = 1; cut; ++n) {
    for (const double share : kShares) {
      for (const int calls : {24, 1000}) {
        SCOPED_TRACE("call " + std::to_string(n) + ", share " + std::to_string(share));
        // An old output, or what a power cut left of one.
        NoSyncOps plain;
        PowerCutOps first(out_.path(), calls);
        try {
          (void)run_whole_job(old, first, answer_all);
        } catch (const PowerCut&) {
        }
        first.crash(random_, 1.0);
        PowerCutOps ops(out_.path(), n);
        cut = false;
        try {
          (void)run_whole_job(overwriting, ops);
        } catch (const PowerCut&) {
          cut = true;
        }
        ops.crash(random_, share);
        const std::string code =
            testing::code_thrown([&] { (void)run_whole_job(options_, plain); });
        if (code.empty()) {
          EXPECT_EQ(read_text(options_.files.output), expected_);
        } else {
          EXPECT_TRUE(code == "E-IN-MANIFEST" || code == "E-IN-RESUME") << code;
          EXPECT_EQ(run_whole_job(overwriting, plain), 1);
        }
        expect_resumable();
        if (HasFailure()) return;
      }
    }
    ASSERT_LT(n, 1000);
  }
}

TEST_F(PowerCutTest, ARetryKeepsTheOutputUntilItIsDone) {
  NoSyncOps plain;
  RunOptions retrying = options_;
  retrying.files.retry_failed = true;
  ASSERT_EQ(run_whole_job(options_, plain), 1);
  ASSERT_EQ(run_whole_job(retrying, plain, answer_all), 1);
  const std::string retried = read_text(options_.files.output);
  ASSERT_NE(retried, expected_);
  empty();
  bool cut = true;
  for (int n = 1; cut; ++n) {
    for (const double share : kShares) {
      SCOPED_TRACE("call " + std::to_string(n) + ", share " + std::to_string(share));
      ASSERT_EQ(run_whole_job(options_, plain), 1);
      PowerCutOps ops(out_.path(), n);
      cut = false;
      try {
        (void)run_whole_job(retrying, ops, answer_all);
      } catch (const PowerCut&) {
        cut = true;
      }
      ops.crash(random_, share);
      const std::string kept = read_text(options_.files.output);
      EXPECT_TRUE(kept == retried || (cut && kept == expected_));
      EXPECT_EQ(run_whole_job(retrying, plain, answer_all), 1);
      EXPECT_EQ(read_text(options_.files.output), retried);
      empty();
      if (HasFailure()) return;
    }
    ASSERT_LT(n, 1000);
  }
}

class MergePowerCutTest : public PowerCutTest {
 protected:
  void SetUp() override {
    PowerCutTest::SetUp();
    for (std::uint64_t shard = 0; shard < 3; ++shard) {
      RunOptions options = job_options(in_, "shard." + std::to_string(shard));
      options.files.shard = {shard, 3, "test"};
      ASSERT_EQ(run_whole_job(options), 1);
      merge_.shards.push_back(options.files.output);
    }
    merge_.output = options_.files.output;
  }

  // A merge that loses power at its n-th call; false: it had fewer, and lost power at its end.
  bool merge_until_cut(int n, double share) {
    PowerCutOps ops(out_.path(), n);
    bool ended = false;
    try {
      (void)merge_shards(merge_, ops);
      ended = true;
    } catch (const PowerCut&) {
    }
    ops.crash(random_, share);
    EXPECT_TRUE(!ended || exists(merge_.output));
    return !ended;
  }

  // What stands there is known for what it is, and another merge ends.
  void expect_repeatable(std::string_view old) {
    NoSyncOps plain;
    if (exists(merge_.output)) {
      const std::string text = read_text(merge_.output);
      EXPECT_TRUE(text == expected_ || (!old.empty() && text == old));
      const std::string code = testing::code_thrown([&] { (void)run_whole_job(options_, plain); });
      EXPECT_EQ(code, text == expected_ ? "" : "E-IN-MANIFEST");
      EXPECT_EQ(read_text(merge_.output), text);
    } else {
      MergeOptions again = merge_;
      again.overwrite = false;
      (void)merge_shards(again, plain);
      EXPECT_EQ(read_text(merge_.output), expected_);
    }
    MergeOptions again = merge_;
    again.overwrite = true;
    (void)merge_shards(again, plain);
    EXPECT_EQ(read_text(merge_.output), expected_);
    EXPECT_EQ(run_whole_job(options_, plain), 1);
    empty();
  }

  MergeOptions merge_;
};

TEST_F(MergePowerCutTest, TheMergedFileIsThereAsAWholeOrNotAtAll) {
  bool cut = true;
  for (int n = 1; cut; ++n) {
    for (const double share : kShares) {
      SCOPED_TRACE("call " + std::to_string(n) + ", share " + std::to_string(share));
      cut = merge_until_cut(n, share);
      expect_repeatable("");
      if (HasFailure()) return;
    }
    ASSERT_LT(n, 1000);
  }
}

TEST_F(MergePowerCutTest, AnOverwrittenOutputNeverStandsBesideTheNewManifest) {
  NoSyncOps plain;
  RunOptions old = options_;
  old.generation.seed = 77;
  merge_.overwrite = true;
  bool cut = true;
  for (int n = 1; cut; ++n) {
    for (const double share : kShares) {
      SCOPED_TRACE("call " + std::to_string(n) + ", share " + std::to_string(share));
      ASSERT_EQ(run_whole_job(old, plain, answer_all), 1);
      const std::string before = read_text(old.files.output);
      cut = merge_until_cut(n, share);
      expect_repeatable(before);
      if (HasFailure()) return;
    }
    ASSERT_LT(n, 1000);
  }
}

}  // namespace
}  // namespace triphase
