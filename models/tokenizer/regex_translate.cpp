#include "models/tokenizer/regex_translate.h"

namespace triphase {
namespace {

// Unicode's White_Space, which Oniguruma's \s means. PCRE2's \s has U+180E besides.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// Letters and numbers that Unicode 15, 15.1 and 16 added: PCRE2 10.42 knows Unicode 14.
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
        if (text.starts_with(R"(\p{L})")) {
          put_set(R"(\p{L})" + std::string(kYoungLetters), 5);
        } else if (text.starts_with(R"(\p{N})")) {
          put_set(R"(\p{N})" + std::string(kYoungNumbers), 5);
        } else if (text.starts_with(R"(\p{^)")) {
          return false;
        } else {
          copy(2);
        }
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

}  // namespace

std::optional<std::string> translate_pattern(std::string_view pattern, PatternProblem& problem) {
  return Translator(pattern).run(problem);
}

}  // namespace triphase
