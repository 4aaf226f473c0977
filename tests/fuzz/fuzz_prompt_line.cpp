// One line of a prompt file. Byte 0 chooses the format and what happens to invalid UTF-8.

#include "runtime/engine/sampling_limits.h"
#include "runtime/job/output_record.h"
#include "runtime/job/prompt_line.h"
#include "tests/fuzz/fuzz_support.h"

namespace triphase {
namespace {

void check_sampling(const SamplingParams& sampling) {
  require(sampling.max_tokens >= 1 && sampling.max_tokens <= kMaxTokensLimit);
  require(sampling.temperature >= 0.0 && sampling.temperature <= kTemperatureLimit);
  require(sampling.top_p > 0.0 && sampling.top_p <= 1.0);
  require(sampling.top_k >= 0 && sampling.top_k <= kTopKLimit);
  require(sampling.min_p >= 0.0 && sampling.min_p <= 1.0);
  require(sampling.repetition_penalty > 0.0);
  require(sampling.logprobs >= -1 && sampling.logprobs <= kLogprobsLimit);
  require(sampling.stop.size() <= kStopStringsLimit);
  for (const std::string& stop : sampling.stop) require(!stop.empty());
}

// Whatever a line holds, its record is one line that resume recognises.
void check_record(const std::string& record, bool failed) {
  for (const char c : record) require(static_cast<unsigned char>(c) >= 0x20);
  const std::optional<RecordFacts> facts = read_record(record);
  require(facts.has_value() && facts->index == 7 && facts->error_code.empty() != failed);
}

void fuzz(std::uint8_t choice, std::string_view line) {
  PromptLineRules rules;
  rules.format = static_cast<InputFormat>(choice & 3);
  rules.replace_invalid_utf8 = (choice & 4) != 0;
  rules.fallback_form = (choice & 8) != 0 ? LineForm::kOpenAi : LineForm::kSimple;
  (void)is_blank_line(line);
  const PromptLine parsed = parse_prompt_line(line, 7, rules);
  if (const auto* bad = std::get_if<BadLine>(&parsed)) {
    require(bad->error.code.starts_with("E-IN-") && bad->error.message.size() < 4000);
    require(!bad->id || bad->id->size() <= kIdBytesLimit);
    check_record(record_line(*bad), true);
    return;
  }
  const auto& request = std::get<Request>(parsed);
  check_sampling(request.sampling);
  for (const TokenId token : request.tokens) require(token >= 0);
  // A chat is JSON that was written anew: a byte may be escaped.
  const bool chat = request.prompt_form == PromptForm::kChat;
  require(request.text.size() <= (chat ? line.size() * 6 + 100 : line.size() * 3));
  Completion completion;
  completion.index = 7;
  completion.text = request.text;
  completion.tokens = request.tokens;
  check_record(record_line(request, completion), false);
}

}  // namespace
}  // namespace triphase

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  triphase::fuzz(data[0], triphase::as_text(data + 1, size - 1));
  return 0;
}
