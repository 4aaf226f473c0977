// The lines of --data that `triphase eval` reads: questions with choices, and prompts with answers.

#include "runtime/eval/eval_data.h"
#include "tests/fuzz/fuzz_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace triphase;
  const std::string_view text = as_text(data, size);
  if (const auto questions =
          accepted(ErrorRole::kInput, [&] { return eval::read_questions("data.jsonl", text); })) {
    require(!questions->empty());
    std::uint64_t last = 0;
    for (const eval::Question& question : *questions) {
      require(question.line > last);
      last = question.line;
      require(question.requests.size() >= 2 && question.answer < question.requests.size());
      require(question.characters.size() == question.requests.size());
      for (std::size_t at = 0; at < question.requests.size(); ++at) {
        const auto bytes = static_cast<double>(question.requests[at].continuation.size());
        require(question.characters[at] >= 1.0 && question.characters[at] <= bytes);
      }
    }
  }
  if (const auto items =
          accepted(ErrorRole::kInput, [&] { return eval::read_items("data.jsonl", text); })) {
    require(!items->empty());
    std::uint64_t last = 0;
    for (const eval::Item& item : *items) {
      require(item.line > last && !item.answers.empty());
      last = item.line;
    }
  }
  return 0;
}
