#include "models/tokenizer/pretokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/utf8.h"
#include "models/tokenizer/byte_level.h"
#include "models/tokenizer/characters.h"

namespace triphase {
namespace {

// A part of a piece, and whether the splitting pattern matched it.
struct Part {
  std::size_t begin;
  std::size_t end;
  bool match;
};

// Joins and drops parts as `behavior` says; what remains goes to `out` in order.
void add_parts(std::string_view piece, const std::vector<Part>& parts, SplitBehavior behavior,
               Pieces& out) {
  const auto add = [&](std::size_t begin, std::size_t end) {
    out.add(piece.substr(begin, end - begin));
  };
  switch (behavior) {
    case SplitBehavior::kIsolated:
      for (const Part& part : parts) add(part.begin, part.end);
      return;
    case SplitBehavior::kRemoved:
      for (const Part& part : parts) {
        if (!part.match) add(part.begin, part.end);
      }
      return;
    case SplitBehavior::kContiguous:
    case SplitBehavior::kMergedWithPrevious:
    case SplitBehavior::kMergedWithNext:
      break;
  }
  for (std::size_t i = 0; i < parts.size();) {
    std::size_t last = i;  // parts i..last become one piece
    if (behavior == SplitBehavior::kContiguous) {
      while (last + 1 < parts.size() && parts[last + 1].match == parts[i].match) ++last;
    } else if (last + 1 < parts.size() && parts[i].match != parts[last + 1].match) {
      // A match joins its unmatched neighbour; two matches in a row stay apart.
      const bool joins =
          behavior == SplitBehavior::kMergedWithPrevious ? parts[last + 1].match : parts[i].match;
      if (joins) ++last;
    }
    add(parts[i].begin, parts[last].end);
    i = last + 1;
  }
}

void collect_parts(std::string_view piece, const Regex& pattern, bool invert, RegexBudget& budget,
                   std::vector<Part>& parts) {
  parts.clear();
  std::size_t done = 0;
  std::size_t search = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  while (search <= piece.size() && pattern.find(piece, search, budget, begin, end)) {
    if (begin > done) parts.push_back({done, begin, invert});
    parts.push_back({begin, end, !invert});
    done = end;
    search = end;
    if (begin == end) search += std::max<std::size_t>(1, utf8_sequence_length(piece, end));
  }
  if (done < piece.size()) parts.push_back({done, piece.size(), invert});
}

class Split final : public PreTokenizer {
 public:
  Split(Regex pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void apply(const Pieces& in, Pieces& out, RegexBudget& budget) const override {
    std::vector<Part> parts;
    out.at_origin = in.at_origin;
    for (std::size_t i = 0; i < in.size(); ++i) {
      collect_parts(in[i], pattern_, invert_, budget, parts);
      if (i == 0 && behavior_ == SplitBehavior::kRemoved && !parts.empty() && parts[0].match) {
        out.at_origin = false;
      }
      add_parts(in[i], parts, behavior_, out);
    }
  }

 private:
  Regex pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class ByteLevel final : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex) : add_prefix_space_(add_prefix_space) {
    if (use_regex) pattern_ = Regex::compile(kGpt2Pattern, "tokenizer", "ByteLevel");
  }

  void apply(const Pieces& in, Pieces& out, RegexBudget& budget) const override {
    std::string prefixed;
    std::string mapped;
    std::vector<Part> parts;
    out.at_origin = in.at_origin;
    for (std::size_t i = 0; i < in.size(); ++i) {
      std::string_view piece = in[i];
      if (add_prefix_space_ && !piece.starts_with(' ')) {
        prefixed.assign(1, ' ').append(piece);
        piece = prefixed;
      }
      if (pattern_) {
        collect_parts(piece, *pattern_, false, budget, parts);
      } else {
        parts.assign(1, Part{0, piece.size(), false});
      }
      for (const Part& part : parts) {
        mapped.clear();
        append_byte_level(piece.substr(part.begin, part.end - part.begin), mapped);
        out.add(mapped);
      }
    }
  }

 private:
  bool add_prefix_space_;
  std::optional<Regex> pattern_;
};

class Metaspace final : public PreTokenizer {
 public:
  Metaspace(std::string replacement, PrependScheme scheme, bool split)
      : replacement_(std::move(replacement)), scheme_(scheme), split_(split) {}

  void apply(const Pieces& in, Pieces& out, RegexBudget&) const override {
    std::string piece;
    out.at_origin = in.at_origin;
    for (std::size_t i = 0; i < in.size(); ++i) {
      piece.clear();
      const bool prepend = scheme_ == PrependScheme::kAlways ||
                           (scheme_ == PrependScheme::kFirst && i == 0 && in.at_origin);
      for (const char c : in[i]) {
        if (c == ' ') {
          piece.append(replacement_);
        } else {
          piece.push_back(c);
        }
      }
      if (prepend && !piece.starts_with(replacement_)) piece.insert(0, replacement_);
      if (split_) {
        split(piece, out);
      } else {
        out.add(piece);
      }
    }
  }

 private:
  void split(std::string_view piece, Pieces& out) const {
    std::size_t begin = 0;
    while (begin < piece.size()) {
      const std::size_t next = piece.find(replacement_, begin + 1);
      out.add(piece.substr(begin, next - begin));
      begin = next == std::string_view::npos ? piece.size() : next;
    }
  }

  std::string replacement_;
  PrependScheme scheme_;
  bool split_;
};

// Splits where a class of characters begins and ends.
class ClassSplit final : public PreTokenizer {
 public:
  ClassSplit(bool (*is_member)(char32_t), SplitBehavior behavior)
      : is_member_(is_member), behavior_(behavior) {}

  void apply(const Pieces& in, Pieces& out, RegexBudget&) const override {
    std::vector<Part> parts;
    out.at_origin = in.at_origin;
    for (std::size_t i = 0; i < in.size(); ++i) {
      const std::string_view piece = in[i];
      parts.clear();
      for (std::size_t at = 0; at < piece.size();) {
        const std::size_t length = std::max<std::size_t>(1, utf8_sequence_length(piece, at));
        const bool member = is_member_(decode_utf8(piece, at, length));
        if (!member && !parts.empty() && !parts.back().match) {
          parts.back().end = at + length;
        } else {
          parts.push_back({at, at + length, member});
        }
        at += length;
      }
      if (i == 0 && behavior_ == SplitBehavior::kRemoved && !parts.empty() && parts[0].match) {
        out.at_origin = false;
      }
      add_parts(piece, parts, behavior_, out);
    }
  }

 private:
  bool (*is_member_)(char32_t);
  SplitBehavior behavior_;
};

}  // namespace

void Pieces::clear() {
  text.clear();
  ends.clear();
  at_origin = false;
}

void Pieces::add(std::string_view piece) {
  if (piece.empty()) return;
  text.append(piece);
  ends.push_back(text.size());
}

std::unique_ptr<PreTokenizer> make_split(Regex pattern, SplitBehavior behavior, bool invert) {
  return std::make_unique<Split>(std::move(pattern), behavior, invert);
}

std::unique_ptr<PreTokenizer> make_byte_level(bool add_prefix_space, bool use_regex) {
  return std::make_unique<ByteLevel>(add_prefix_space, use_regex);
}

std::unique_ptr<PreTokenizer> make_metaspace(std::string replacement, PrependScheme scheme,
                                             bool split) {
  return std::make_unique<Metaspace>(std::move(replacement), scheme, split);
}

std::unique_ptr<PreTokenizer> make_digits(bool individual) {
  return std::make_unique<ClassSplit>(
      &is_numeric, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
}

std::unique_ptr<PreTokenizer> make_punctuation(SplitBehavior behavior) {
  return std::make_unique<ClassSplit>(&is_punctuation, behavior);
}

std::unique_ptr<PreTokenizer> make_white_space_split() {
  return std::make_unique<ClassSplit>(&is_white_space, SplitBehavior::kRemoved);
}

void pre_tokenize(const PreTokenizers& stages, Pieces& pieces, Pieces& scratch,
                  RegexBudget& budget) {
  for (const auto& stage : stages) {
    scratch.clear();
    stage->apply(pieces, scratch, budget);
    std::swap(pieces, scratch);
  }
}

}  // namespace triphase
