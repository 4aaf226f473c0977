#pragma once

// What the tests of the job share: a folder of their own, prompt files, an engine without a model
// whose completions are a function of the request, and a run of the whole job around it.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/job/job.h"
#include "runtime/job/manifest.h"
#include "runtime/job/output_file.h"
#include "runtime/job/prompt_file.h"

namespace triphase::testing {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "triphase-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void write_text(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline bool exists(const std::string& path) { return std::filesystem::exists(path); }

// Completions depend on the request alone; several requests run at once and finish out of order
// (every third step finishes the newest, else the oldest).
class FakeEngine : public CompletionEngine {
 public:
  explicit FakeEngine(std::size_t room = 4) : room_(room) {}

  [[nodiscard]] bool has_room() const override { return running_.size() < room_; }
  void submit(Request request) override { running_.push_back(std::move(request)); }
  [[nodiscard]] std::uint64_t in_flight() const override { return running_.size(); }
  [[nodiscard]] std::uint64_t running() const override { return running_.size(); }
  [[nodiscard]] std::vector<Completion> step() override {
    ++steps_;
    if (on_step) on_step(steps_);
    Request request;
    if (steps_ % 3 == 0) {
      request = std::move(running_.back());
      running_.pop_back();
    } else {
      request = std::move(running_.front());
      running_.pop_front();
    }
    return {complete(request)};
  }
  [[nodiscard]] std::uint64_t prompt_tokens() const override { return steps_; }
  [[nodiscard]] std::uint64_t generated_tokens() const override { return steps_; }

  std::function<void(std::uint64_t step)> on_step;
  bool fail_marked = true;            // a prompt with "bad" in it gets an error record
  std::string code = "E-IN-CONTEXT";  // of that record

 private:
  Completion complete(const Request& request) const {
    Completion completion;
    completion.index = request.index;
    completion.part = request.part;
    if (fail_marked && request.text.find("bad") != std::string::npos) {
      completion.error = RecordError{code, "prompt: too long"};
      return completion;
    }
    completion.text = "<" + request.text + ">";
    for (std::size_t token = 0; token < request.text.size(); ++token) {
      completion.tokens.push_back(static_cast<TokenId>(request.index + token));
    }
    completion.prompt_tokens = static_cast<std::int64_t>(request.text.size());
    return completion;
  }

  std::size_t room_;
  std::deque<Request> running_;
  std::uint64_t steps_ = 0;
};

// `count` prompts of different lengths, with blank lines and bad ones among them.
inline std::string sample_prompts(int count) {
  std::string text;
  for (int line = 0; line < count; ++line) {
    if (line % 11 == 7) {
      text += "\n";
      continue;
    }
    if (line % 13 == 5) {
      text += "{\"id\": \"broken " + std::to_string(line) + "\"\n";
      continue;
    }
    text += "{\"id\": \"line " + std::to_string(line) + "\", \"prompt\": \"" +
            std::string(static_cast<std::size_t>(line % 17), 'x') +
            (line % 19 == 3 ? "bad" : "good") + "\"}\n";
  }
  return text;
}

inline RunOptions job_options(const TempFolder& folder, const std::string& output = "out.jsonl") {
  RunOptions options;
  options.files.prompts = folder / "in.jsonl";
  options.files.output = folder / output;
  options.looking.progress = ProgressMode::kOff;
  options.files.sync_seconds = 3600;  // tests that mean it sync by themselves
  return options;
}

inline Manifest test_manifest(const RunOptions& options, const PromptFileFacts& facts) {
  const ModelIdentity model{.path = "model",
                            .fingerprint = "xxh3:0123",
                            .tokenizer = "xxh3:4567",
                            .generation_config = "xxh3:89ab",
                            .weights = "xxh3:cdef",
                            .chat_template = "xxh3:f012"};
  Manifest manifest = make_manifest(options, facts, model, "fp32", 0);
  manifest.kernels = "scalar";
  return manifest;
}
inline Manifest test_manifest(const RunOptions& options) {
  return test_manifest(options, examine_prompt_file(options));
}

// The whole of `triphase run` but for the model. Returns what the program would.
inline int run_whole_job(const RunOptions& options, FileOps& ops = system_file_ops(),
                         const std::function<void(FakeEngine&)>& prepare = {}) {
  const PromptFileFacts facts = examine_prompt_file(options);
  OutputFile output(options, facts, test_manifest(options, facts), ops);
  if (output.already_complete()) return exit_code_of(output.counts());
  output.begin();
  PromptReader prompts(options, &facts);
  FakeEngine engine;
  if (prepare) prepare(engine);
  Log log({.verbosity = -1, .format = LogFormat::kText, .file = ""});
  Progress progress(log, ProgressMode::kOff);
  if (run_job(prompts, output, engine, progress, {facts.requests}) == JobEnd::kStopped) return 130;
  output.commit();
  return exit_code_of(output.counts());
}

// The code of the Error that `body` throws; "" when it throws none.
inline std::string code_thrown(const std::function<void()>& body, std::string* message = nullptr) {
  try {
    body();
  } catch (const Error& error) {
    if (message != nullptr) *message = error.message();
    return error.code();
  }
  return "";
}

}  // namespace triphase::testing
