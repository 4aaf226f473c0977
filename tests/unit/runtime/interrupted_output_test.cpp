// What is left when a run ends in the middle: temporary files, a retry half done, a torn record.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "job_fixture.h"
#include "runtime/job/file_ops.h"
#include "runtime/signals.h"

namespace triphase {
namespace {

using testing::exists;
using testing::job_options;
using testing::read_text;
using testing::run_whole_job;
using testing::TempFolder;
using testing::write_text;

class InterruptedOutputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write_text(folder_ / "in.jsonl", testing::sample_prompts(60));
    options_ = job_options(folder_);
  }
  [[nodiscard]] std::string part() const { return options_.files.output + ".part"; }

  TempFolder folder_;
  RunOptions options_;
};

TEST_F(InterruptedOutputTest, TemporariesOfAKilledRunGoAndNoOtherFile) {
  for (const char* name : {"out.jsonl.0123456789abcdef.tmp", "out.jsonl.ffffffffffffffff.tmp",
                           "out.jsonl.manifest.json.0123456789abcdef.tmp"}) {
    write_text(folder_ / name, "left over");
  }
  const std::vector<std::string> others = {
      "out.jsonl.0123456789abcdeX.tmp",  "out.jsonl-0123456789abcdef.tmp",
      "out.jsonl.0123456789abcde.tmp",   "ut.jsonl.0123456789abcdef.tmp",
      "out.jsonl2.0123456789abcdef.tmp", ".0123456789abcdef.tmp"};
  for (const std::string& name : others) write_text(folder_ / name, "mine");
  EXPECT_EQ(run_whole_job(options_), 1);
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    const bool mine = std::ranges::count(others, entry.path().filename().string()) == 1;
    EXPECT_TRUE(mine || entry.path().extension() != ".tmp") << entry.path();
  }
  for (const std::string& name : others) EXPECT_EQ(read_text(folder_ / name), "mine") << name;
}

// A retry that is killed has copied the old successes and done some lines again; what it did
// counts.
TEST_F(InterruptedOutputTest, ARetryGoesOnWhereAKilledOneStopped) {
  ASSERT_EQ(run_whole_job(options_), 1);
  options_.files.retry_failed = true;
  std::uint64_t steps = 0;
  const auto repaired = [&](testing::FakeEngine& engine) {
    engine.fail_marked = false;
    engine.on_step = [&](std::uint64_t step) {
      if (step == 3) throw std::runtime_error("killed");
    };
  };
  EXPECT_THROW((void)run_whole_job(options_, system_file_ops(), repaired), std::runtime_error);
  const std::string first = read_text(part());
  ASSERT_TRUE(first.ends_with("\n"));
  write_text(part(), first + "{\"index\":");
  EXPECT_EQ(run_whole_job(options_, system_file_ops(),
                          [&](testing::FakeEngine& engine) {
                            engine.fail_marked = false;
                            engine.on_step = [&](std::uint64_t step) {
                              steps = step;
                              EXPECT_TRUE(read_text(part()).starts_with(first));
                              EXPECT_EQ(read_text(part()).find("{\"index\":{"), std::string::npos);
                            };
                          }),
            1);
  // Lines 3 and 22, of which the first run did two, and 41: three that the engine fails.
  EXPECT_EQ(steps, 1U);
  EXPECT_EQ(read_text(options_.files.output).find("E-IN-CONTEXT"), std::string::npos);
}

// The disk is full in the middle of a record: what was written of it is cut, and the cut is synced.
class FullDiskOps : public FileOps {
 public:
  ssize_t pwrite(int fd, const void* data, std::size_t bytes, off_t offset) override {
    calls += 'w';
    if (std::ranges::count(calls, 'w') <= 5) return FileOps::pwrite(fd, data, bytes, offset);
    errno = ENOSPC;
    return std::ranges::count(calls, 'w') == 6 ? FileOps::pwrite(fd, data, bytes / 2, offset) : -1;
  }
  int ftruncate(int fd, off_t bytes) override {
    calls += 't';
    return FileOps::ftruncate(fd, bytes);
  }
  int fdatasync(int fd) override {
    calls += 's';
    return FileOps::fdatasync(fd);
  }
  std::string calls;
};

TEST_F(InterruptedOutputTest, ARecordThatFindsNoSpaceIsCutForGood) {
  FullDiskOps ops;
  EXPECT_EQ(testing::code_thrown([&] { (void)run_whole_job(options_, ops); }), "E-IO-NOSPACE");
  EXPECT_TRUE(ops.calls.ends_with("wwts")) << ops.calls;
  const std::string text = read_text(part());
  EXPECT_EQ(std::ranges::count(text, '\n'), 5);
  EXPECT_TRUE(text.ends_with("\n"));
}

TEST(ReadAt, GivesWhatAFileHasThatBecameShorter) {
  const TempFolder folder;
  write_text(folder / "file", "0123456789");
  FileOps& ops = system_file_ops();
  const FileDescriptor file(ops, ops.open((folder / "file").c_str(), O_RDONLY, 0));
  ASSERT_TRUE(file.valid());
  std::string bytes(8, '?');
  EXPECT_EQ(read_at(ops, file.get(), bytes.data(), bytes.size(), 6, "file"), 4U);
  EXPECT_EQ(bytes, "6789????");
  EXPECT_EQ(read_at(ops, file.get(), bytes.data(), bytes.size(), 10, "file"), 0U);
}

// Writes half of the n-th record, in whose middle the user asks twice.
class InterruptedOps : public FileOps {
 public:
  explicit InterruptedOps(int n) : n_(n) {}
  ssize_t pwrite(int fd, const void* data, std::size_t bytes, off_t offset) override {
    if (++calls_ < n_) return FileOps::pwrite(fd, data, bytes, offset);
    (void)FileOps::pwrite(fd, data, bytes / 2, offset);
    raise(SIGTERM);
    raise(SIGTERM);
    _exit(1);
  }

 private:
  int n_;
  int calls_ = 0;
};

TEST_F(InterruptedOutputTest, ASecondSignalCutsTheRecordThatIsBeingWritten) {
  for (const int n : {1, 2, 20}) {
    const pid_t child = fork();
    if (child == 0) {
      const StopSignals signals;
      const StopRequests requests;
      InterruptedOps ops(n);
      options_.files.overwrite = true;
      (void)run_whole_job(options_, ops);
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
    EXPECT_EQ(WTERMSIG(status), SIGTERM);
    const std::string text = read_text(part());
    EXPECT_EQ(std::ranges::count(text, '\n'), n - 1);
    EXPECT_TRUE(text.empty() || text.ends_with("\n")) << text;
  }
}

}  // namespace
}  // namespace triphase
