// Makes the n-th system call of each kind fail, for every n until a run does not reach it, once and
// from then on (bad-inputs section 6.2; R9, R10, R13). Whatever fails: an I/O error and no OUT, or
// success; and a clean run afterwards ends with the same bytes as if nothing had happened.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "job_fixture.h"
#include "runtime/job/disk_space.h"

namespace triphase {
namespace {

using testing::exists;
using testing::job_options;
using testing::read_text;
using testing::run_whole_job;
using testing::TempFolder;
using testing::write_text;

enum class Call { kOpen, kWrite, kPread, kFsync, kFdatasync, kFtruncate, kRename, kUnlink };

class FaultyOps : public FileOps {
 public:
  FaultyOps(Call kind, int n, bool forever, int error_number)
      : kind_(kind), n_(n), forever_(forever), error_(error_number) {}

  int open(const char* path, int flags, mode_t mode) override {
    return fails(Call::kOpen) ? -1 : FileOps::open(path, flags, mode);
  }
  ssize_t write(int fd, const void* data, std::size_t bytes) override {
    if (!fails(Call::kWrite)) return FileOps::write(fd, data, bytes);
    // A full disk takes a part first; EINTR and errors may come alone.
    if (error_ == ENOSPC && bytes > 1 && calls_ == n_) return FileOps::write(fd, data, bytes / 2);
    return -1;
  }
  ssize_t pwrite(int fd, const void* data, std::size_t bytes, off_t offset) override {
    if (!fails(Call::kWrite)) return FileOps::pwrite(fd, data, bytes, offset);
    if (error_ == ENOSPC && bytes > 1 && calls_ == n_) {
      return FileOps::pwrite(fd, data, bytes / 2, offset);
    }
    return -1;
  }
  ssize_t pread(int fd, void* data, std::size_t bytes, off_t offset) override {
    return fails(Call::kPread) ? -1 : FileOps::pread(fd, data, bytes, offset);
  }
  int fsync(int fd) override { return fails(Call::kFsync) ? -1 : FileOps::fsync(fd); }
  int fdatasync(int fd) override { return fails(Call::kFdatasync) ? -1 : FileOps::fdatasync(fd); }
  int ftruncate(int fd, off_t bytes) override {
    return fails(Call::kFtruncate) ? -1 : FileOps::ftruncate(fd, bytes);
  }
  int rename(const char* from, const char* to) override {
    return fails(Call::kRename) ? -1 : FileOps::rename(from, to);
  }
  int unlink(const char* path) override {
    return fails(Call::kUnlink) ? -1 : FileOps::unlink(path);
  }

  [[nodiscard]] bool reached() const { return calls_ >= n_; }

 private:
  bool fails(Call kind) {
    if (kind != kind_) return false;
    ++calls_;
    const bool now = forever_ ? calls_ >= n_ : calls_ == n_;
    if (now) errno = error_;
    return now;
  }

  Call kind_;
  int n_;
  bool forever_;
  int error_;
  int calls_ = 0;
};

struct Fault {
  const char* name;
  Call kind;
  int error_number;
};

class FaultInjection : public ::testing::TestWithParam<Fault> {};

TEST_P(FaultInjection, EveryFailureIsResumable) {
  const Fault fault = GetParam();
  const TempFolder folder;
  write_text(folder / "in.jsonl", testing::sample_prompts(9));
  const RunOptions reference = job_options(folder, "reference.jsonl");
  ASSERT_EQ(run_whole_job(reference), 1);
  const std::string expected = read_text(reference.files.output);
  int failures = 0;
  for (const bool forever : {false, true}) {
    // A call that is interrupted for ever is no fault of a disk.
    if (forever && fault.error_number == EINTR) continue;
    for (int n = 1; n < 1000; ++n) {
      RunOptions options = job_options(folder, "out.jsonl");
      if (fault.kind == Call::kFdatasync)
        options.files.sync_seconds = 0.0;  // a sync for every record
      FaultyOps ops(fault.kind, n, forever, fault.error_number);
      std::string code;
      try {
        ASSERT_EQ(run_whole_job(options, ops), 1);
        EXPECT_EQ(read_text(options.files.output), expected);
      } catch (const Error& error) {
        code = error.code();
        ++failures;
        const int wanted = error.code().starts_with("E-IO")    ? 6
                           : error.code().starts_with("E-MEM") ? 5
                                                               : 4;
        EXPECT_EQ(exit_code(error.role()), wanted) << error.message();
        EXPECT_NE(fault.error_number, EINTR) << error.message();
        // The rename itself may have happened before the directory could not be synced.
        if (exists(options.files.output)) {
          EXPECT_EQ(read_text(options.files.output), expected);
        }
      }
      SCOPED_TRACE(std::string(fault.name) + " call " + std::to_string(n) + " " + code);
      ASSERT_EQ(run_whole_job(options), 1);
      ASSERT_EQ(read_text(options.files.output), expected);
      // What a failure left behind is gone after the next run.
      for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
        EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
      }
      for (const char* suffix : {"", ".manifest.json", ".part"}) {
        std::filesystem::remove(options.files.output + suffix);
      }
      if (!ops.reached()) break;
      ASSERT_LT(n, 999) << "the loop must come to an end";
    }
  }
  const bool harmless =
      fault.error_number == EINTR || fault.kind == Call::kUnlink || fault.kind == Call::kFtruncate;
  EXPECT_EQ(failures == 0, harmless) << failures;
}

INSTANTIATE_TEST_SUITE_P(
    Calls, FaultInjection,
    ::testing::Values(
        Fault{"open_EMFILE", Call::kOpen, EMFILE}, Fault{"open_EINTR", Call::kOpen, EINTR},
        Fault{"write_ENOSPC", Call::kWrite, ENOSPC}, Fault{"write_EIO", Call::kWrite, EIO},
        Fault{"write_EDQUOT", Call::kWrite, EDQUOT}, Fault{"write_EFBIG", Call::kWrite, EFBIG},
        Fault{"write_EINTR", Call::kWrite, EINTR}, Fault{"pread_EIO", Call::kPread, EIO},
        Fault{"pread_EINTR", Call::kPread, EINTR}, Fault{"fsync_EIO", Call::kFsync, EIO},
        Fault{"fsync_EINTR", Call::kFsync, EINTR}, Fault{"fdatasync_EIO", Call::kFdatasync, EIO},
        Fault{"fdatasync_EINTR", Call::kFdatasync, EINTR},
        Fault{"ftruncate_EIO", Call::kFtruncate, EIO}, Fault{"rename_EIO", Call::kRename, EIO},
        Fault{"unlink_EIO", Call::kUnlink, EIO}),
    [](const auto& row) { return std::string(row.param.name); });

TEST(DiskFull, SaysHowMuchIsKeptAndCutsToWholeRecords) {
  const TempFolder folder;
  write_text(folder / "in.jsonl", testing::sample_prompts(30));
  const RunOptions options = job_options(folder);
  FaultyOps ops(Call::kWrite, 12, /*forever=*/true, ENOSPC);
  std::string message;
  EXPECT_EQ(testing::code_thrown([&] { (void)run_whole_job(options, ops); }, &message),
            "E-IO-NOSPACE");
  EXPECT_NE(message.find("after 10 finished records"), std::string::npos) << message;
  EXPECT_NE(message.find("run the same command to resume"), std::string::npos) << message;
  const std::string part = read_text(options.files.output + ".part");
  EXPECT_EQ(part.back(), '\n');
  EXPECT_EQ(std::count(part.begin(), part.end(), '\n'), 10);
}

// The manifest comes first, the output last.
TEST(DiskFull, EveryFileOfTheJobSaysHowToGoOn) {
  for (const auto& [error, room] : {std::pair(ENOSPC, "free space"),
                                    {EDQUOT, "free space"},
                                    {EFBIG, "raise the limit of file sizes (ulimit -f)"}}) {
    std::string files;
    for (int n = 1;; ++n) {
      const TempFolder folder;
      write_text(folder / "in.jsonl", testing::sample_prompts(3));
      const RunOptions options = job_options(folder);
      FaultyOps ops(Call::kWrite, n, /*forever=*/true, error);
      std::string message;
      (void)testing::code_thrown([&] { (void)run_whole_job(options, ops); }, &message);
      if (!ops.reached()) break;
      EXPECT_NE(message.find(fmt::format("; hint: {} and run the same command to resume", room)),
                std::string::npos)
          << message;
      files +=
          message.substr(folder.path().size(), message.find(": ") - folder.path().size()) + " ";
    }
    EXPECT_TRUE(files.starts_with("/out.jsonl.manifest.json ")) << files;
    EXPECT_NE(files.find(" /out.jsonl "), std::string::npos) << files;
  }
}

TEST(DiskFull, SaysToLeaveOutWhatWouldDiscardTheRecords) {
  const TempFolder folder;
  write_text(folder / "in.jsonl", testing::sample_prompts(30));
  RunOptions options = job_options(folder);
  options.files.overwrite = true;
  options.files.resume = ResumeMode::kNever;
  FaultyOps ops(Call::kWrite, 12, /*forever=*/true, ENOSPC);
  std::string message;
  EXPECT_EQ(testing::code_thrown([&] { (void)run_whole_job(options, ops); }, &message),
            "E-IO-NOSPACE");
  EXPECT_NE(message.find("same command without --overwrite and --resume=never to resume"),
            std::string::npos)
      << message;
}

TEST(DiskSpace, WhatCannotFitIsSaidBefore) {
  const TempFolder folder;
  write_text(folder / "in.jsonl", "{\"prompt\":\"a\",\"max_tokens\":100}\n{\"prompt\":\"b\"}\n");
  const RunOptions options = job_options(folder);
  PromptFileFacts prompts = examine_prompt_file(options);
  EXPECT_EQ(disk_warning(options, prompts, 2048), "");
  prompts.requests = std::uint64_t{1} << 40;
  // 160 + 10 * (100 + 16) / 2 bytes of a record, twice.
  EXPECT_NE(disk_warning(options, prompts, 2048).find("take about 1.4 PiB"), std::string::npos)
      << disk_warning(options, prompts, 2048);
  EXPECT_EQ(disk_warning(options, prompts, 2048, prompts.requests), "") << "all are there";
  const std::uint64_t half = prompts.requests / 2;
  write_text(options.files.output + ".part", "records\n");
  EXPECT_NE(disk_warning(options, prompts, 2048, half).find(fmt::format("{} more records", half)),
            std::string::npos)
      << disk_warning(options, prompts, 2048, half);
  EXPECT_NE(disk_warning(options, prompts, 2048, half).find("take about 740.0 TiB"),
            std::string::npos)
      << disk_warning(options, prompts, 2048, half);
  prompts.rereadable = false;
  EXPECT_EQ(disk_warning(options, prompts, 2048), "");
}

}  // namespace
}  // namespace triphase
