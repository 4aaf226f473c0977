#include "models/tokenizer/normalizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "models/tokenizer/characters.h"

namespace triphase {
namespace {

// Real normalizers make three bytes of one: a space becomes U+2581.
constexpr std::size_t kMostGrowth = 16;
constexpr std::size_t kShortText = 4096;

}  // namespace

std::string replaced(std::string_view text, const Regex& pattern, std::string_view content,
                     RegexBudget& budget) {
  std::string out;
  out.reserve(text.size());
  const std::size_t most = std::max(budget.most_bytes, text.size());
  std::size_t done = 0;
  pattern.for_each_match(text, budget, [&](std::size_t begin, std::size_t end) {
    out.append(text.substr(done, begin - done));
    out.append(content);
    if (out.size() > most) {
      throw Error(ErrorRole::kInput, "E-TOK-LIMIT", "normalizer")
          .found(fmt::format("a text that replacing makes longer than {} bytes", most))
          .expected("a few times the text");
    }
    done = end;
  });
  out.append(text.substr(done));
  return out;
}

Normalizer make_unicode_normalizer(UnicodeForm form) {
  // Code points below U+0300 (lead bytes below 0xCC) are their own NFC; ASCII is every form.
  const unsigned char stable = form == UnicodeForm::kNfc ? 0xCC : 0x80;
  return [form, stable](std::string& text, RegexBudget&) {
    const auto is_stable = [&](char c) { return static_cast<unsigned char>(c) < stable; };
    if (!std::ranges::all_of(text, is_stable)) text = unicode_normalized(text, form);
  };
}

Normalizer make_prepend_normalizer(std::string prefix) {
  return [prefix = std::move(prefix)](std::string& text, RegexBudget&) {
    if (!text.empty()) text.insert(0, prefix);
  };
}

Normalizer make_replace_normalizer(Regex pattern, std::string content) {
  return [pattern = std::move(pattern), content = std::move(content)](std::string& text,
                                                                      RegexBudget& budget) {
    text = replaced(text, pattern, content, budget);
  };
}

Normalizer make_strip_normalizer(bool left, bool right) {
  return [left, right](std::string& text, RegexBudget&) {
    if (right) text.erase(trailing_space_begin(text));
    if (left) text.erase(0, leading_space_end(text));
  };
}

void normalize(const Normalizers& normalizers, std::string& text, RegexBudget& budget) {
  // Replacements that each double a text would fill any memory together.
  budget.most_bytes = kMostGrowth * text.size() + kShortText;
  for (const Normalizer& normalizer : normalizers) normalizer(text, budget);
}

}  // namespace triphase
