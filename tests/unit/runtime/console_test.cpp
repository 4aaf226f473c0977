// What a person sees: log, progress, signals.

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>

#include "base/json.h"
#include "job_fixture.h"
#include "runtime/log.h"
#include "runtime/progress.h"
#include "runtime/signals.h"
#include "runtime/watchdog.h"

namespace triphase {
namespace {

using testing::read_text;
using testing::TempFolder;
using testing::write_text;

class ConsoleTest : public ::testing::Test {
 protected:
  void SetUp() override { stream_ = std::fopen((folder_ / "stderr").c_str(), "w"); }
  void TearDown() override { std::fclose(stream_); }
  std::string shown() { return read_text(folder_ / "stderr"); }

  TempFolder folder_;
  std::FILE* stream_ = nullptr;
};

TEST_F(ConsoleTest, LevelsFollowVerbosity) {
  for (const int verbosity : {-1, 0, 1}) {
    Log log({.verbosity = verbosity, .format = LogFormat::kText, .file = folder_ / "log"}, stream_);
    log.debug("detail");
    log.info("fact");
    log.warning("careful");
  }
  const std::string expected =
      "triphase: warning: careful\n"
      "triphase: fact\ntriphase: warning: careful\n"
      "triphase: debug: detail\ntriphase: fact\ntriphase: warning: careful\n";
  EXPECT_EQ(shown(), expected);
  EXPECT_EQ(read_text(folder_ / "log"), expected);
}

TEST_F(ConsoleTest, TextCannotSteerTheTerminal) {
  Log log(
      {.verbosity = 0, .format = LogFormat::kText, .file = folder_ / "log", .private_file = true},
      stream_);
  log.info("a\x1b[31m\nb \"\xC3\xA9\" \\ \xC2\x9B");
  EXPECT_EQ(shown(), "triphase: a\\x1b[31m\\nb \"\xC3\xA9\" \\ \\xc2\\x9b\n");
  EXPECT_EQ(read_text(folder_ / "log"), shown());
  EXPECT_EQ(std::filesystem::status(folder_ / "log").permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_F(ConsoleTest, APipeThatNobodyReadsIsNoLogFile) {
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  LogSettings settings;
  settings.file = pipe;
  EXPECT_EQ(testing::code_thrown([&] { const Log log(settings, stream_); }), "E-IO-OPEN");
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  Log(settings, stream_).info("fact");
  char text[32] = {};
  EXPECT_EQ(read(reader, text, sizeof(text)), 15);
  EXPECT_STREQ(text, "triphase: fact\n");
  close(reader);
}

TEST_F(ConsoleTest, ErrorsHaveOneFormForPeopleAndOneForPrograms) {
  Error error(ErrorRole::kInput, "E-IN-UTF8", "prompt");
  error.file("p\n.jsonl").line(17).byte(42).found("\x1b[2J").expected("UTF-8").hint("h");
  Log(LogSettings{}, stream_).error(error);
  EXPECT_EQ(shown(),
            "triphase: error: p\\n.jsonl:17:42: prompt: \\x1b[2J, expected UTF-8; hint: h "
            "[E-IN-UTF8]\n");
  Log(LogSettings{.verbosity = 0, .format = LogFormat::kJson, .file = ""}, stream_).error(error);
  const std::string text = shown();
  JsonProblem problem;
  const auto json = parse_json(text.substr(text.find('\n') + 1), problem);
  ASSERT_TRUE(json.has_value()) << text;
  EXPECT_EQ(*json->find("code")->string(), "E-IN-UTF8");
  EXPECT_EQ(json->find("line")->integer(), 17);
  EXPECT_EQ(*json->find("message")->string(), error.message());
}

TEST_F(ConsoleTest, ProgressIsAPlainLineEveryTenSeconds) {
  double now = 100.0;
  Log log({}, stream_);
  Progress progress(log, ProgressMode::kAuto, [&] { return now; });
  progress.begin_phase("generating");
  ProgressState state;
  state.total = 100;
  for (int step = 0; step < 300; ++step) {
    now += 0.1;
    state.done = static_cast<std::uint64_t>(step) / 6;
    state.fraction = static_cast<double>(state.done) / 100.0;
    state.failed = 1;
    state.generated_tokens = static_cast<std::uint64_t>(step) * 2;
    progress.update(state);
  }
  const std::string text = shown();
  EXPECT_GE(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 4);
  EXPECT_NE(text.find("generating: 33/100 lines (1 failed)"), std::string::npos) << text;
  EXPECT_NE(text.find("33/100 lines (1 failed), ETA 41s, 0 running, 19.9 tok/s"), std::string::npos)
      << text;
}

// The last number of a line cut anywhere would be a wrong one.
TEST_F(ConsoleTest, ANarrowTerminalShowsWholeItems) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(grantpt(terminal) + unlockpt(terminal), 0);
  const struct winsize size = {.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  std::FILE* stream = std::fopen(ptsname(terminal), "w");
  ASSERT_NE(stream, nullptr);
  ASSERT_EQ(ioctl(fileno(stream), TIOCSWINSZ, &size), 0);
  ASSERT_EQ(setenv("TERM", "xterm", /*overwrite=*/1), 0);
  const std::string expected =
      "\r\x1b[Kgenerating: 123456/500000 lines (1234 failed), ETA 50m00s, 256 running";
  std::string text;
  {
    double now = 0.0;
    Log log({}, stream);
    Progress progress(log, ProgressMode::kAuto, [&] { return now; });
    progress.begin_phase("generating");
    now = 1000.0;
    progress.update({.done = 123456,
                     .failed = 1234,
                     .total = 500000,
                     .running = 256,
                     .generated_tokens = 1234567,
                     .fraction = 0.25});
    // A terminal gives what has come through it so far.
    struct pollfd readable = {.fd = terminal, .events = POLLIN, .revents = 0};
    while (!text.ends_with(expected) && poll(&readable, 1, 5000) > 0) {
      char seen[512];
      const ssize_t bytes = read(terminal, seen, sizeof(seen));
      if (bytes <= 0) break;
      text.append(seen, static_cast<std::size_t>(bytes));
    }
  }
  EXPECT_TRUE(text.ends_with(expected)) << text;
  std::fclose(stream);
  close(terminal);
}

TEST_F(ConsoleTest, PartsHaveOneLineEachAndTheEtaOfTheWhole) {
  double now = 100.0;
  Log log({}, stream_);
  Progress progress(log, ProgressMode::kAuto, [&] { return now; });
  for (int part = 0; part < 3; ++part) {
    progress.begin_part(fmt::format("cell {} of 3 (swa)", part + 1), part / 3.0, (part + 1) / 3.0);
    progress.begin_phase("loading model");
    now += 4.0;
    progress.begin_phase("perplexity");
    now += 8.0;
    progress.update_items(1, 2);
    now += 8.0;
  }
  progress.end_parts();
  progress.begin_phase("writing output");
  EXPECT_EQ(shown(),
            "triphase: cell 1 of 3 (swa)\n"
            "triphase: cell 1 of 3 (swa): perplexity: 1/2, ETA 1m00s\n"
            "triphase: cell 2 of 3 (swa), ETA 40s\n"
            "triphase: cell 2 of 3 (swa): perplexity: 1/2, ETA 32s\n"
            "triphase: cell 3 of 3 (swa), ETA 20s\n"
            "triphase: cell 3 of 3 (swa): perplexity: 1/2, ETA 10s\n"
            "triphase: writing output\n");
}

TEST_F(ConsoleTest, ShareOfATimeAndTokensOfScores) {
  double now = 0.0;
  Log log({}, stream_);
  Progress progress(log, ProgressMode::kAuto, [&] { return now; });
  progress.begin_phase("measuring");
  now = 15.0;
  progress.update_share(0.25);
  progress.begin_phase("scoring");
  now = 25.0;
  progress.update({.done = 1,
                   .total = 4,
                   .running = 2,
                   .prompt_tokens = 500,
                   .scores = true,
                   .fraction = 0.25});
  EXPECT_EQ(shown(),
            "triphase: measuring\ntriphase: measuring: 25 %, ETA 45s\ntriphase: scoring\n"
            "triphase: scoring: 1/4 lines, ETA 30s, 2 running, 50.0 tok/s, 500 tokens computed\n");
}

TEST_F(ConsoleTest, AQuietVoiceGoesThroughTheLogBehindIt) {
  Log log({.verbosity = 0, .format = LogFormat::kText, .file = folder_ / "log"}, stream_);
  Log quiet(log, /*verbosity=*/-1);
  quiet.info("fact");
  quiet.warning("careful");
  EXPECT_EQ(shown(), "triphase: warning: careful\n");
  log.show_warnings_once();
  log.warning("line 2 failed");
  quiet.warning("line 2 failed");
  quiet.warning("line 3 failed");
  log.info("fact");
  log.info("fact");
  EXPECT_EQ(shown(),
            "triphase: warning: careful\ntriphase: warning: line 2 failed\n"
            "triphase: warning: line 3 failed\ntriphase: fact\ntriphase: fact\n");
  EXPECT_EQ(read_text(folder_ / "log"), shown());
}

TEST_F(ConsoleTest, ProgressAsJson) {
  double now = 0.0;
  Log log({.verbosity = -1, .format = LogFormat::kText, .file = ""}, stream_);
  Progress progress(log, ProgressMode::kJson, [&] { return now; });
  progress.begin_phase("generating");
  now = 20.0;
  progress.update({});
  now = 40.0;
  progress.update_bytes(1 << 20, 4 << 20);
  std::istringstream lines(shown());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    JsonProblem problem;
    EXPECT_TRUE(parse_json(line, problem).has_value()) << line;
  }
  EXPECT_EQ(count, 3);
}

TEST(Format, DurationsAndBytes) {
  EXPECT_EQ(format_duration(12.4), "12s");
  EXPECT_EQ(format_duration(185), "3m05s");
  EXPECT_EQ(format_duration(3720), "1h02m");
  EXPECT_EQ(format_duration(-1), "0s");
  EXPECT_EQ(format_bytes(1023), "1023 bytes");
  EXPECT_EQ(format_bytes(std::uint64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(format_bytes(UINT64_MAX), "16.0 EiB");
}

// Runs `body` in a child and returns how it ended.
int status_of(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(42);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(Signals, TheFirstAsksAndTheDeathIsTrue) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    const int status = status_of([number] {
      const StopSignals signals;
      const StopRequests requests;
      if (stop_requested()) _exit(1);
      raise(number);
      if (stop_signal() != number) _exit(2);
      die_by_signal(number);
    });
    ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
    EXPECT_EQ(WTERMSIG(status), number);
  }
}

TEST(Signals, TheFirstEndsTheProcessWhereNobodyPolls) {
  for (const bool after_a_job : {false, true}) {
    const int status = status_of([after_a_job] {
      const StopSignals signals;
      if (after_a_job) const StopRequests requests;
      raise(SIGTERM);
    });
    ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
    EXPECT_EQ(WTERMSIG(status), SIGTERM);
  }
}

TEST(Signals, TheSecondEndsAtOnceWithTheFileCut) {
  const TempFolder folder;
  const std::string path = folder / "part";
  write_text(path, "whole record\nhalf a rec");
  const int status = status_of([&] {
    const StopSignals signals;
    const StopRequests requests;
    const int fd = system_file_ops().open(path.c_str(), O_RDWR, 0);
    set_signal_cut(fd, 13);
    raise(SIGINT);
    raise(SIGINT);
  });
  ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);
  EXPECT_EQ(WTERMSIG(status), SIGINT);
  EXPECT_EQ(read_text(path), "whole record\n");
}

TEST(Signals, ClosedPipesAndFileLimitsAreErrorsNotDeaths) {
  const int status = status_of([] {
    const StopSignals signals;
    int ends[2];
    if (pipe(ends) != 0) _exit(1);
    close(ends[0]);
    if (write(ends[1], "x", 1) != -1 || errno != EPIPE) _exit(2);
  });
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

TEST_F(ConsoleTest, TheWatchdogEndsAHangingStepAndNothingElse) {
  Log log({}, stream_);
  constexpr double kLimit = 0.2;
  std::atomic<int> hangs{0};
  const auto step = [&](Watchdog& watchdog) {
    const auto begin = std::chrono::steady_clock::now();
    {
      const Watchdog::Guard guard(&watchdog);
      usleep(5000);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  // Steps that a busy machine made as long as a hang tell nothing: others follow.
  double longest = kLimit;
  while (longest >= kLimit) {
    hangs = 0;
    longest = 0.0;
    Watchdog watchdog(kLimit, log, "go on", [&] { ++hangs; });
    for (int count = 0; count < 20; ++count) longest = std::max(longest, step(watchdog));
    usleep(300'000);  // between steps nothing is watched
  }
  EXPECT_EQ(hangs, 0);
  Watchdog watchdog(kLimit, log, "go on", [&] { ++hangs; });
  {
    const Watchdog::Guard guard(&watchdog);
    while (hangs == 0) usleep(10'000);
  }
  EXPECT_EQ(hangs, 1);
  EXPECT_NE(shown().find("go on; --watchdog"), std::string::npos) << shown();
  EXPECT_NE(shown().find("[E-DEV-HANG]"), std::string::npos);
}

TEST_F(ConsoleTest, TheWatchdogForgivesAProcessThatWasStopped) {
  Log log({}, stream_);
  constexpr double kLimit = 1.0;
  constexpr double kStopped = 3.0;
  std::atomic<int> hangs{0};
  double seconds = 0.0;
  // A process that a busy machine kept from running beside its stop tells nothing: another follows.
  do {
    hangs = 0;
    const auto begin = std::chrono::steady_clock::now();
    Watchdog watchdog(kLimit, log, "go on", [&] { ++hangs; });
    const Watchdog::Guard guard(&watchdog);
    const pid_t stopped = getpid();
    const pid_t other = fork();
    if (other == 0) {
      kill(stopped, SIGSTOP);
      usleep(static_cast<useconds_t>(kStopped * 1e6));
      kill(stopped, SIGCONT);
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(other, &status, 0), other);
    usleep(100'000);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  } while (hangs > 0 && seconds > kStopped + 0.9 * kLimit);
  EXPECT_EQ(hangs, 0);
}

TEST(Job, AStopKeepsWhatIsFinishedAndResumes) {
  const TempFolder folder;
  write_text(folder / "in.jsonl", testing::sample_prompts(60));
  const RunOptions reference = testing::job_options(folder, "reference.jsonl");
  ASSERT_EQ(testing::run_whole_job(reference), 1);
  const RunOptions options = testing::job_options(folder);
  std::optional<StopSignals> signals(std::in_place);
  EXPECT_EQ(testing::run_whole_job(options, system_file_ops(),
                                   [](testing::FakeEngine& engine) {
                                     engine.on_step = [](std::uint64_t step) {
                                       if (step == 10) raise(SIGTERM);
                                     };
                                   }),
            130);
  EXPECT_EQ(stop_signal(), SIGTERM);
  signals.reset();
  const std::string part = read_text(options.files.output + ".part");
  EXPECT_GE(std::count(part.begin(), part.end(), '\n'), 10) << "the step under way was finished";
  EXPECT_EQ(testing::run_whole_job(options), 1);
  EXPECT_EQ(read_text(options.files.output), read_text(reference.files.output));
}

// Two lines at a time, a token of each in a step; more wait for a place.
class TwoAtATime final : public CompletionEngine {
 public:
  [[nodiscard]] bool has_room() const override { return lines_.size() < 6; }
  void submit(Request request) override { lines_.push_back({std::move(request), {}}); }
  [[nodiscard]] std::uint64_t in_flight() const override { return lines_.size(); }
  [[nodiscard]] std::uint64_t running() const override {
    return std::min<std::size_t>(lines_.size(), 2);
  }
  [[nodiscard]] std::vector<Completion> step() override {
    std::vector<Completion> finished;
    for (std::uint64_t left = running(); left > 0; --left) {
      auto [request, completion] = std::move(lines_.front());
      lines_.pop_front();
      completion.tokens.push_back(7);
      ++generated_;
      completion.index = request.index;
      if (static_cast<std::int64_t>(completion.tokens.size()) == request.sampling.max_tokens) {
        finished.push_back(std::move(completion));
      } else {
        lines_.insert(lines_.begin() + (static_cast<std::ptrdiff_t>(left) - 1),
                      {std::move(request), std::move(completion)});
      }
    }
    return finished;
  }
  [[nodiscard]] std::uint64_t prompt_tokens() const override { return 0; }
  [[nodiscard]] std::uint64_t generated_tokens() const override { return generated_; }

 private:
  std::deque<std::pair<Request, Completion>> lines_;
  std::uint64_t generated_ = 0;
};

TEST_F(ConsoleTest, ARunKnowsItsEtaBeforeTheFirstLineEnds) {
  std::string lines;
  for (int line = 0; line < 8; ++line) lines += "{\"prompt_tokens\":[3],\"max_tokens\":10}\n";
  write_text(folder_ / "in.jsonl", lines);
  const RunOptions options = testing::job_options(folder_);
  const PromptFileFacts facts = examine_prompt_file(options);
  OutputFile output(options, facts, testing::test_manifest(options));
  output.begin();
  PromptReader prompts(options, &facts);
  TwoAtATime engine;
  double now = 0.0;
  Log log({}, stream_);
  Progress progress(log, ProgressMode::kPlain, [&] { return now += 20.0; });
  progress.begin_phase("generating");
  EXPECT_EQ(run_job(prompts, output, engine, progress, {facts.requests}), JobEnd::kAllLines);
  // Each step takes 20 s, and there are 40.
  EXPECT_NE(shown().find("0/8 lines, ETA 13m00s, 2 running, 0.1 tok/s, 2 tokens generated"),
            std::string::npos)
      << shown();
  EXPECT_NE(shown().find("2/8 lines, ETA 8m20s, 2 running, 0.1 tok/s, 30 tokens generated"),
            std::string::npos)
      << shown();
}

// Lines that need more memory than the first engine has are the second one's, each with its record.
TEST_F(ConsoleTest, LongerLinesAreLeftForAnotherEngine) {
  write_text(folder_ / "in.jsonl",
             "{\"prompt\":\"a\"}\n{\"prompt\":\"bad one\"}\n{}\n"
             "{\"prompt\":\"b\"}\n{\"prompt\":\"another bad one\"}\n");
  const RunOptions options = testing::job_options(folder_);
  const PromptFileFacts facts = examine_prompt_file(options);
  OutputFile output(options, facts, testing::test_manifest(options));
  output.begin();
  double now = 0.0;
  Log log({}, stream_);
  Progress progress(log, ProgressMode::kPlain, [&] { return now += 20.0; });
  const auto run = [&](const std::string& code, bool fails, bool leaves) {
    progress.begin_phase("generating");
    PromptReader prompts(options, &facts);
    testing::FakeEngine engine;
    engine.fail_marked = fails;
    engine.code = code;
    return run_job(prompts, output, engine, progress,
                   {.total_requests = facts.requests, .leaves_longer_lines = leaves});
  };
  EXPECT_EQ(run("E-MEM-LINE", true, true), JobEnd::kLongerLinesLeft);
  EXPECT_EQ(output.counts().succeeded, 2U);
  EXPECT_EQ(output.counts().failed_by_code.count("E-MEM-LINE"), 0U);
  EXPECT_FALSE(output.finished(1) || output.finished(4));
  EXPECT_TRUE(output.finished(2));  // a bad line is nobody else's
  EXPECT_EQ(run("", false, false), JobEnd::kAllLines);
  output.commit();
  const std::string text = testing::read_text(folder_ / "out.jsonl");
  EXPECT_NE(text.find("<another bad one>"), std::string::npos) << text;
  EXPECT_EQ(std::ranges::count(text, '\n'), 5);
}

// Of the last engine, and of lines that fail for another reason, none is left.
TEST_F(ConsoleTest, OtherLinesThatFailAreNotLeft) {
  for (const auto& [code, leaves] : {std::pair("E-MEM-LINE", false), {"E-IN-CONTEXT", true}}) {
    write_text(folder_ / "in.jsonl", "{\"prompt\":\"bad\"}\n");
    RunOptions options = testing::job_options(folder_, std::string(code) + ".jsonl");
    const PromptFileFacts facts = examine_prompt_file(options);
    OutputFile output(options, facts, testing::test_manifest(options));
    output.begin();
    PromptReader prompts(options, &facts);
    testing::FakeEngine engine;
    engine.code = code;
    Log log({}, stream_);
    Progress progress(log, ProgressMode::kOff);
    EXPECT_EQ(run_job(prompts, output, engine, progress,
                      {.total_requests = facts.requests, .leaves_longer_lines = leaves}),
              JobEnd::kAllLines);
    EXPECT_EQ(output.counts().failed_by_code.at(code), 1U);
  }
}

}  // namespace
}  // namespace triphase
