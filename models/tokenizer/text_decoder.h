#pragma once

// The decoders of tokenizer files as stages that hand token text on as soon as later tokens cannot
// change it. Whole-sequence decoding runs the same stages, so that streamed and whole results are
// equal by construction.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizer/regex.h"

namespace triphase {

// What one stage of a decoder does; immutable, from the tokenizer file.
struct DecodeStage {
  enum class Kind : std::uint8_t {
    kByteLevel,     // GPT-2's byte alphabet to bytes; everything becomes one text
    kByteFallback,  // runs of <0xHH> tokens to characters
    kSpaceMark,     // `content` to spaces, dropped in the first token if `start` is 1
    kReplace,       // `pattern` to `content`
    kStrip,         // up to `start` leading and `stop` trailing `content` of a token
    kFuse,          // everything becomes one text
    kSpaceJoin,     // no decoder: tokens joined by spaces
  };
  Kind kind = Kind::kFuse;
  std::string content;
  std::vector<Regex> pattern;  // one for kReplace
  std::uint32_t start = 0;
  std::uint32_t stop = 0;
};

using DecodeStages = std::vector<DecodeStage>;

// One sequence's way through the stages. `stages` must outlive it.
class StageChain {
 public:
  explicit StageChain(const DecodeStages& stages);
  ~StageChain();
  void push(std::string_view token, std::string& out);
  [[nodiscard]] std::string_view held() const;
  void begin_text(std::string& out);
  void finish(std::string& out);

 private:
  class Stage;
  std::vector<std::unique_ptr<Stage>> stages_;
};

// What one token's text is worth inside a running text: the stages without what only happens at
// the ends.
[[nodiscard]] std::string decoded_token_bytes(const DecodeStages& stages, std::string_view token);

// Moves every part of `pending` that no later byte can change to `out`: characters, and U+FFFD for
// each maximal ill-formed part.
void drain_utf8(std::string& pending, std::string& out);

// Bytes of well-formed UTF-8 that `text` could still become the start of: true when text is a
// proper prefix of one character.
[[nodiscard]] bool is_utf8_prefix(std::string_view text);

}  // namespace triphase
