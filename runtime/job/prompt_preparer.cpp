#include "runtime/job/prompt_preparer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "runtime/job/score_preparer.h"

namespace triphase {

PromptPreparer::PromptPreparer(const ModelConfig& config, const Tokenizer* tokenizer,
                               const Limits& limits)
    : config_(&config), tokenizer_(tokenizer), limits_(limits) {
  if (limits.fixed_context.empty()) return;
  if (tokenizer != nullptr) {
    leading_ = leading_specials(*tokenizer);
  } else if (const std::optional<TokenId> first = bos()) {
    leading_ = {*first};
  }
}

void PromptPreparer::drop_leading(std::vector<TokenId>& tokens) const {
  const auto [own, left] =
      std::mismatch(tokens.begin(), tokens.end(), leading_.begin(), leading_.end());
  if (left == leading_.end()) tokens.erase(tokens.begin(), own);
}

std::optional<TokenId> PromptPreparer::bos() const {
  if (tokenizer_ != nullptr) return tokenizer_->bos();
  if (config_->bos_id) return *config_->bos_id;
  return std::nullopt;
}

std::optional<RecordError> PromptPreparer::prepare(Request& request) const {
  std::optional<RecordError> error = make_tokens(request);
  // The field that OpenAI records name.
  if (error && error->param.empty() && error->code != kLineNeedsMemory) {
    error->param = request.prompt_form == PromptForm::kChat ? "messages" : "prompt";
  }
  return error;
}

std::optional<RecordError> PromptPreparer::render_chat(Request& request) const {
  if (limits_.no_special) {
    return RecordError{"E-IN-CHAT",
                       "messages: a chat with --no-special, expected a prompt; the special tokens "
                       "of the chat template would be plain text"};
  }
  if (limits_.chats == nullptr) return no_chat_template();
  auto rendered = limits_.chats->render(request.text);
  if (auto* error = std::get_if<RecordError>(&rendered)) return std::move(*error);
  request.text = std::get<std::string>(std::move(rendered));
  return std::nullopt;
}

std::optional<RecordError> PromptPreparer::make_tokens(Request& request) const {
  if (request.prompt_form == PromptForm::kChat) {
    if (auto error = render_chat(request)) return error;
  }
  if (request.prompt_form != PromptForm::kTokens) {
    if (auto error = tokenize(request)) return error;
  } else if (auto error = check_ids(request)) {
    return error;
  }
  if (!limits_.fixed_context.empty()) {
    drop_leading(request.tokens);
    return fit(request);
  }
  if (request.tokens.empty()) {
    const std::optional<TokenId> first = bos();
    if (!first) {
      return RecordError{"E-IN-EMPTY",
                         "prompt: no tokens, expected at least one (this model has no "
                         "beginning-of-sequence token to start from)"};
    }
    request.tokens.push_back(*first);
  }
  return fit(request);
}

std::optional<RecordError> PromptPreparer::tokenize(Request& request) const {
  if (tokenizer_ == nullptr) {
    return RecordError{
        "E-TOK-NONE", "prompt: text, expected prompt_tokens; the model directory has no tokenizer"};
  }
  try {
    request.tokens = tokenizer_->encode(
        request.text, {.add_special = request.add_special, .parse_special = !limits_.no_special});
  } catch (const Error& error) {
    return RecordError{error.code(), error.message()};
  }
  return std::nullopt;
}

std::optional<RecordError> PromptPreparer::check_ids(const Request& request) const {
  for (std::size_t position = 0; position < request.tokens.size(); ++position) {
    const TokenId id = request.tokens[position];
    if (id < 0 || id >= config_->vocab_size) {
      return RecordError{"E-IN-TOKEN", fmt::format("token {} of the prompt: {}, expected 0 to {}",
                                                   position, id, config_->vocab_size - 1)};
    }
  }
  if (tokenizer_ == nullptr && !request.sampling.stop.empty()) {
    return RecordError{"E-TOK-NONE",
                       "stop: text, expected none; the model directory has no tokenizer", "stop"};
  }
  return std::nullopt;
}

std::optional<RecordError> PromptPreparer::fit(Request& request) const {
  const std::int64_t wanted = request.sampling.max_tokens;
  const auto fixed = std::ssize(limits_.fixed_context);
  const std::int64_t room = limits_.context - wanted - fixed;
  auto size = std::ssize(request.tokens);
  const std::string fixed_text =
      fixed == 0 ? std::string() : fmt::format(", {} of the fixed context", fixed);
  if (size > room) {
    if (limits_.truncate == Truncate::kNone || room < 1) {
      return RecordError{
          "E-IN-CONTEXT",
          fmt::format("prompt: {}{} and max_tokens {} make {}, expected at most {}{}; hint: {}",
                      tokens_text(size), fixed_text, wanted, size + fixed + wanted, limits_.context,
                      limits_.window.origin(),
                      limits_.window.hint(size + fixed + wanted,
                                          fixed + 2 > limits_.context ? "a shorter fixed context"
                                          : room < 1                  ? "lower max_tokens"
                                                     : "--truncate=left keeps the prompt's end"))};
    }
    if (limits_.truncate == Truncate::kRight) {
      request.tokens.resize(static_cast<std::size_t>(room));
    } else {
      // The beginning-of-sequence token stays in front: models are lost without it.
      const bool keep_first = fixed == 0 && room > 1 && bos() && request.tokens.front() == *bos();
      const std::int64_t keep = keep_first ? room - 1 : room;
      request.tokens.erase(request.tokens.begin() + (keep_first ? 1 : 0),
                           request.tokens.end() - keep);
    }
    size = room;
  }
  const std::int64_t needed = fixed + size + wanted - 1;
  if (needed > limits_.kv_tokens) {
    return RecordError{
        std::string(kLineNeedsMemory),
        fmt::format("prompt: {}{} and max_tokens {} need KV for {}, expected at most {} in the "
                    "memory budget; hint: {}",
                    tokens_text(size), fixed_text, wanted, needed, limits_.kv_tokens,
                    limits_.more_room)};
  }
  request.tokens.insert(request.tokens.begin(), limits_.fixed_context.begin(),
                        limits_.fixed_context.end());
  return std::nullopt;
}

}  // namespace triphase
