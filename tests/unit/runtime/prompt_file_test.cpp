// The prompt file as a stream of lines (bad-inputs P1-P5, P14-P16, P23, P25, X9).

#include "runtime/job/prompt_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "job_fixture.h"
#include "runtime/signals.h"

namespace triphase {
namespace {

using testing::code_thrown;
using testing::TempFolder;
using testing::write_text;

class PromptFileTest : public ::testing::Test {
 protected:
  RunOptions with(std::string_view text) {
    write_text(folder_ / "in.jsonl", text);
    return testing::job_options(folder_);
  }
  std::vector<PromptLine> read_all(const RunOptions& options) {
    const PromptFileFacts facts = examine_prompt_file(options);
    PromptReader reader(options, &facts);
    std::vector<PromptLine> lines;
    while (std::optional<PromptLine> line = reader.next()) lines.push_back(std::move(*line));
    if (facts.rereadable) {
      EXPECT_EQ(facts.requests, lines.size());
      EXPECT_EQ(facts.bytes, reader.bytes_read());
    }
    return lines;
  }
  static std::uint64_t index_of(const PromptLine& line) {
    return std::visit([](const auto& any) { return any.index; }, line);
  }
  static std::string code_of(const PromptLine& line) {
    const BadLine* bad = std::get_if<BadLine>(&line);
    return bad == nullptr ? "" : bad->error.code;
  }
  TempFolder folder_;
};

TEST_F(PromptFileTest, BlankLinesCountAndCrLfAndTheLastLineAreFine) {
  const auto lines = read_all(with("{\"prompt\":\"a\"}\r\n\n  \t\n{\"prompt\":\"b\"}"));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(std::get<Request>(lines[0]).text, "a");
  EXPECT_EQ(index_of(lines[1]), 3U);
  EXPECT_EQ(std::get<Request>(lines[1]).text, "b");
}

TEST_F(PromptFileTest, KnowsWhetherThereAreChats) {
  const auto chats = [&](const std::string& text) { return examine_prompt_file(with(text)).chats; };
  EXPECT_TRUE(chats("{\"prompt\":\"a\"}\n{\"messages\":[{\"role\":\"user\"}]}\n"));
  EXPECT_FALSE(chats("{\"prompt\":\"\\\"messages\\\": []\"}\n"));
  EXPECT_FALSE(chats("{\"prompt\":\"a\",\"other\":{\"messages\":[{\"role\":\"u\"}]}}\n"));
  EXPECT_FALSE(chats("{\"messages\":3}\n")) << "a bad line needs no template";
}

TEST_F(PromptFileTest, AListOfPromptsComesInParts) {
  const RunOptions options =
      with("{\"body\":{\"prompt\":[\"a\",\"b\"],\"more\":1}}\n{\"body\":{\"prompt\":[[5]]}}\n");
  PromptReader reader(options);
  const auto next = [&] { return std::get<Request>(*reader.next()); };
  const Request first = next();
  const Request second = next();
  const Request last = next();
  EXPECT_EQ(first.text + second.text, "ab");
  EXPECT_EQ((std::pair(first.part, first.parts)), (std::pair(0U, 2U)));
  EXPECT_EQ((std::pair(second.part, second.parts)), (std::pair(1U, 2U)));
  EXPECT_EQ(second.index, 0U);
  EXPECT_EQ(last.tokens, std::vector<TokenId>{5});
  EXPECT_EQ((std::pair(last.part, last.parts)), (std::pair(0U, 1U)));
  EXPECT_FALSE(reader.next().has_value());
  EXPECT_EQ(reader.ignored_fields().at("body.more"), 1U);
}

TEST_F(PromptFileTest, EmptyFileHasNoLines) {
  EXPECT_TRUE(read_all(with("")).empty());
  EXPECT_EQ(examine_prompt_file(with("")).lines, 0U);
}

TEST_F(PromptFileTest, ByteOrderMarks) {
  const auto lines = read_all(with("\xEF\xBB\xBF{\"prompt\":\"a\"}\n"));
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(code_of(lines[0]), "");
  EXPECT_TRUE(read_all(with("\xEF\xBB\xBF")).empty());
  for (const std::string_view text :
       {std::string_view("\xFF\xFE{\0", 4), std::string_view("\xFE\xFF\0{", 4),
        std::string_view("{\0\"\0", 4)}) {
    const RunOptions options = with(text);
    EXPECT_EQ(code_thrown([&] { (void)examine_prompt_file(options); }), "E-IN-UTF16");
  }
}

TEST_F(PromptFileTest, CompressedFilesAreRefusedAsAWhole) {
  for (const std::string_view text :
       {std::string_view("\x1F\x8B\x08\0\n", 5), std::string_view("\x28\xB5\x2F\xFD rest\n"),
        std::string_view("\xFD\x37zXZ\0", 6), std::string_view("BZh91AY&SY"),
        std::string_view("PK\x03\x04")}) {
    const RunOptions options = with(text);
    EXPECT_EQ(code_thrown([&] { (void)examine_prompt_file(options); }), "E-IN-OPEN") << text;
  }
  EXPECT_EQ(read_all(with("\x1F\n")).size(), 1U) << "one byte of it is a bad line";
}

TEST_F(PromptFileTest, LongLinesAreSkippedWithBoundedMemory) {
  RunOptions options = with("");
  options.reading.max_line_bytes = 1024;
  std::string exact = "{\"prompt\":\"";
  exact += std::string(1024 - exact.size() - 2, 'x') + "\"}";
  ASSERT_EQ(exact.size(), 1024U);
  std::string text = exact + "\n" + exact + " \n" + std::string(std::size_t{40} << 20, 'y') + "\n" +
                     exact + "\r\n" + std::string(5000, 'z');
  write_text(folder_ / "in.jsonl", text);
  struct rusage before = {};
  getrusage(RUSAGE_SELF, &before);
  const auto lines = read_all(options);
  struct rusage after = {};
  getrusage(RUSAGE_SELF, &after);
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(code_of(lines[0]), "");
  EXPECT_EQ(code_of(lines[1]), "E-IN-LONGLINE");
  EXPECT_EQ(code_of(lines[2]), "E-IN-LONGLINE");
  EXPECT_EQ(code_of(lines[3]), "");
  EXPECT_EQ(code_of(lines[4]), "E-IN-LONGLINE");
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 20 * 1024) << "KiB more at the peak";
}

TEST_F(PromptFileTest, DuplicateIdsNameTheFirstLine) {
  const std::string text =
      "{\"id\":\"a\",\"prompt\":\"1\"}\n{\"id\":7,\"prompt\":\"2\"}\n{\"id\":\"7\",\"prompt\":"
      "\"3\"}\n"
      "{\"id\":\"a\",\"prompt\":\"4\"}\n{\"id\":7,\"prompt\":\"5\"}\n{\"prompt\":\"6\"}\n"
      "{\"prompt\":\"7\"}\n";
  RunOptions options = with(text);
  auto lines = read_all(options);
  ASSERT_EQ(lines.size(), 7U);
  EXPECT_EQ(code_of(lines[2]), "") << "the string 7 is not the number 7";
  ASSERT_EQ(code_of(lines[3]), "E-IN-DUPLICATE");
  EXPECT_NE(std::get<BadLine>(lines[3]).error.message.find("line 1"), std::string::npos);
  EXPECT_EQ(code_of(lines[4]), "E-IN-DUPLICATE");
  EXPECT_EQ(code_of(lines[6]), "");
  options.reading.allow_duplicate_ids = true;
  for (const PromptLine& line : read_all(options)) EXPECT_EQ(code_of(line), "");
}

TEST_F(PromptFileTest, ShardsPartitionTheLinesAndSeeEachOthersIds) {
  std::string text;
  for (int line = 0; line < 30; ++line) {
    text += line % 7 == 6
                ? "\n"
                : "{\"id\":\"" + std::to_string(line == 29 ? 0 : line) + "\",\"prompt\":\"p\"}\n";
  }
  RunOptions options = with(text);
  const auto all = read_all(options);
  std::map<std::uint64_t, std::string> joined;
  for (std::uint64_t shard = 0; shard < 4; ++shard) {
    options.files.shard = {shard, 4, "test"};
    for (const PromptLine& line : read_all(options)) {
      EXPECT_EQ(index_of(line) % 4, shard);
      joined[index_of(line)] = code_of(line);
    }
  }
  ASSERT_EQ(joined.size(), all.size());
  for (const PromptLine& line : all) EXPECT_EQ(joined.at(index_of(line)), code_of(line));
  EXPECT_EQ(joined.at(29), "E-IN-DUPLICATE") << "its first line is in another shard";
}

TEST_F(PromptFileTest, BrokenLinesTakeTheFormOfTheFile) {
  const auto lines =
      read_all(with("{\n{\"custom_id\":\"a\",\"body\":{\"prompt\":\"x\"}}\nnonsense\n"));
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(std::get<BadLine>(lines[0]).line_form, LineForm::kOpenAi);
  EXPECT_EQ(std::get<BadLine>(lines[2]).line_form, LineForm::kOpenAi);
}

TEST_F(PromptFileTest, StrictRefusesBeforeAnythingRuns) {
  RunOptions options = with("{\"prompt\":\"a\"}\n\n{\"prompt\":5}\n");
  options.reading.strict = true;
  std::string message;
  EXPECT_EQ(code_thrown([&] { (void)examine_prompt_file(options); }, &message), "E-IN-STRICT");
  EXPECT_NE(message.find("in.jsonl:3: "), std::string::npos) << message;
  options = with("{\"prompt\":\"a\"}\n");
  options.reading.strict = true;
  EXPECT_EQ(examine_prompt_file(options).requests, 1U);
}

TEST_F(PromptFileTest, MissingFilesDirectoriesAndDevicesAreRefused) {
  for (const std::string& path : {folder_ / "missing", folder_.path(), std::string("/dev/null")}) {
    RunOptions options = with("");
    options.files.prompts = path;
    EXPECT_EQ(code_thrown([&] { (void)examine_prompt_file(options); }), "E-IN-OPEN") << path;
  }
}

TEST_F(PromptFileTest, AFileThatChangesUnderwayIsNoticed) {
  std::string text;
  for (int line = 0; line < 1000; ++line) text += "{\"prompt\":\"" + std::to_string(line) + "\"}\n";
  const RunOptions options = with(text);
  const PromptFileFacts facts = examine_prompt_file(options);
  PromptReader reader(options, &facts);
  text[text.find("500")] = '9';
  write_text(options.files.prompts, text);
  // At the line itself, which never becomes a request.
  std::uint64_t lines = 0;
  std::string message;
  EXPECT_EQ(code_thrown(
                [&] {
                  PromptReader again(options, &facts);
                  while (again.next()) ++lines;
                },
                &message),
            "E-IO-CHANGED");
  EXPECT_EQ(lines, 500U);
  EXPECT_NE(message.find(":501: "), std::string::npos) << message;
}

TEST_F(PromptFileTest, LinesAreKnownByTheirTextAndTheirPlace) {
  RunOptions options = with("{\"prompt\":\"a\"}\n \n{\"prompt\":\"a\"}\r\n{\"prompt\":\"b\"}");
  const PromptFileFacts facts = examine_prompt_file(options);
  ASSERT_EQ(facts.line_hashes->size(), 4U);
  const std::vector<std::uint64_t>& hashes = *facts.line_hashes;
  EXPECT_EQ(hashes[1], 0U) << "blank";
  EXPECT_EQ(facts.requests, 3U);
  EXPECT_NE(hashes[0], 0U);
  EXPECT_NE(hashes[0], hashes[2]) << "equal texts on two lines";
  options.files.shard = {1, 2, "test"};
  const PromptFileFacts shard = examine_prompt_file(options);
  EXPECT_EQ(*shard.line_hashes, (std::vector<std::uint64_t>{hashes[1], hashes[3]}));
}

TEST_F(PromptFileTest, AFileThatShrinksUnderwayIsAReadError) {
  std::string text;
  while (text.size() < (std::size_t{3} << 20)) text += "{\"prompt\":\"a\"}\n";
  const RunOptions options = with(text);
  PromptReader reader(options);
  ASSERT_TRUE(reader.next().has_value());
  ASSERT_EQ(truncate(options.files.prompts.c_str(), 1 << 20), 0);
  EXPECT_EQ(code_thrown([&] {
              while (reader.next()) {
              }
            }),
            "E-IO-READ");
}

TEST_F(PromptFileTest, PipesAreReadOnceAndNeverExamined) {
  RunOptions options = with("");
  options.files.prompts = folder_ / "pipe";
  ASSERT_EQ(mkfifo(options.files.prompts.c_str(), 0600), 0);
  const PromptFileFacts facts = examine_prompt_file(options);
  EXPECT_FALSE(facts.rereadable);
  EXPECT_TRUE(facts.hash.empty());
  std::thread writer(
      [&] { write_text(options.files.prompts, "{\"prompt\":\"a\"}\n\n{\"prompt\":\"b\"}"); });
  PromptReader reader(options, &facts);
  EXPECT_EQ(index_of(reader.next().value()), 0U);
  EXPECT_EQ(index_of(reader.next().value()), 2U);
  EXPECT_FALSE(reader.next().has_value());
  writer.join();
}

// Its size is 0, whatever it says.
TEST_F(PromptFileTest, AFileOfProcIsReadLikeAPipe) {
  RunOptions options = job_options(folder_);
  options.files.prompts = "/proc/self/status";
  EXPECT_FALSE(examine_prompt_file(options).rereadable);
  PromptReader reader(options);
  EXPECT_TRUE(reader.next().has_value());
}

TEST_F(PromptFileTest, WaitingForAPipeEndsWhenAskedToStop) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  RunOptions options = with("");
  options.files.prompts = "/proc/self/fd/" + std::to_string(ends[0]);
  ASSERT_EQ(write(ends[1], "{\"prompt\":\"a\"}\n{\"pro", 21), 21);
  PromptReader reader(options);
  EXPECT_TRUE(reader.next().has_value());
  EXPECT_TRUE(reader.would_block());
  const StopSignals signals;
  const StopRequests requests;
  std::thread stopper([] { raise(SIGTERM); });
  EXPECT_FALSE(reader.next().has_value()) << "half a line is nobody's request";
  stopper.join();
  close(ends[0]);
  close(ends[1]);
}

TEST(SeenIds, FindsEveryDuplicateAmongMany) {
  SeenIds seen;
  for (std::uint64_t index = 0; index < 200000; ++index) {
    ASSERT_FALSE(seen.insert("id " + std::to_string(index), index).has_value());
  }
  for (std::uint64_t index = 0; index < 200000; index += 17) {
    ASSERT_EQ(seen.insert("id " + std::to_string(index), 999999), index);
  }
  EXPECT_EQ(seen.size(), 200000U);
}

}  // namespace
}  // namespace triphase
