#pragma once

// One request while it runs: its tokens, the next token from the model's logits, and when it ends.
// Its completion is sampled token by token, or given and scored. Knows the tokenizer to look for
// stop strings and to make the text. Not thread safe; different sequences may be used from
// different threads.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/sampling.h"
#include "models/tokenizer/tokenizer.h"
#include "runtime/engine/answer_channels.h"
#include "runtime/job/request.h"

namespace triphase {

class Sequence {
 public:
  // `request.tokens` holds the prompt's ids (at least one). `eos_ids` and `tokenizer` must outlive
  // the sequence; tokenizer may be null (then no text and no stop strings).
  Sequence(Request request, std::uint64_t job_seed, std::span<const std::int32_t> eos_ids,
           const Tokenizer* tokenizer);

  explicit Sequence(ScoreTask task);

  // The prompt, then the completion so far, or all of a given completion.
  [[nodiscard]] std::span<const TokenId> tokens() const { return tokens_; }
  // Tokens computed in chunks; at least one.
  [[nodiscard]] std::int64_t prompt_tokens() const { return prompt_tokens_; }
  // Tokens known from the start that are computed.
  [[nodiscard]] std::int64_t given_tokens() const {
    return scored() ? max_kv_tokens() : prompt_tokens_;
  }
  // Leading tokens whose KV may come from another sequence: those of the prompt, since no logits
  // are wanted there.
  [[nodiscard]] std::span<const TokenId> shareable_tokens() const {
    const std::int64_t count = scored() ? std::min(first_scored_, prompt_tokens_) : prompt_tokens_;
    return tokens().first(static_cast<std::size_t>(count));
  }
  [[nodiscard]] std::int64_t completion_tokens() const {
    return std::ssize(tokens_) - prompt_tokens_;
  }
  // Tokens that a device draws, or has drawn without saying which: those of steps under way.
  [[nodiscard]] std::int64_t awaited_tokens() const { return awaited_; }
  void await_token() { ++awaited_; }
  // Whether the next draw depends on all tokens before it, and not on their number alone.
  [[nodiscard]] bool draws_by_history() const {
    return request_.sampling.repetition_penalty != 1.0;
  }
  // Longest the sequence can get: prompt and max_tokens, less the last token, whose KV nobody
  // needs.
  [[nodiscard]] std::int64_t max_kv_tokens() const;

  // Whether the logits of the token at `position` decide or score the next one.
  [[nodiscard]] bool wants_logits(std::int64_t position) const {
    const std::int64_t tokens = std::ssize(tokens_) + awaited_;
    return position + 1 >= (scored() ? first_scored_ : tokens);
  }
  // Whether its tokens are given. Then every position that wants logits gets its score().
  [[nodiscard]] bool scored() const { return first_scored_ > 0; }
  // What scores the token after `position`, from logits of the first `vocab` tokens, and its score.
  [[nodiscard]] SampleRow score_row(std::int64_t position, std::int64_t vocab) const;
  void score(std::int64_t position, const SampleResult& result);
  // Where the completion's scores have the token after `position`.
  [[nodiscard]] std::size_t score_index(std::int64_t position) const {
    return static_cast<std::size_t>(position + 1 - first_scored_);
  }

  // What draws the token after the awaited ones, from logits of the first `vocab` tokens; valid
  // until one is taken in.
  [[nodiscard]] SampleRow next_row(std::int64_t vocab) const;
  void sample_next(const SampleResult& result);

  // No token can follow; all scores are there.
  [[nodiscard]] bool finished() const { return finished_; }
  // The result; call once, at the end.
  [[nodiscard]] Completion take_completion();

  [[nodiscard]] const Request& request() const { return request_; }

 private:
  void note_logprob(const SampleResult& result);
  // Where the last token begins in text_: `settled` of it is new with that token, and `held`
  // characters before it were not settled.
  void note_offset(std::string_view settled, std::int64_t held);
  void divide_channels(Completion& completion) const;
  void accept(TokenId token);
  void follow_channels(TokenId token);
  void look_for_stop_strings(std::size_t search_from);
  // Whether the text would hold a stop string if it ended with the last token.
  [[nodiscard]] bool held_text_stops() const;
  void finish(FinishReason reason);

  Request request_;
  std::uint64_t key_ = 0;
  std::span<const std::int32_t> eos_ids_;
  std::vector<TokenId> tokens_;
  std::int64_t prompt_tokens_;
  std::int64_t awaited_ = 0;
  std::int64_t first_scored_ = 0;  // 0: the completion is sampled
  std::vector<TokenScore> scores_;
  const Tokenizer* tokenizer_ = nullptr;
  std::unique_ptr<TextDecoder> decoder_;
  std::string text_;
  std::size_t longest_stop_ = 0;
  std::optional<ChannelMarkers> markers_;  // of chats with stop strings
  bool in_header_ = false;                 // of a channel, where no stop string counts
  std::size_t stoppable_from_ = 0;         // of text_: behind the last header
  std::size_t cut_ = 0;                    // bytes that a stop string took off text_
  std::vector<TokenLogprob> logprobs_;
  std::int64_t text_chars_ = 0;  // of text_, where offsets are noted
  bool finished_ = false;
  FinishReason reason_ = FinishReason::kLength;
  std::optional<RecordError> error_;
};

}  // namespace triphase
