#pragma once

// The normalization table inside a SentencePiece model: a length, a Darts double array, and
// replacement texts that end in NUL. libsentencepiece follows it without bounds checks, so it is
// checked as a whole before use. Views into the model's bytes; immutable and thread-safe.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace triphase {

// One unit of a Darts double array.
struct CharsmapUnit {
  std::uint32_t bits;
  [[nodiscard]] bool has_leaf() const { return ((bits >> 8) & 1) == 1; }
  [[nodiscard]] std::uint32_t value() const { return bits & 0x7FFFFFFF; }
  [[nodiscard]] std::uint32_t label() const { return bits & (0x80000000U | 0xFF); }
  [[nodiscard]] std::uint32_t offset() const { return (bits >> 10) << ((bits & (1U << 9)) >> 6); }
};

class Charsmap {
 public:
  // Nothing when some text could lead outside of the table or its texts.
  static std::optional<Charsmap> parse(std::string_view bytes);

  // Bytes of the longest rule that matches at `position`, 0 for none; what it becomes.
  [[nodiscard]] std::size_t longest(std::string_view text, std::size_t position,
                                    std::string_view& replacement) const;

 private:
  std::vector<CharsmapUnit> units_;
  std::string_view texts_;
};

}  // namespace triphase
