#pragma once

// Small tokenizer files for tests, written field by field, so that each test damages one thing.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace triphase {

// A folder that is removed with its files at the end of the test.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  void write(const std::string& name, std::string_view content) const;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Protocol buffer fields.
[[nodiscard]] std::string varint_field(std::uint32_t number, std::uint64_t value);
[[nodiscard]] std::string bytes_field(std::uint32_t number, std::string_view bytes);
[[nodiscard]] std::string float_field(std::uint32_t number, float value);

struct PieceSpec {
  std::string text;
  float score = 0.0F;
  std::uint64_t type = 1;
};

// A SentencePiece model of these pieces; `trainer` and `normalizer` are encoded fields.
[[nodiscard]] std::string sentencepiece_bytes(const std::vector<PieceSpec>& pieces,
                                              std::string_view trainer,
                                              std::string_view normalizer);

// <unk>, <s>, </s> and a few letters; valid as unigram and as BPE.
[[nodiscard]] std::vector<PieceSpec> letter_pieces();

// Trainer fields: 1 unigram, 2 BPE.
[[nodiscard]] std::string trainer_fields(std::uint64_t model_type);
// Normalizer fields of LLaMA: identity, nothing removed.
[[nodiscard]] std::string llama_normalizer();

// tokenizer.json with these members; absent ones get a valid value.
struct JsonSpec {
  std::string added_tokens = "[]";
  std::string normalizer = "null";
  std::string pre_tokenizer = R"({"type":"ByteLevel","add_prefix_space":false})";
  std::string post_processor = "null";
  std::string decoder = R"({"type":"ByteLevel"})";
  std::string model_extra;  // more members of "model", each with a comma in front
  std::string model_type = "\"BPE\"";
  std::string vocab = R"({"a":0,"b":1,"c":2,"ab":3,"abc":4,"Ġ":5})";
  std::string merges = R"(["a b","ab c"])";
  [[nodiscard]] std::string text() const;
};

}  // namespace triphase
