#include "runtime/job/score_line.h"

#include <fmt/format.h>

#include "runtime/job/line_fields.h"

namespace triphase {
namespace {

// A text under `name`, or token ids under `name`_tokens: exactly one.
struct Part {
  const Json* value = nullptr;
  bool tokens = false;
};

Part find_part(LineObject& line, std::string_view name) {
  const std::string tokens_name = fmt::format("{}_tokens", name);
  const Json* text = line.member(name);
  const Json* tokens = line.member(tokens_name);
  if (text != nullptr && tokens != nullptr) {
    fail_line("E-IN-FIELD", name, fmt::format("{} beside it", tokens_name), "only one of them");
  }
  if (tokens != nullptr) return {tokens, true};
  return {text, false};
}

void read_part(const Part& part, std::string_view name, std::string& text,
               std::vector<TokenId>& tokens) {
  if (!part.tokens) {
    if (part.value->string() == nullptr) {
      fail_line("E-IN-TYPE", name, part.value->describe(), "a string");
    }
    text = *part.value->string();
    return;
  }
  const std::string field = fmt::format("{}_tokens", name);
  const JsonArray* items = part.value->array();
  if (items == nullptr) {
    fail_line("E-IN-TYPE", field, part.value->describe(), "an array of token ids");
  }
  tokens = read_token_ids(*items, field);
}

}  // namespace

void read_score_line(const Json& json, Request& request) {
  LineObject line(json);
  read_line_id(line, "id", /*numbers=*/true, request);
  const Part whole = find_part(line, "text");
  const Part context = find_part(line, "context");
  const Part continuation = find_part(line, "continuation");
  if (whole.value != nullptr) {
    if (context.value != nullptr || continuation.value != nullptr) {
      fail_line("E-IN-FIELD", "text", "context or continuation beside it",
                "either text, or context and continuation");
    }
    request.score_form = ScoreForm::kRolling;
    request.prompt_form = whole.tokens ? PromptForm::kTokens : PromptForm::kText;
    read_part(whole, "text", request.text, request.tokens);
    return;
  }
  if (context.value == nullptr || continuation.value == nullptr) {
    fail_line("E-IN-FIELD", continuation.value == nullptr ? "continuation" : "context", "missing",
              "context and continuation, or text (each as a string, or as token ids under "
              "context_tokens, continuation_tokens, text_tokens)");
  }
  if (context.tokens != continuation.tokens) {
    fail_line("E-IN-FIELD", "continuation", "text and token ids mixed",
              "context and continuation of the same kind");
  }
  request.score_form = ScoreForm::kContinuation;
  request.prompt_form = context.tokens ? PromptForm::kTokens : PromptForm::kText;
  read_part(context, "context", request.text, request.tokens);
  read_part(continuation, "continuation", request.continuation, request.continuation_tokens);
}

}  // namespace triphase
