#include "models/tokenizer/pretokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

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
  pattern.for_each_match(piece, budget, [&](std::size_t begin, std::size_t end) {
    if (begin > done) parts.push_back({done, begin, invert});
    parts.push_back({begin, end, !invert});
    done = end;
  });
  if (done < piece.size()) parts.push_back({done, piece.size(), invert});
}

// Splits where collect(piece, budget, parts) says.
template <class Collect>
PreTokenizer make_splitter(SplitBehavior behavior, Collect collect) {
  return [behavior, collect](const Pieces& in, Pieces& out, RegexBudget& budget) {
    std::vector<Part> parts;
    for (std::size_t i = 0; i < in.size(); ++i) {
      collect(in[i], budget, parts);
      if (i == 0 && behavior == SplitBehavior::kRemoved && !parts.empty() && parts[0].match) {
        out.at_origin = false;
      }
      add_parts(in[i], parts, behavior, out);
    }
  };
}

// Splits where a class of characters begins and ends.
PreTokenizer make_class_split(SplitBehavior behavior, bool (*is_member)(char32_t)) {
  const auto collect = [is_member](std::string_view piece, RegexBudget&, std::vector<Part>& parts) {
    parts.clear();
    for (std::size_t at = 0; at < piece.size();) {
      const std::size_t length = character_length(piece, at);
      const bool member = is_member(decode_utf8(piece, at, length));
      if (!member && !parts.empty() && !parts.back().match) {
        parts.back().end = at + length;
      } else {
        parts.push_back({at, at + length, member});
      }
      at += length;
    }
  };
  return make_splitter(behavior, collect);
}

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

PreTokenizer make_split(Regex pattern, SplitBehavior behavior, bool invert) {
  const auto collect = [pattern = std::move(pattern), invert](
                           std::string_view piece, RegexBudget& budget, std::vector<Part>& parts) {
    collect_parts(piece, pattern, invert, budget, parts);
  };
  return make_splitter(behavior, collect);
}

PreTokenizer make_byte_level(bool add_prefix_space, bool use_regex) {
  std::optional<Regex> pattern;
  if (use_regex) pattern = Regex::compile(kGpt2Pattern, "tokenizer", "ByteLevel");
  return [add_prefix_space, pattern](const Pieces& in, Pieces& out, RegexBudget& budget) {
    std::string prefixed;
    std::string mapped;
    std::vector<Part> parts;
    for (std::size_t i = 0; i < in.size(); ++i) {
      std::string_view piece = in[i];
      if (add_prefix_space && !piece.starts_with(' ')) {
        prefixed.assign(1, ' ').append(piece);
        piece = prefixed;
      }
      if (pattern) {
        collect_parts(piece, *pattern, false, budget, parts);
      } else {
        parts.assign(1, Part{0, piece.size(), false});
      }
      for (const Part& part : parts) {
        mapped.clear();
        append_byte_level(piece.substr(part.begin, part.end - part.begin), mapped);
        out.add(mapped);
      }
    }
  };
}

PreTokenizer make_metaspace(std::string replacement, PrependScheme scheme, bool split) {
  return [replacement = std::move(replacement), scheme, split](const Pieces& in, Pieces& out,
                                                               RegexBudget&) {
    for (std::size_t i = 0; i < in.size(); ++i) {
      std::string text = replace_each(in[i], " ", replacement);
      const bool prepend = scheme == PrependScheme::kAlways ||
                           (scheme == PrependScheme::kFirst && i == 0 && in.at_origin);
      if (prepend && !text.starts_with(replacement)) text.insert(0, replacement);
      const std::string_view piece = text;
      for (std::size_t begin = 0; begin < piece.size();) {
        const std::size_t end =
            split ? std::min(piece.find(replacement, begin + 1), piece.size()) : piece.size();
        out.add(piece.substr(begin, end - begin));
        begin = end;
      }
    }
  };
}

PreTokenizer make_digits(bool individual) {
  return make_class_split(individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                          &is_numeric);
}

PreTokenizer make_punctuation(SplitBehavior behavior) {
  return make_class_split(behavior, &is_punctuation);
}

PreTokenizer make_white_space_split() {
  return make_class_split(SplitBehavior::kRemoved, &is_white_space);
}

void pre_tokenize(const PreTokenizers& stages, Pieces& pieces, Pieces& scratch,
                  RegexBudget& budget) {
  for (const PreTokenizer& stage : stages) {
    scratch.clear();
    scratch.at_origin = pieces.at_origin;
    stage(pieces, scratch, budget);
    std::swap(pieces, scratch);
  }
}

}  // namespace triphase
