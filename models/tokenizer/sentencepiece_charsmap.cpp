#include "models/tokenizer/sentencepiece_charsmap.h"

#include <cstring>

#include "base/utf8.h"

namespace triphase {
namespace {

// libsentencepiece keeps at most this many rules per position and reads past its array otherwise.
constexpr std::uint8_t kMaxRulesOnPath = 32;
// The longest replacement of the standard tables is far below; this bounds what text can grow to.
constexpr std::size_t kMaxReplacementBytes = 256;
constexpr std::size_t kMaxUnits = std::size_t{1} << 22;

using Unit = CharsmapUnit;

class TrieWalk {
 public:
  TrieWalk(const std::vector<Unit>& units, std::string_view texts)
      : units_(units), texts_(texts), rules_below_(units_.size(), kUnseen) {}

  // Visits every unit that text can reach. Units may be shared, but not in a circle.
  bool safe() {
    std::vector<Frame> stack;
    if (!enter(0, stack)) return false;
    while (!stack.empty()) {
      Frame& top = stack.back();
      if (top.next_label > 0xFF) {
        const std::uint8_t rules = static_cast<std::uint8_t>(top.deepest + top.own);
        if (rules > kMaxRulesOnPath) return false;
        rules_below_[top.unit] = rules;
        stack.pop_back();
        if (!stack.empty() && stack.back().deepest < rules) stack.back().deepest = rules;
        continue;
      }
      const std::uint32_t label = top.next_label++;
      const std::uint32_t child = top.unit ^ units_[top.unit].offset() ^ label;
      if (units_[child].label() != label) continue;
      if (rules_below_[child] == kOpen) return false;
      if (rules_below_[child] == kUnseen) {
        if (!enter(child, stack)) return false;
      } else if (top.deepest < rules_below_[child]) {
        top.deepest = rules_below_[child];
      }
    }
    return true;
  }

 private:
  static constexpr std::uint8_t kUnseen = 0xFF;
  static constexpr std::uint8_t kOpen = 0xFE;
  struct Frame {
    std::uint32_t unit;
    std::uint32_t next_label;
    std::uint8_t own;      // 1 when a rule ends here
    std::uint8_t deepest;  // rules on the longest path below
  };

  bool enter(std::uint32_t unit, std::vector<Frame>& stack) {
    // Any byte of text may be tried here, so all 256 places must exist.
    const std::uint64_t base = std::uint64_t{unit} ^ units_[unit].offset();
    if ((base | 0xFF) >= units_.size()) return false;
    std::uint8_t own = 0;
    if (units_[unit].has_leaf()) {
      own = 1;
      const std::uint32_t at = units_[base].value();
      if (at >= texts_.size()) return false;
      const std::size_t end = texts_.find('\0', at);
      if (end == std::string_view::npos || end - at > kMaxReplacementBytes) return false;
      if (first_invalid_utf8(texts_.substr(at, end - at)) != std::string_view::npos) return false;
    }
    rules_below_[unit] = kOpen;
    // A NUL byte of text is a label as well.
    stack.push_back(Frame{unit, 0, own, 0});
    return true;
  }

  const std::vector<Unit>& units_;
  std::string_view texts_;
  std::vector<std::uint8_t> rules_below_;  // on the longest path from a unit, itself included
};

}  // namespace

std::optional<Charsmap> Charsmap::parse(std::string_view bytes) {
  std::uint32_t trie_bytes = 0;
  if (bytes.size() <= sizeof(trie_bytes)) return std::nullopt;
  std::memcpy(&trie_bytes, bytes.data(), sizeof(trie_bytes));
  bytes.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes == 0 || trie_bytes >= bytes.size() || trie_bytes % sizeof(Unit) != 0 ||
      trie_bytes / sizeof(Unit) > kMaxUnits) {
    return std::nullopt;
  }
  Charsmap map;
  map.units_.resize(trie_bytes / sizeof(Unit));
  std::memcpy(map.units_.data(), bytes.data(), trie_bytes);
  map.texts_ = bytes.substr(trie_bytes);
  if (!TrieWalk(map.units_, map.texts_).safe()) return std::nullopt;
  return map;
}

std::size_t Charsmap::longest(std::string_view text, std::size_t position,
                              std::string_view& replacement) const {
  std::size_t best = 0;
  std::uint32_t base = units_[0].offset();
  for (std::size_t at = position; at < text.size(); ++at) {
    const auto label = static_cast<unsigned char>(text[at]);
    const std::uint32_t unit = base ^ label;
    if (units_[unit].label() != label) break;
    base = unit ^ units_[unit].offset();
    if (units_[unit].has_leaf()) {
      best = at + 1 - position;
      replacement = texts_.substr(units_[base].value());
    }
  }
  replacement = replacement.substr(0, replacement.find('\0'));
  return best;
}

}  // namespace triphase
