#include <fmt/format.h>

#include "models/files/file_reader.h"
#include "models/tokenizer/sentencepiece_check.h"
#include "models/tokenizer/sentencepiece_tokenizer.h"
#include "models/tokenizer/sidecar.h"
#include "models/tokenizer/tokenizer.h"
#include "models/tokenizer/tokenizer_json.h"

namespace triphase {
namespace {

constexpr std::uint64_t kMaxJsonBytes = 256 << 20;

std::string read(const DirectoryHandle& directory, const std::string& name, std::uint64_t limit) {
  std::string text =
      read_small_file(directory, name, limit, FileErrors{ErrorRole::kModel, "E-TOK-FILE"});
  if (text.starts_with("version https://git-lfs")) {
    throw Error(ErrorRole::kModel, "E-TOK-LFS", "tokenizer")
        .file(name)
        .found(fmt::format("Git LFS pointer of {} bytes", text.size()))
        .expected("a tokenizer")
        .hint("run git lfs pull in the model directory");
  }
  return text;
}

std::unique_ptr<Tokenizer> load(const DirectoryHandle& directory, const ModelConfig& config,
                                Notes& notes) {
  if (directory.contains("tokenizer.json")) {
    return tokenizer_from_json(read(directory, "tokenizer.json", kMaxJsonBytes), "tokenizer.json",
                               read_sidecar(directory), config, notes);
  }
  if (directory.contains("tokenizer.model")) {
    return tokenizer_from_sentencepiece(read(directory, "tokenizer.model", kMaxSentencePieceBytes),
                                        "tokenizer.model", read_sidecar(directory), config, notes);
  }
  const bool vocabulary = directory.contains("vocab.json");
  const bool merges = directory.contains("merges.txt");
  if (vocabulary != merges) {
    throw Error(ErrorRole::kModel, "E-TOK-FILE", vocabulary ? "merges.txt" : "vocab.json")
        .found(vocabulary ? "only vocab.json" : "only merges.txt")
        .expected("both vocab.json and merges.txt");
  }
  if (!vocabulary) return nullptr;
  return tokenizer_from_vocabulary(read(directory, "vocab.json", kMaxJsonBytes),
                                   read(directory, "merges.txt", kMaxJsonBytes),
                                   read_sidecar(directory), config, notes);
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& model_directory,
                                          const ModelConfig& config, Notes& notes) {
  const DirectoryHandle directory(model_directory);
  std::unique_ptr<Tokenizer> tokenizer = load(directory, config, notes);
  if (tokenizer != nullptr) {
    notes.push_back(fmt::format("tokenizer: {}, {} ids, {} embedding rows", tokenizer->kind(),
                                tokenizer->vocab_size(), config.vocab_size));
  }
  return tokenizer;
}

}  // namespace triphase
