#pragma once

// One line while it runs: its tokens, how far they are computed, and when it ends. Knows the
// tokenizer only to look for stop strings and to make the text. Not thread safe; different
// sequences may be used from different threads.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/tokenizer/tokenizer.h"
#include "runtime/engine/sampler.h"
#include "runtime/job/request.h"

namespace triphase {

class Sequence {
 public:
  // `request.tokens` holds the prompt's ids (at least one). `eos_ids` and `tokenizer` must outlive
  // the sequence; tokenizer may be null (then no text and no stop strings).
  Sequence(Request request, std::uint64_t job_seed, std::span<const std::int32_t> eos_ids,
           const Tokenizer* tokenizer);

  // Prompt, then completion so far.
  [[nodiscard]] std::span<const TokenId> tokens() const { return tokens_; }
  [[nodiscard]] std::int64_t prompt_tokens() const { return prompt_tokens_; }
  [[nodiscard]] std::int64_t completion_tokens() const {
    return static_cast<std::int64_t>(tokens_.size()) - prompt_tokens_;
  }
  // Longest the sequence can get: prompt and max_tokens, less the last token, whose KV nobody
  // needs.
  [[nodiscard]] std::int64_t max_kv_tokens() const;

  // Chooses the next token from its logits and takes it in.
  void sample_next(std::span<const float> logits, SamplerScratch& scratch);

  [[nodiscard]] bool finished() const { return finished_; }
  // The result; call once, when finished.
  [[nodiscard]] Completion take_completion();

  [[nodiscard]] const Request& request() const { return request_; }

 private:
  void accept(TokenId token);
  void look_for_stop_strings(std::size_t search_from);
  void finish(FinishReason reason);

  Request request_;
  std::uint64_t key_;
  std::span<const std::int32_t> eos_ids_;
  std::vector<TokenId> tokens_;
  std::int64_t prompt_tokens_;
  std::optional<StreamDecoder> decoder_;
  std::string text_;
  std::size_t longest_stop_ = 0;
  std::vector<TokenLogprob> logprobs_;
  bool finished_ = false;
  FinishReason reason_ = FinishReason::kLength;
  std::optional<RecordError> error_;
};

}  // namespace triphase
