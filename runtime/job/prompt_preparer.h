#pragma once

// From a parsed request to token ids the model can run: rendering chats, tokenizing, range checks,
// a fixed context in front, truncation, and the fit into context and memory. Immutable; thread safe
// without chats.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "models/config/model_config.h"
#include "models/tokenizer/tokenizer.h"
#include "runtime/job/chat_renderer.h"
#include "runtime/job/line_length.h"
#include "runtime/job/request.h"
#include "runtime/options/run_options.h"

namespace triphase {

class PromptPreparer {
 public:
  struct Limits {
    std::int64_t context = 0;    // tokens of prompt and completion together
    std::int64_t kv_tokens = 0;  // what the KV budget holds of a single sequence
    Truncate truncate = Truncate::kNone;
    bool no_special = false;
    // The fixed context's tokens, put in front of every request's own; must outlive the preparer.
    // The request's tokens then lack what the tokenizer puts in front of a text (BOS).
    std::span<const TokenId> fixed_context = {};
    ChatRenderer* chats = nullptr;  // null: chats get an error; must outlive the preparer
    std::string more_room = "raise --device-memory";  // how kv_tokens may become more
    WindowLimit window = {};                          // where it makes `context`
  };

  // `tokenizer` may be null: then requests with text get an error.
  PromptPreparer(const ModelConfig& config, const Tokenizer* tokenizer, const Limits& limits);

  // Fills request.tokens, of a chat request.text before. Returns why the request cannot run, or
  // nothing.
  [[nodiscard]] std::optional<RecordError> prepare(Request& request) const;

 private:
  [[nodiscard]] std::optional<RecordError> make_tokens(Request& request) const;
  [[nodiscard]] std::optional<RecordError> render_chat(Request& request) const;
  [[nodiscard]] std::optional<RecordError> tokenize(Request& request) const;
  [[nodiscard]] std::optional<RecordError> check_ids(const Request& request) const;
  [[nodiscard]] std::optional<RecordError> fit(Request& request) const;
  // Drops the tokens that the tokenizer puts in front of a text, where the request has them.
  void drop_leading(std::vector<TokenId>& tokens) const;
  [[nodiscard]] std::optional<TokenId> bos() const;

  const ModelConfig* config_;
  const Tokenizer* tokenizer_;
  Limits limits_;
  std::vector<TokenId> leading_;  // with a fixed context: what a text begins with
};

}  // namespace triphase
