#include "models/tokenizer/normalizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "models/tokenizer/characters.h"

namespace triphase {
namespace {

// Real normalizers make three bytes of one: a space becomes U+2581.
constexpr std::size_t kMostGrowth = 16;
constexpr std::size_t kShortText = 4096;

class UnicodeNormalizer final : public Normalizer {
 public:
  explicit UnicodeNormalizer(UnicodeForm form) : form_(form) {}
  void apply(std::string& text, RegexBudget&) const override {
    // Code points below U+0300 (lead bytes below 0xCC) are their own NFC; ASCII is every form.
    const unsigned char stable = form_ == UnicodeForm::kNfc ? 0xCC : 0x80;
    if (std::all_of(text.begin(), text.end(),
                    [stable](char c) { return static_cast<unsigned char>(c) < stable; })) {
      return;
    }
    text = unicode_normalized(text, form_);
  }

 private:
  UnicodeForm form_;
};

class PrependNormalizer final : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(std::string& text, RegexBudget&) const override {
    if (!text.empty()) text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class ReplaceNormalizer final : public Normalizer {
 public:
  ReplaceNormalizer(Regex pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::string& text, RegexBudget& budget) const override {
    text = replaced(text, pattern_, content_, budget);
  }

 private:
  Regex pattern_;
  std::string content_;
};

class StripNormalizer final : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string& text, RegexBudget&) const override {
    if (right_) text.erase(trailing_space_begin(text));
    if (left_) text.erase(0, leading_space_end(text));
  }

 private:
  bool left_;
  bool right_;
};

}  // namespace

std::string replaced(std::string_view text, const Regex& pattern, std::string_view content,
                     RegexBudget& budget) {
  std::string out;
  out.reserve(text.size());
  const std::size_t most = std::max(budget.most_bytes, text.size());
  std::size_t done = 0;
  std::size_t search = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  while (search <= text.size() && pattern.find(text, search, budget, begin, end)) {
    out.append(text.substr(done, begin - done));
    out.append(content);
    if (out.size() > most) {
      throw Error(ErrorRole::kInput, "E-TOK-LIMIT", "normalizer")
          .found(fmt::format("a text that replacing makes longer than {} bytes", most))
          .expected("a few times the text");
    }
    done = end;
    search = end;
    if (begin == end) {  // an empty match: step over one character
      search = end + std::max<std::size_t>(1, utf8_sequence_length(text, end));
    }
  }
  out.append(text.substr(done));
  return out;
}

std::unique_ptr<Normalizer> make_unicode_normalizer(UnicodeForm form) {
  return std::make_unique<UnicodeNormalizer>(form);
}

std::unique_ptr<Normalizer> make_prepend_normalizer(std::string prefix) {
  return std::make_unique<PrependNormalizer>(std::move(prefix));
}

std::unique_ptr<Normalizer> make_replace_normalizer(Regex pattern, std::string content) {
  return std::make_unique<ReplaceNormalizer>(std::move(pattern), std::move(content));
}

std::unique_ptr<Normalizer> make_strip_normalizer(bool left, bool right) {
  return std::make_unique<StripNormalizer>(left, right);
}

void normalize(const Normalizers& normalizers, std::string& text, RegexBudget& budget) {
  // Replacements that each double a text would fill any memory together.
  budget.most_bytes = kMostGrowth * text.size() + kShortText;
  for (const auto& normalizer : normalizers) normalizer->apply(text, budget);
}

}  // namespace triphase
