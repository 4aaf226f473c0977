// One line of a request file of `triphase score`. Byte 0 chooses what happens to invalid UTF-8.

#include "runtime/engine/sampling_limits.h"
#include "runtime/job/output_record.h"
#include "runtime/job/prompt_line.h"
#include "tests/fuzz/fuzz_support.h"

namespace triphase {
namespace {

// Whatever a line holds, its record is one line that resume recognises.
void check_record(const std::string& record, bool failed) {
  for (const char c : record) require(static_cast<unsigned char>(c) >= 0x20);
  const std::optional<RecordFacts> facts = read_record(record);
  require(facts.has_value() && facts->index == 7 && facts->error_code.empty() != failed);
}

void check_part(PromptForm form, const std::string& text, const std::vector<TokenId>& tokens,
                std::size_t line_bytes) {
  require(form == PromptForm::kText ? tokens.empty() : text.empty());
  require(text.size() <= line_bytes * 3);
  for (const TokenId token : tokens) require(token >= 0);
}

void fuzz(std::uint8_t choice, std::string_view line) {
  PromptLineRules rules;
  rules.job = JobKind::kScore;
  rules.replace_invalid_utf8 = (choice & 1) != 0;
  const PromptLine parsed = parse_prompt_line(line, 7, rules);
  if (const auto* bad = std::get_if<BadLine>(&parsed)) {
    require(bad->error.code.starts_with("E-IN-") && bad->error.message.size() < 4000);
    require(!bad->id || bad->id->size() <= kIdBytesLimit);
    require(bad->line_form == LineForm::kSimple);
    check_record(record_line(*bad), true);
    return;
  }
  const auto& request = std::get<Request>(parsed);
  require(request.score_form != ScoreForm::kNone);
  check_part(request.prompt_form, request.text, request.tokens, line.size());
  if (request.score_form == ScoreForm::kContinuation) {
    check_part(request.prompt_form, request.continuation, request.continuation_tokens, line.size());
  }
  Completion completion;
  completion.index = 7;
  completion.tokens = request.tokens;
  completion.score = RequestScore{-1.0, true, {}};
  completion.score->token_logprobs.assign(request.tokens.size(), -0.5);
  check_record(record_line(request, completion), false);
}

}  // namespace
}  // namespace triphase

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  triphase::fuzz(data[0], triphase::as_text(data + 1, size - 1));
  return 0;
}
