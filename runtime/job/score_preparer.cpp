#include "runtime/job/score_preparer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace triphase {

std::vector<TokenId> leading_specials(const Tokenizer& tokenizer) {
  const std::vector<TokenId> with = tokenizer.encode("a", {.add_special = true});
  const std::vector<TokenId> without = tokenizer.encode("a", {.add_special = false});
  const auto text = std::search(with.begin(), with.end(), without.begin(), without.end());
  return {with.begin(), text};
}

ScorePreparer::ScorePreparer(const ModelConfig& config, const Tokenizer* tokenizer,
                             const Limits& limits)
    : config_(&config), tokenizer_(tokenizer), limits_(limits) {
  if (tokenizer != nullptr) {
    prefix_ = leading_specials(*tokenizer);
    start_ = tokenizer->bos();
  }
  if (!start_ && config.bos_id) start_ = static_cast<TokenId>(*config.bos_id);
  if (!start_ && !config.eos_ids.empty()) start_ = static_cast<TokenId>(config.eos_ids.front());
}

std::optional<RecordError> ScorePreparer::prepare(const Request& request,
                                                  PreparedScore& prepared) const {
  Tokens context;
  if (auto error = tokenize(request, context, prepared.scored)) return error;
  if (prepared.scored.empty()) {
    return RecordError{"E-IN-EMPTY",
                       request.score_form == ScoreForm::kRolling
                           ? "text: no tokens, expected at least one"
                           : "continuation: no tokens of its own after the context, expected at "
                             "least one"};
  }
  if (context.empty()) {
    if (!start_) {
      return RecordError{"E-IN-EMPTY",
                         "context: no tokens, expected at least one (this model has no "
                         "beginning-of-sequence or end-of-sequence token to start from)"};
    }
    context.push_back(*start_);
  }
  const std::int64_t longest = std::min(limits_.context, limits_.kv_tokens);
  if (request.score_form == ScoreForm::kRolling) {
    if (longest < limits_.context && std::ssize(prepared.scored) > longest) {
      return RecordError{
          std::string(kLineNeedsMemory),
          fmt::format("text: windows of {} tokens, expected at most {} in the memory budget; hint: "
                      "{}",
                      limits_.context, limits_.kv_tokens, limits_.more_room)};
    }
    prepared.context_tokens = 1;
    add_windows(context.back(), prepared);
    return std::nullopt;
  }
  return one_task(context, prepared);
}

std::optional<RecordError> ScorePreparer::tokenize(const Request& request, Tokens& context,
                                                   Tokens& scored) const {
  const bool rolling = request.score_form == ScoreForm::kRolling;
  if (request.prompt_form == PromptForm::kTokens) {
    if (rolling) {
      scored = request.tokens;
      return check_ids(scored, "text_tokens");
    }
    context = request.tokens;
    scored = request.continuation_tokens;
    if (auto error = check_ids(context, "context_tokens")) return error;
    return check_ids(scored, "continuation_tokens");
  }
  if (tokenizer_ == nullptr) {
    return RecordError{
        "E-TOK-NONE",
        fmt::format("{}: text, expected {}; the model directory has no tokenizer",
                    rolling ? "text" : "context",
                    rolling ? "text_tokens" : "context_tokens and continuation_tokens")};
  }
  const EncodeOptions plain = {.add_special = false, .parse_special = !limits_.no_special};
  try {
    if (rolling) {
      scored = tokenizer_->encode(request.text, plain);
      return std::nullopt;
    }
    // Blanks at the end of the context belong to the first token of the continuation.
    const std::size_t end = request.text.find_last_not_of(" \t\n\r\v\f");
    const std::string stripped = end == std::string::npos ? "" : request.text.substr(0, end + 1);
    if (request.text.empty()) {
      scored = tokenizer_->encode(request.continuation, plain);
      return std::nullopt;
    }
    context = tokenizer_->encode(stripped, plain);
    scored = tokenizer_->encode(request.text + request.continuation, plain);
    scored.erase(scored.begin(), scored.begin() + static_cast<std::ptrdiff_t>(
                                                      std::min(context.size(), scored.size())));
    context.insert(context.begin(), prefix_.begin(), prefix_.end());
  } catch (const Error& error) {
    return RecordError{error.code(), error.message()};
  }
  return std::nullopt;
}

std::optional<RecordError> ScorePreparer::check_ids(const Tokens& tokens,
                                                    std::string_view field) const {
  for (std::size_t position = 0; position < tokens.size(); ++position) {
    const TokenId id = tokens[position];
    if (id < 0 || id >= config_->vocab_size) {
      return RecordError{"E-IN-TOKEN", fmt::format("{}[{}]: {}, expected 0 to {}", field, position,
                                                   id, config_->vocab_size - 1)};
    }
  }
  return std::nullopt;
}

std::optional<RecordError> ScorePreparer::one_task(const Tokens& context,
                                                   PreparedScore& prepared) const {
  const auto continuation = std::ssize(prepared.scored);
  auto kept = std::ssize(context);
  const std::int64_t too_many = kept + continuation - 1 - limits_.context;
  if (too_many > 0) {
    if (limits_.truncate == Truncate::kNone || too_many >= kept) {
      return RecordError{
          "E-IN-CONTEXT",
          fmt::format("context: {} and {} of the continuation, expected at most {} together{};"
                      " hint: {}",
                      tokens_text(kept), continuation, limits_.context + 1, limits_.window.origin(),
                      limits_.window.hint(
                          kept + continuation - 1,
                          too_many >= kept ? "the continuation alone is too long; score it as text"
                                           : "--truncate=left keeps the context's end"))};
    }
    kept -= too_many;
  }
  if (kept + continuation - 1 > limits_.kv_tokens) {
    return RecordError{
        std::string(kLineNeedsMemory),
        fmt::format("context: {} tokens with the continuation, expected at most {} in the memory "
                    "budget; hint: {}",
                    kept + continuation - 1, limits_.kv_tokens, limits_.more_room)};
  }
  ScoreTask task;
  task.tokens.assign(context.end() - kept, context.end());
  task.tokens.insert(task.tokens.end(), prepared.scored.begin(), prepared.scored.end());
  task.first_scored = kept;
  task.prefill_tokens = prefilled(task);
  prepared.context_tokens = kept;
  prepared.tasks.push_back(std::move(task));
  return std::nullopt;
}

// Windows as long as the model's context allows, and every token scored once: the first window
// starts after `first`, the others with the last token of the window before. What the last one
// leaves free is filled with more of the text before it.
void ScorePreparer::add_windows(TokenId first, PreparedScore& prepared) const {
  const auto length = static_cast<std::size_t>(limits_.context);
  for (std::size_t begin = 0; begin < prepared.scored.size(); begin += length) {
    const std::size_t end = std::min(begin + length, prepared.scored.size());
    ScoreTask task;
    if (begin == 0) task.tokens.push_back(first);
    const std::size_t start = begin == 0 ? 0 : end - length - 1;
    task.first_scored = begin == 0 ? 1 : static_cast<std::int64_t>(begin - start);
    task.tokens.insert(task.tokens.end(),
                       prepared.scored.begin() + static_cast<std::ptrdiff_t>(start),
                       prepared.scored.begin() + static_cast<std::ptrdiff_t>(end));
    task.prefill_tokens = prefilled(task);
    prepared.tasks.push_back(std::move(task));
  }
}

}  // namespace triphase
