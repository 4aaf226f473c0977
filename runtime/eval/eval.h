#pragma once

// The tasks of `triphase eval`: data and a model in, one row of scores (or one per cell) out. Every
// score is a mean with its standard error. Scored tokens go through the decode path, one per step
// after a dense prefix, so that attention methods show (docs/eval.md defines each number).

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/samples.h"
#include "models/tokenizer/tokenizer.h"
#include "runtime/bench/report.h"
#include "runtime/engine/engine.h"
#include "runtime/job/score_preparer.h"

namespace triphase::eval {

using bench::Row;

// What a task works with. The pointers must outlive it.
struct Setup {
  const ModelConfig* config = nullptr;
  const Tokenizer* tokenizer = nullptr;
  Engine* engine = nullptr;
  std::int64_t window = 0;       // tokens of one sequence at most; fits context and KV memory
  std::int64_t prefill_len = 0;  // perplexity: dense tokens in front of the scored ones
  std::int64_t samples = 0;      // repetition, needle: per cell
  std::uint64_t seed = 0;
  std::uint64_t kv_token_bytes = 0;  // of one token, all layers
  std::string data_path;             // for messages
  std::function<void(std::uint64_t done, std::uint64_t total)> on_progress;
  // Where not null, a task adds for each row what its score is the mean of, in the data's order
  // (perplexity: nats per token of each window, times the perplexity; attention: nothing).
  std::vector<std::vector<double>>* row_samples = nullptr;

  void keep_samples(const std::vector<double>& of_row) const {
    if (row_samples != nullptr) row_samples->push_back(of_row);
  }
};

// exp(mean negative log-likelihood per token) over disjoint windows of `text`; also per word
// (separated by white space) and in bits per byte. The standard error is over windows.
[[nodiscard]] std::vector<Row> perplexity(const Setup& setup, std::string_view text);

struct RepetitionOptions {
  std::int64_t cue_len = 32;     // tokens of the context that are given again
  std::int64_t answer_len = 32;  // tokens that should follow
};
// SparQ Attention's text repetition (section 4): a chunk of `text`, then a passage out of it begun
// again; the score is the number of characters that greedy decoding continues verbatim.
[[nodiscard]] std::vector<Row> repetition(const Setup& setup, const RepetitionOptions& options,
                                          std::string_view text);

struct NeedleOptions {
  std::vector<std::int64_t> lengths;  // tokens of the whole prompt with its answer
  std::vector<double> depths;         // 0: at the beginning, 1: right before the question
  std::string needle = "The secret code of {name} is {value}.";
  std::string question =
      "Question: What is the secret code of {name}? Answer: The secret code of {name} is";
};
// A fact hidden in `text` and asked for at the end: share of answers that greedy decoding gives in
// full, for each length and depth, and over all.
[[nodiscard]] std::vector<Row> needle(const Setup& setup, const NeedleOptions& options,
                                      std::string_view text);

// Multiple choice by log-likelihood. Lines: {"context", "choices", "answer"} or, with the blank
// filled in the context, {"contexts", "continuation", "answer"}. Accuracy by the sum of
// log-probabilities, and by the sum divided by the choice's characters.
[[nodiscard]] std::vector<Row> choice(const Setup& setup, const ScorePreparer& preparer,
                                      std::string_view jsonl);
// Tokens of KV that the longest of those choices needs.
[[nodiscard]] std::int64_t longest_choice(const Setup& setup, const ScorePreparer& preparer,
                                          std::string_view jsonl);

// Shared by the tasks.
[[nodiscard]] std::vector<Completion> score_tasks(const Setup& setup, std::vector<ScoreTask> tasks);
// Mean KV bytes that one decoded token reads under dense attention, over the tasks' decode steps.
[[nodiscard]] double dense_bytes_per_token(const Setup& setup, const std::vector<ScoreTask>& tasks);
// The text in disjoint windows of setup.window tokens, each begun with what stands in front of a
// text; setup.prefill_len tokens are dense, and scores begin one after them, since a dense row
// predicts the next. At least one, else E-IN-EVAL.
[[nodiscard]] std::vector<ScoreTask> text_windows(const Setup& setup, std::string_view text);
// The text as plain tokens, and what stands in front of every window (BOS).
[[nodiscard]] std::vector<TokenId> text_tokens(const Setup& setup, std::string_view text);

}  // namespace triphase::eval
