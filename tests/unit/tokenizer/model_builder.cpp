#include "tests/unit/tokenizer/model_builder.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace triphase {
namespace {

std::string varint(std::uint64_t value) {
  std::string out;
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
  return out;
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "tokenizer-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp");
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TemporaryFolder::write(const std::string& name, std::string_view content) const {
  std::ofstream file(path_ + "/" + name, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
}

std::string varint_field(std::uint32_t number, std::uint64_t value) {
  return varint(std::uint64_t{number} << 3) + varint(value);
}

std::string bytes_field(std::uint32_t number, std::string_view bytes) {
  return varint((std::uint64_t{number} << 3) | 2) + varint(bytes.size()) + std::string(bytes);
}

std::string float_field(std::uint32_t number, float value) {
  char raw[4];
  std::memcpy(raw, &value, 4);
  return varint((std::uint64_t{number} << 3) | 5) + std::string(raw, 4);
}

std::string sentencepiece_bytes(const std::vector<PieceSpec>& pieces, std::string_view trainer,
                                std::string_view normalizer) {
  std::string out;
  for (const PieceSpec& piece : pieces) {
    out += bytes_field(
        1, bytes_field(1, piece.text) + float_field(2, piece.score) + varint_field(3, piece.type));
  }
  return out + bytes_field(2, trainer) + bytes_field(3, normalizer);
}

std::vector<PieceSpec> letter_pieces() {
  std::vector<PieceSpec> pieces = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}};
  float score = -1;
  for (const char* text : {"\xE2\x96\x81"
                           "ab",
                           "ab", "\xE2\x96\x81", "a", "b", "c", "d"}) {
    pieces.push_back({text, score, 1});
    score -= 1;
  }
  return pieces;
}

std::string trainer_fields(std::uint64_t model_type) { return varint_field(3, model_type); }

std::string llama_normalizer() {
  return bytes_field(1, "identity") + varint_field(3, 1) + varint_field(4, 0) + varint_field(5, 1);
}

std::string JsonSpec::text() const {
  return R"({"version":"1.0","added_tokens":)" + added_tokens + R"(,"normalizer":)" + normalizer +
         R"(,"pre_tokenizer":)" + pre_tokenizer + R"(,"post_processor":)" + post_processor +
         R"(,"decoder":)" + decoder + R"(,"model":{"type":)" + model_type + R"(,"vocab":)" + vocab +
         R"(,"merges":)" + merges + model_extra + "}}";
}

}  // namespace triphase
