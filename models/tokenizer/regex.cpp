#include "models/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <new>

#include "base/error.h"
#include "base/utf8.h"
#include "models/tokenizer/regex_translate.h"

namespace triphase {

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

// Patterns that were checked to take linear time on any text (no nested repetition).
constexpr std::array<std::string_view, 4> kKnownPatterns = {
    // LLaMA 3
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    // Qwen2
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
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

std::size_t next_character(std::string_view text, std::size_t position) {
  return position + std::max<std::size_t>(1, utf8_sequence_length(text, position));
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
      pattern == kGpt2Pattern ||
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
    at = next_character(text, at);
  }
  return false;
}

}  // namespace triphase
