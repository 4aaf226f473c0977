// What no output may be, for every command (bad-inputs L13, R11, section 5.2).

#include "runtime/job/command_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "job_fixture.h"

namespace triphase {
namespace {

using testing::code_thrown;
using testing::TempFolder;
using testing::write_text;

class CommandFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write_text(folder_ / "in", "input");
    std::filesystem::create_directory(folder_ / "model");
    write_text(folder_ / "model/config.json", "{}");
    write_text(folder_ / "model/notes.txt", "mine");
  }

  CommandFiles with_inputs() const {
    CommandFiles files;
    files.add_input("--prompts", folder_ / "in");
    files.add_input("--model", folder_ / "model");
    files.add_input("--plan", folder_ / "missing");
    return files;
  }
  std::string refusal(const std::string& path, OutputKind kind = OutputKind::kFile) {
    CommandFiles files = with_inputs();
    files.add_output("--output", path, kind);
    message_.clear();
    return code_thrown([&] { files.check(); }, &message_);
  }

  TempFolder folder_;
  std::string message_;
};

TEST_F(CommandFilesTest, InputsAreKnownByWhateverName) {
  EXPECT_EQ(refusal(folder_ / "new"), "");
  EXPECT_EQ(refusal(folder_ / "in"), "E-CLI-OUTPUT");
  EXPECT_NE(message_.find("the same file as --prompts"), std::string::npos) << message_;
  EXPECT_EQ(refusal(folder_ / "model/../in"), "E-CLI-OUTPUT");
  std::filesystem::create_hard_link(folder_ / "in", folder_ / "hard");
  EXPECT_EQ(refusal(folder_ / "hard"), "E-CLI-OUTPUT");
  EXPECT_EQ(refusal(folder_ / "hard", OutputKind::kStream), "E-CLI-OUTPUT");
  EXPECT_EQ(refusal(folder_ / "model/config.json"), "E-CLI-OUTPUT");
  EXPECT_EQ(refusal(folder_ / "model/notes.txt"), "") << "no file of the model";
}

TEST_F(CommandFilesTest, OnlyStreamsMayBeSpecial) {
  ASSERT_EQ(mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  std::filesystem::create_symlink("new", folder_ / "dangling");
  std::filesystem::create_symlink("model/notes.txt", folder_ / "link");
  for (const char* place : {"fifo", "dangling", "link", "model", "model/"}) {
    EXPECT_EQ(refusal(folder_ / place), "E-CLI-OUTPUT") << place;
  }
  for (const char* place : {"dangling", "link", "model"}) {
    EXPECT_EQ(refusal(folder_ / place, OutputKind::kStream), "E-CLI-OUTPUT") << place;
  }
  EXPECT_EQ(refusal("/dev/full"), "E-CLI-OUTPUT");
  EXPECT_EQ(refusal("/dev/full", OutputKind::kStream), "");
  EXPECT_EQ(refusal(folder_ / "fifo", OutputKind::kStream), "");
  EXPECT_EQ(refusal(folder_ / "none/new"), "E-IO-OPEN");
  EXPECT_EQ(refusal(folder_ / "in/new"), "E-IO-OPEN");
}

TEST_F(CommandFilesTest, OutputsAreDifferentFiles) {
  const auto refusal_of = [&](const std::string& first, const std::string& second) {
    CommandFiles files = with_inputs();
    files.add_output("--trace", first);
    files.add_output("--output", folder_ / "out");
    files.add_companions("--output", {second});
    return code_thrown([&] { files.check(); }, &message_);
  };
  EXPECT_EQ(refusal_of(folder_ / "trace", folder_ / "out.part"), "");
  EXPECT_EQ(refusal_of(folder_ / "out.part", folder_ / "out.part"), "E-CLI-OUTPUT");
  EXPECT_EQ(refusal_of(folder_ / "model/../out.part", folder_ / "out.part"), "E-CLI-OUTPUT");
  EXPECT_EQ(refusal_of(folder_ / "trace", folder_ / "in"), "E-CLI-OUTPUT");
  EXPECT_NE(message_.find("a companion of --output"), std::string::npos) << message_;
  write_text(folder_ / "a", "");
  std::filesystem::create_hard_link(folder_ / "a", folder_ / "b");
  EXPECT_EQ(refusal_of(folder_ / "a", folder_ / "b"), "E-CLI-OUTPUT");
}

// Whoever forgets the check cannot replace a special file either.
TEST_F(CommandFilesTest, OpeningAnOutputChecksItsTarget) {
  std::filesystem::create_symlink("in", folder_ / "link");
  ASSERT_EQ(mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  FileOps& ops = system_file_ops();
  for (const std::string& path : {folder_ / "link", folder_ / "fifo"}) {
    EXPECT_EQ(code_thrown([&] { write_file_atomically(ops, path, "x", 0666); }), "E-CLI-OUTPUT");
    EXPECT_EQ(code_thrown([&] { (void)open_output(ops, path, O_WRONLY, 0666); }), "E-CLI-OUTPUT");
  }
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link"));
  EXPECT_EQ(testing::read_text(folder_ / "in"), "input");
}

TEST_F(CommandFilesTest, TemporaryFilesAreNobodyElses) {
  FileOps& ops = system_file_ops();
  write_text(folder_ / "out.tmp", "mine");
  {
    TemporaryFile first(ops, folder_ / "out", 0666);
    TemporaryFile second(ops, folder_ / "out", 0666);
    first.write("first");
    second.write("second");
    second.put_in_place();
    EXPECT_EQ(testing::read_text(folder_ / "out"), "second");
    first.put_in_place();
    EXPECT_EQ(testing::read_text(folder_ / "out"), "first");
    TemporaryFile given_up(ops, folder_ / "out", 0666);
  }
  EXPECT_EQ(testing::read_text(folder_ / "out.tmp"), "mine");
  const auto files = std::filesystem::directory_iterator(folder_.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 4) << "in, model, out and out.tmp";
}

}  // namespace
}  // namespace triphase
