#include "models/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace triphase {

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

// Rewrites a pattern from Oniguruma's Ruby syntax for PCRE2, where the two differ: white space,
// word characters, and letters and digits younger than PCRE2's Unicode tables. Pure.

struct PatternProblem {
  std::size_t offset = 0;  // in the pattern, from 0
  std::string_view found;  // a part of the pattern
};

// Unicode's White_Space, which Oniguruma's \s means. PCRE2's \s has U+180E besides.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// Letters, numbers and marks that Unicode 15, 15.1 and 16 added: PCRE2 10.42 knows Unicode 14.
constexpr std::string_view kYoungLetters =
    R"(\x{1C89}-\x{1C8A}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3}\x{10D4A}-\x{10D65})"
    R"(\x{10D6F}-\x{10D85}\x{10EC2}-\x{10EC4}\x{1123F}-\x{11240}\x{11380}-\x{11389}\x{1138B})"
    R"(\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3}\x{11BC0}-\x{11BE0}\x{11F02})"
    R"(\x{11F04}-\x{11F10}\x{11F12}-\x{11F33}\x{1342F}\x{13441}-\x{13446}\x{13460}-\x{143FA})"
    R"(\x{16100}-\x{1611D}\x{16D40}-\x{16D6C}\x{18CFF}\x{1B132}\x{1B155}\x{1DF25}-\x{1DF2A})"
    R"(\x{1E030}-\x{1E06D}\x{1E4D0}-\x{1E4EB}\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739})"
    R"(\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})";
constexpr std::string_view kYoungNumbers =
    R"(\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11F50}-\x{11F59})"
    R"(\x{16130}-\x{16139}\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1D2C0}-\x{1D2D3})"
    R"(\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})";

constexpr std::string_view kYoungCapitals =
    R"(\x{1C89}\x{A7CB}-\x{A7CC}\x{A7DA}\x{A7DC}\x{10D50}-\x{10D65})";
constexpr std::string_view kYoungSmallLetters =
    R"(\x{1C8A}\x{A7CD}\x{A7DB}\x{10D70}-\x{10D85}\x{1DF25}-\x{1DF2A})";
constexpr std::string_view kYoungModifiers =
    R"(\x{10D4E}\x{10D6F}\x{16D40}-\x{16D42}\x{16D6B}-\x{16D6C}\x{1E030}-\x{1E06D}\x{1E4EB})";
constexpr std::string_view kYoungOtherLetters =
    R"(\x{105C0}-\x{105F3}\x{10D4A}-\x{10D4D}\x{10D4F}\x{10EC2}-\x{10EC4}\x{1123F}-\x{11240})"
    R"(\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3})"
    R"(\x{11BC0}-\x{11BE0}\x{11F02}\x{11F04}-\x{11F10}\x{11F12}-\x{11F33}\x{1342F})"
    R"(\x{13441}-\x{13446}\x{13460}-\x{143FA}\x{16100}-\x{1611D}\x{16D43}-\x{16D6A}\x{18CFF})"
    R"(\x{1B132}\x{1B155}\x{1E4D0}-\x{1E4EA}\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739})"
    R"(\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})";
constexpr std::string_view kYoungMarks =
    R"(\x{897}\x{CF3}\x{ECE}\x{10D69}-\x{10D6D}\x{10EFC}-\x{10EFF}\x{11241})"
    R"(\x{113B8}-\x{113C0}\x{113C2}\x{113C5}\x{113C7}-\x{113CA}\x{113CC}-\x{113D0}\x{113D2})"
    R"(\x{113E1}-\x{113E2}\x{11F00}-\x{11F01}\x{11F03}\x{11F34}-\x{11F3A}\x{11F3E}-\x{11F42})"
    R"(\x{11F5A}\x{13440}\x{13447}-\x{13455}\x{1611E}-\x{1612F}\x{1E08F}\x{1E4EC}-\x{1E4EF})"
    R"(\x{1E5EE}-\x{1E5EF})";
struct YoungCharacters {
  std::string_view property;
  std::string_view set;
};
constexpr std::array<YoungCharacters, 7> kYoung{{{R"(\p{L})", kYoungLetters},
                                                 {R"(\p{N})", kYoungNumbers},
                                                 {R"(\p{Lu})", kYoungCapitals},
                                                 {R"(\p{Ll})", kYoungSmallLetters},
                                                 {R"(\p{Lm})", kYoungModifiers},
                                                 {R"(\p{Lo})", kYoungOtherLetters},
                                                 {R"(\p{M})", kYoungMarks}}};

// Walks the pattern once; keeps where it stands and whether that is inside a class.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::optional<std::string> run(PatternProblem& problem) {
    if (pattern_.starts_with("(*")) return refuse(problem, 2);
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        if (!escape()) return refuse(problem, 2);
      } else if (in_class_) {
        if (c == '&' && rest().starts_with("&&")) return refuse(problem, 2);
        if (c == '[' && !rest().starts_with("[:")) return refuse(problem, 1);  // nested set
        if (c == '[') {
          const std::size_t close = pattern_.find(":]", at_);
          if (close == std::string_view::npos) return refuse(problem, 2);
          copy(close + 2 - at_);
          continue;
        }
        if (c == ']') in_class_ = false;
        copy(1);
      } else if (c == '[') {
        in_class_ = true;
        copy(1);
        if (rest().starts_with("^")) copy(1);
        if (rest().starts_with("]")) copy(1);
      } else if (rest().starts_with("(?")) {
        if (!group_opening()) return refuse(problem, 3);
      } else {
        copy(1);
      }
    }
    return out_;
  }

 private:
  [[nodiscard]] std::string_view rest() const { return pattern_.substr(at_); }

  void copy(std::size_t length) {
    out_.append(rest().substr(0, length));
    at_ += length;
  }

  // A set that stands alone needs its own brackets.
  void put_set(std::string_view set, std::size_t consumed) {
    if (!in_class_) out_.push_back('[');
    out_.append(set);
    if (!in_class_) out_.push_back(']');
    at_ += consumed;
  }

  bool escape() {
    const std::string_view text = rest();
    if (text.size() < 2) return false;
    switch (text[1]) {
      case 's':
        put_set(kSpace, 2);
        return true;
      case 'S':
        if (in_class_) return false;  // a negated set has no form inside a set
        put_set("^" + std::string(kSpace), 2);
        return true;
      case 'd':
        put_set(R"(\p{Nd})", 2);
        return true;
      case 'w':
        put_set(R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})" + std::string(kYoungLetters), 2);
        return true;
      case 'p':
        if (text.starts_with(R"(\p{^)")) return false;
        for (const auto& [property, young] : kYoung) {
          if (!text.starts_with(property)) continue;
          put_set(std::string(property) + std::string(young), property.size());
          return true;
        }
        copy(2);
        return true;
      case 'P':
        if (!in_class_ && text.starts_with(R"(\P{L})")) {
          put_set(R"(^\p{L})" + std::string(kYoungLetters), 5);
          return true;
        }
        if (!in_class_ && text.starts_with(R"(\P{N})")) {
          put_set(R"(^\p{N})" + std::string(kYoungNumbers), 5);
          return true;
        }
        copy(2);
        return true;
      case 'h':  // a hex digit there, horizontal space here
      case 'H':
      case 'K':
      case 'g':
      case 'G':
      case 'R':
      case 'X':
      case 'C':
      case 'Q':
      case 'E':
      case 'M':
      case 'y':
      case 'Y':
      case 'W':
      case 'D':
      case 'b':
      case 'B':
      case 'Z':
        return text[1] == 'D' || text[1] == 'Z' || (text[1] == 'b' && in_class_) ? (copy(2), true)
                                                                                 : false;
      default:
        copy(2);
        return true;
    }
  }

  // Groups whose meaning is the same in both: (?: (?= (?! (?<= (?<! (?> and (?i: or (?i).
  bool group_opening() {
    for (const std::string_view same :
         {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?i)"}) {
      if (rest().starts_with(same)) {
        copy(same.size());
        return true;
      }
    }
    return false;
  }

  std::optional<std::string> refuse(PatternProblem& problem, std::size_t length) const {
    problem.offset = at_;
    problem.found = pattern_.substr(at_, length);
    return std::nullopt;
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

// Nothing when the pattern uses a construct with another meaning in PCRE2; `problem` says which.
std::optional<std::string> translate_pattern(std::string_view pattern, PatternProblem& problem) {
  return Translator(pattern).run(problem);
}

// Patterns that were checked to take linear time on any text (no nested repetition).
constexpr std::array<std::string_view, 4> kKnownPatterns = {
    // LLaMA 3
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    // gpt-oss (o200k)
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    // the digit splits used beside ByteLevel
    R"(\p{N}{1,3})",
    R"(\p{N})",
};

constexpr std::size_t kMaxPatternBytes = 4096;
constexpr std::uint32_t kSmallStepLimit = 5'000;
constexpr std::uint32_t kLargeStepLimit = 5'000'000;
constexpr std::uint32_t kHeapLimitKib = 32 * 1024;
constexpr std::size_t kJitStackBytes = 1024 * 1024;

// A thread's match data, limits and bounded machine-code stack.
class Workspace {
 public:
  Workspace()
      : data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr)) {
    if (data_ == nullptr || context_ == nullptr) {
      release();
      throw std::bad_alloc();
    }
    pcre2_set_heap_limit(context_, kHeapLimitKib);
    // Without a stack (no JIT on this machine) matching is interpreted.
    if (stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
  }
  ~Workspace() { release(); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  int match(const pcre2_code* code, std::string_view text, std::size_t start, std::uint32_t options,
            std::uint32_t step_limit) {
    pcre2_set_match_limit(context_, step_limit);
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start,
                       options | PCRE2_NO_UTF_CHECK, data_, context_);
  }
  [[nodiscard]] const PCRE2_SIZE* range() const { return pcre2_get_ovector_pointer(data_); }

 private:
  void release() {
    if (stack_ != nullptr) pcre2_jit_stack_free(stack_);
    if (context_ != nullptr) pcre2_match_context_free(context_);
    if (data_ != nullptr) pcre2_match_data_free(data_);
  }

  pcre2_match_data* data_;
  pcre2_match_context* context_;
  pcre2_jit_stack* stack_;
};

Workspace& workspace() {
  thread_local Workspace instance;
  return instance;
}

[[noreturn]] void throw_limit(std::string_view pattern, int code, std::size_t start) {
  PCRE2_UCHAR message[120] = {};
  pcre2_get_error_message(code, message, sizeof(message));
  throw Error(ErrorRole::kInput, "E-TOK-REGEX", "pre-tokenizer pattern")
      .found(fmt::format("{} at byte {} of the text, pattern {}",
                         reinterpret_cast<const char*>(message), start + 1,
                         escape_untrusted(pattern, 60)))
      .expected("a text that the tokenizer's pattern splits within its step limit");
}

}  // namespace

Regex Regex::compile(std::string_view pattern, std::string_view file, std::string_view path) {
  const auto refuse = [&](std::string_view what, std::size_t offset) {
    return Error(ErrorRole::kModel, "E-TOK-REGEX", path)
        .file(file)
        .found(fmt::format("{} at offset {} of pattern {}", what, offset,
                           escape_untrusted(pattern, 100)));
  };
  if (pattern.size() > kMaxPatternBytes) {
    throw refuse(fmt::format("{} bytes", pattern.size()), 0)
        .expected(fmt::format("at most {} bytes", kMaxPatternBytes));
  }
  PatternProblem problem;
  const std::optional<std::string> translated = translate_pattern(pattern, problem);
  if (!translated) {
    throw refuse(fmt::format("\"{}\"", escape_untrusted(problem.found)), problem.offset)
        .expected("only constructs that mean the same in Oniguruma and PCRE2");
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Ruby's ^ and $ match at lines; \C and \K would split characters.
  pcre2_code* code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code == nullptr) {
    PCRE2_UCHAR message[160] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    throw refuse(reinterpret_cast<const char*>(message), std::min(offset, pattern.size()))
        .expected("a valid regular expression");
  }
  Regex regex;
  regex.pattern_ = pattern;
  regex.code_ = std::shared_ptr<const pcre2_real_code_8>(
      code, [](const pcre2_code* owned) { pcre2_code_free(const_cast<pcre2_code*>(owned)); });
  regex.trusted_ =
      pattern == kGpt2Pattern || pattern == kQwen2Pattern ||
      std::find(kKnownPatterns.begin(), kKnownPatterns.end(), pattern) != kKnownPatterns.end();
  // Machine code ignores the heap limit and counts steps loosely: only for known patterns.
  if (regex.trusted_) pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return regex;
}

Regex Regex::literal(std::string_view text) {
  TRIPHASE_CHECK(!text.empty(), "empty literal pattern");
  Regex regex;
  regex.literal_ = text;
  regex.trusted_ = true;
  return regex;
}

bool Regex::find(std::string_view text, std::size_t start, RegexBudget& budget, std::size_t& begin,
                 std::size_t& end) const {
  if (code_ == nullptr) {
    begin = text.find(literal_, start);
    if (begin == std::string_view::npos) return false;
    end = begin + literal_.size();
    return true;
  }
  if (!trusted_) return find_untrusted(text, start, budget, begin, end);
  Workspace& space = workspace();
  const int result = space.match(code_.get(), text, start, 0, UINT32_MAX);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) throw_limit(pattern_, result, start);
  begin = space.range()[0];
  end = space.range()[1];
  return true;
}

// One start position at a time, so that the step limit bounds the work of each.
bool Regex::find_untrusted(std::string_view text, std::size_t start, RegexBudget& budget,
                           std::size_t& begin, std::size_t& end) const {
  Workspace& space = workspace();
  for (std::size_t at = start; at <= text.size();) {
    int result = space.match(code_.get(), text, at, PCRE2_ANCHORED, kSmallStepLimit);
    if (result == PCRE2_ERROR_MATCHLIMIT && budget.expensive_steps > 0) {
      --budget.expensive_steps;
      result = space.match(code_.get(), text, at, PCRE2_ANCHORED, kLargeStepLimit);
    }
    if (result >= 0) {
      begin = space.range()[0];
      end = space.range()[1];
      return true;
    }
    if (result != PCRE2_ERROR_NOMATCH) throw_limit(pattern_, result, at);
    if (at == text.size()) return false;
    at += character_length(text, at);
  }
  return false;
}

}  // namespace triphase
