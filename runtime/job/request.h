#pragma once

// One request and its result, as the engine and the job's files exchange them. Plain values.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace triphase {

struct SamplingParams {
  std::int64_t max_tokens = 16;
  double temperature = 0.0;  // below 1e-5: greedy
  double top_p = 1.0;        // (0, 1]
  std::int64_t top_k = 0;    // 0: off
  double min_p = 0.0;        // [0, 1]: drop tokens below min_p times the best probability
  double repetition_penalty = 1.0;
  std::vector<std::string> stop;      // text that ends the completion; not part of it
  std::optional<std::uint64_t> seed;  // nothing: made from the job's seed and the index
  std::int64_t logprobs = -1;         // -1 off, else number of alternatives per token (0..20)
  bool ignore_eos = false;

  bool operator==(const SamplingParams&) const = default;
};

// kChat: messages, which the model's template makes the text of.
enum class PromptForm : std::uint8_t { kText, kTokens, kChat };
enum class LineForm : std::uint8_t { kSimple, kOpenAi };
// What a request of `triphase score` asks for: the log-likelihood of a continuation after a
// context, or of a whole text in consecutive windows. kNone: the request is completed instead.
enum class ScoreForm : std::uint8_t { kNone, kContinuation, kRolling };

// One of the prompts of an OpenAI line that has a list of them.
struct ListedPrompt {
  std::string text;             // kText
  std::vector<TokenId> tokens;  // kTokens
};

// The line of the input that a request comes from and a record answers.
struct LineIdentity {
  std::uint64_t index = 0;  // 0-based line of the input file, blank lines counted
  LineForm line_form = LineForm::kSimple;
  std::optional<std::string> id;  // "id" or "custom_id"; numbers are kept as written
  bool id_is_number = false;
};

struct Request : LineIdentity {
  // Which prompt of the line it is, and of how many: an OpenAI line may have a list of them.
  std::uint32_t part = 0;
  std::uint32_t parts = 1;
  std::string served_model;  // OpenAI "body.model", echoed in the record; empty: none
  PromptForm prompt_form = PromptForm::kText;
  std::string text;         // kText; kChat: JSON of the template's variables
  bool add_special = true;  // of a text: with what the tokenizer puts around a text, such as BOS
  std::vector<TokenId> tokens;  // kTokens; else filled by the tokenizer
  SamplingParams sampling;
  // The line's prompts where it has a list; PromptReader makes requests of them.
  std::vector<ListedPrompt> listed;
  std::vector<std::string> ignored_fields;  // of the line, that nothing reads

  // Scoring: text and tokens above are the context, or with kRolling all that is scored.
  ScoreForm score_form = ScoreForm::kNone;
  std::string continuation;  // in the form of the context
  std::vector<TokenId> continuation_tokens;
};

// Given tokens whose log-probabilities are asked for. They are computed like a completion that is
// already known: a prompt in chunks, the rest one token per step, as attention methods see it.
struct ScoreTask {
  std::uint64_t index = 0;          // the caller's, given back with the result
  std::vector<TokenId> tokens;      // at least 2; the last one is scored but never computed
  std::int64_t first_scored = 1;    // tokens from here to the end get a score; at least 1
  std::int64_t prefill_tokens = 0;  // leading tokens computed in chunks; more than there are: all

  // Tokens that go through the model, and the KV the task needs.
  [[nodiscard]] std::int64_t computed_tokens() const { return std::ssize(tokens) - 1; }
};

enum class FinishReason : std::uint8_t { kStop, kLength };

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0F;                        // natural log, of the unmodified distribution
  std::vector<std::pair<TokenId, float>> top;  // best first; ties to the lower id
  // For OpenAI records, where there is a tokenizer: the bytes of `token`, then of each of `top`.
  std::vector<std::string> pieces = {};
  std::int64_t text_offset = 0;  // characters of the completion's text before the token
};

struct TokenScore {
  double logprob = 0.0;  // natural log, over the model's whole vocabulary
  TokenId best = 0;      // likeliest token there; ties to the lower id
};

// What a request of `triphase score` gets.
struct RequestScore {
  double logprob = 0.0;                // natural log, sum over the scored tokens
  bool greedy = true;                  // each scored token is the likeliest at its place
  std::vector<double> token_logprobs;  // of Completion::tokens, when asked for
};

// Why a request has no completion: `code` is an E-code.
struct RecordError {
  std::string code;
  std::string message;
  std::string param = {};  // the line's field that is at fault; empty: none, or several
};

// The code of a request that needs more KV memory than there is.
inline constexpr std::string_view kLineNeedsMemory = "E-MEM-LINE";

struct Completion {
  std::uint64_t index = 0;
  std::uint32_t part = 0;                // Request::part
  std::optional<std::string> text;       // left out when the model has no tokenizer
  std::optional<std::string> reasoning;  // of an answer in channels; text is then the rest
  std::vector<TokenId> tokens;           // without the end-of-sequence token
  FinishReason finish_reason = FinishReason::kLength;
  std::int64_t prompt_tokens = 0;
  std::vector<TokenLogprob> logprobs;
  std::vector<TokenScore> scores;     // of a ScoreTask, from its first scored token on
  std::optional<RequestScore> score;  // set: tokens are the scored ones, prompt_tokens the context
  std::optional<RecordError> error;   // set: the fields above are empty
};

}  // namespace triphase
