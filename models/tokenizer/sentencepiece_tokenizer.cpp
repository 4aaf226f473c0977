#include "models/tokenizer/sentencepiece_tokenizer.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "models/tokenizer/byte_level.h"
#include "models/tokenizer/characters.h"
#include "models/tokenizer/sentencepiece_bpe.h"
#include "models/tokenizer/sentencepiece_check.h"
#include "models/tokenizer/sentencepiece_unigram.h"
#include "models/tokenizer/text_decoder.h"

namespace triphase {
namespace {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string bytes, std::string_view file, const TokenizerSidecar& sidecar,
                         const ModelConfig& config, Notes& notes);

  [[nodiscard]] std::vector<TokenId> encode(std::string_view text,
                                            const EncodeOptions& options) const override;
  [[nodiscard]] std::unique_ptr<TextDecoder> new_decoder(bool skip_special) const override;
  [[nodiscard]] std::string token_bytes(TokenId id) const override;
  [[nodiscard]] bool is_special(TokenId id) const override;
  [[nodiscard]] std::int64_t vocab_size() const override { return vocab_size_; }
  [[nodiscard]] std::optional<TokenId> bos() const override { return bos_; }
  [[nodiscard]] std::string_view kind() const override {
    return model_.kind == SentencePieceModel::Kind::kBpe ? "sentencepiece bpe"
                                                         : "sentencepiece unigram";
  }

 private:
  class Decoder;

  void add_special_tokens(const TokenizerSidecar& sidecar, const ModelConfig& config, Notes& notes);
  void load_library(std::string_view file);
  void encode_plain(std::string_view text, bool dummy_prefix, std::vector<TokenId>& out) const;
  [[nodiscard]] const SentencePieceEntry* piece(TokenId id) const {
    return id >= 0 && static_cast<std::size_t>(id) < model_.pieces.size() ? &model_.pieces[id]
                                                                          : nullptr;
  }

  std::string bytes_;  // model_ points into it
  SentencePieceModel model_;
  // The tokenizer that does the work: one of three, by the model's type.
  std::optional<SentencePieceBpe> bpe_;
  std::optional<SentencePieceUnigram> unigram_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> library_;
  AddedTokens added_;
  std::int64_t vocab_size_ = 0;
  std::optional<TokenId> bos_;
  std::optional<TokenId> eos_;
  bool add_bos_ = false;
  bool add_eos_ = false;
  bool legacy_ = true;
};

// What sentencepiece::Decode does, one piece at a time.
class SentencePieceTokenizer::Decoder final : public TextDecoder {
 public:
  Decoder(const SentencePieceTokenizer& tokenizer, bool skip_special)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  void push(TokenId id, std::string& out) override {
    const SentencePieceEntry* piece = tokenizer_->piece(id);
    const AddedToken* added = tokenizer_->added_.by_id(id);
    if ((piece == nullptr && added == nullptr) || (skip_special_ && tokenizer_->is_special(id))) {
      return;
    }
    if (added == nullptr && piece->type == PieceType::kByte) {
      bytes_.push_back(static_cast<char>(*fallback_byte(piece->text)));
      drain(/*final=*/false, out);
      return;
    }
    finish(out);
    if (added != nullptr) {
      emit(added->shown, out);
    } else {
      std::string_view text = piece->text;
      const SentencePieceModel& model = tokenizer_->model_;
      // The dummy prefix is not part of the text.
      if (at_start_ && (model.add_dummy_prefix || model.remove_extra_whitespaces) &&
          text.starts_with(kMetaspace)) {
        text.remove_prefix(kMetaspace.size());
        // Where extra white space was removed, none can lead the text.
        at_start_ = model.remove_extra_whitespaces;
      }
      emit(replace_each(text, kMetaspace, " "), out);
    }
  }

  void finish(std::string& out) override { drain(/*final=*/true, out); }

 private:
  void emit(std::string_view text, std::string& out) {
    if (!text.empty()) at_start_ = false;
    out.append(text);
  }

  // A run of byte pieces is UTF-8; each byte that is not becomes U+FFFD.
  void drain(bool final, std::string& out) {
    std::size_t at = 0;
    while (at < bytes_.size()) {
      const std::size_t length = utf8_sequence_length(bytes_, at);
      if (length != 0) {
        emit(std::string_view(bytes_).substr(at, length), out);
        at += length;
      } else if (!final && is_utf8_prefix(std::string_view(bytes_).substr(at))) {
        break;
      } else {
        emit("\xEF\xBF\xBD", out);
        ++at;
      }
    }
    bytes_.erase(0, at);
  }

  const SentencePieceTokenizer* tokenizer_;
  bool skip_special_;
  bool at_start_ = true;
  std::string bytes_;
};

SentencePieceTokenizer::SentencePieceTokenizer(std::string bytes, std::string_view file,
                                               const TokenizerSidecar& sidecar,
                                               const ModelConfig& config, Notes& notes)
    : bytes_(std::move(bytes)), model_(check_sentencepiece(bytes_, file)) {
  vocab_size_ = std::ssize(model_.pieces);
  if (vocab_size_ > config.vocab_size) {
    throw Error(ErrorRole::kModel, "E-TOK-SIZE", "pieces")
        .file(file)
        .found(fmt::format("token id {}", vocab_size_ - 1))
        .expected(fmt::format("ids below the model's {} embedding rows", config.vocab_size))
        .hint("the tokenizer and config.json's vocab_size do not belong together");
  }
  add_special_tokens(sidecar, config, notes);
  legacy_ = sidecar.legacy.value_or(true);
  add_bos_ = sidecar.add_bos_token.value_or(true) && bos_.has_value();
  add_eos_ = sidecar.add_eos_token.value_or(false) && eos_.has_value();
  bpe_ = SentencePieceBpe::make(model_);
  unigram_ = SentencePieceUnigram::make(model_);
  if (!bpe_ && !unigram_) {
    load_library(file);
    if (!legacy_) notes.push_back("tokenizer: legacy: false has no effect on this model");
  }
}

void SentencePieceTokenizer::load_library(std::string_view file) {
  for (std::size_t id = 0; id < model_.pieces.size(); ++id) {
    // The library (0.1.97) ends the process when a piece begins with NUL.
    if (model_.pieces[id].text.find('\0') != std::string_view::npos) {
      throw Error(ErrorRole::kModel, "E-TOK-PIECE", fmt::format("pieces[{}]", id))
          .file(file)
          .found("a piece with a NUL byte, unused pieces or pieces of more than 256 bytes")
          .expected("only one of these in a model");
    }
  }
  library_ = std::make_unique<sentencepiece::SentencePieceProcessor>();
  const auto status = library_->LoadFromSerializedProto(bytes_);
  if (!status.ok()) {
    throw Error(ErrorRole::kModel, "E-TOK-FORMAT", "model")
        .file(file)
        .found(status.error_message())
        .expected("a model that libsentencepiece can load");
  }
}

void SentencePieceTokenizer::add_special_tokens(const TokenizerSidecar& sidecar,
                                                const ModelConfig& config, Notes& notes) {
  const auto piece_id = [this](std::string_view text) -> std::optional<TokenId> {
    for (std::size_t id = 0; id < model_.pieces.size(); ++id) {
      if (model_.pieces[id].text == text) return static_cast<TokenId>(id);
    }
    return std::nullopt;
  };
  const auto role = [&](std::string_view name, std::string_view standard) {
    const auto found = sidecar.roles.find(name);
    const std::string_view text = found == sidecar.roles.end() ? standard : found->second;
    if (const AddedToken* token = added_.by_content(text)) return std::optional(token->id);
    return piece_id(text);
  };
  const auto add = [&](const AddedToken& token) {
    const std::optional<TokenId> known = piece_id(token.content);
    if (known ? *known != token.id : piece(token.id) != nullptr) {
      notes.push_back(
          fmt::format("tokenizer: \"{}\" has id {} beside tokenizer.model, which says "
                      "otherwise; tokenizer.model wins",
                      escape_untrusted(token.content), token.id));
    } else if (token.id >= config.vocab_size) {
      notes.push_back(fmt::format("tokenizer: \"{}\" (id {}) has no embedding row; left out",
                                  escape_untrusted(token.content), token.id));
    } else if (added_.by_id(token.id) == nullptr && added_.by_content(token.content) == nullptr) {
      added_.add(token);
      vocab_size_ = std::max(vocab_size_, std::int64_t{token.id} + 1);
    }
  };
  for (const AddedToken& token : sidecar.added) add(token);
  for (const AddedToken& token : sidecar.listed) add(token);
  bos_ = role("bos_token", model_.bos_piece);
  eos_ = role("eos_token", model_.eos_piece);
  std::vector<std::string> special = sidecar.special;
  for (const std::optional<TokenId> id : {bos_, eos_, std::optional(model_.unknown_id)}) {
    if (id && piece(*id) != nullptr) special.emplace_back(piece(*id)->text);
  }
  for (const std::string& text : special) {
    if (const AddedToken* token = added_.by_content(text)) {
      added_.mark_special(token->id);
    } else if (const std::optional<TokenId> id = piece_id(text)) {
      added_.add(special_token(text, *id));
    }
  }
  added_.finish([](std::string_view text) { return std::string(text); });
}

void SentencePieceTokenizer::encode_plain(std::string_view text, bool dummy_prefix,
                                          std::vector<TokenId>& out) const {
  if (bpe_) {
    bpe_->encode(text, dummy_prefix, out);
    return;
  }
  if (unigram_) {
    unigram_->encode(text, dummy_prefix, out);
    return;
  }
  std::vector<int> ids;
  const auto status = library_->Encode(absl::string_view(text.data(), text.size()), &ids);
  if (!status.ok()) {
    throw Error(ErrorRole::kInput, "E-TOK-FORMAT", "text")
        .found(status.error_message())
        .expected("a text that the SentencePiece model can encode");
  }
  out.insert(out.end(), ids.begin(), ids.end());
}

std::vector<TokenId> SentencePieceTokenizer::encode(std::string_view text,
                                                    const EncodeOptions& options) const {
  std::vector<TokenId> ids;
  if (options.add_special && add_bos_) ids.push_back(*bos_);
  const auto plain = [&](std::size_t begin, std::size_t end) {
    // Before legacy was turned off, every stretch between special tokens got the dummy prefix.
    const bool prefix = model_.add_dummy_prefix && (legacy_ || begin == 0);
    encode_plain(text.substr(begin, end - begin), prefix, ids);
  };
  // Tokens found in raw text and in normalized text are the same here: nothing is normalized.
  added_.split(
      text, /*normalized=*/false, options.parse_special,
      [&](std::size_t begin, std::size_t end) {
        added_.split(
            text.substr(begin, end - begin), /*normalized=*/true, options.parse_special,
            [&](std::size_t b, std::size_t e) { plain(begin + b, begin + e); },
            [&](TokenId id) { ids.push_back(id); });
      },
      [&](TokenId id) { ids.push_back(id); });
  if (options.add_special && add_eos_) ids.push_back(*eos_);
  return ids;
}

std::unique_ptr<TextDecoder> SentencePieceTokenizer::new_decoder(bool skip_special) const {
  return std::make_unique<Decoder>(*this, skip_special);
}

std::string SentencePieceTokenizer::token_bytes(TokenId id) const {
  if (const AddedToken* added = added_.by_id(id)) return added->shown;
  const SentencePieceEntry* entry = piece(id);
  if (entry == nullptr) return {};
  if (entry->type == PieceType::kByte) return {static_cast<char>(*fallback_byte(entry->text))};
  return replace_each(entry->text, kMetaspace, " ");
}

bool SentencePieceTokenizer::is_special(TokenId id) const {
  if (const AddedToken* added = added_.by_id(id)) return added->special;
  const SentencePieceEntry* entry = piece(id);
  return entry != nullptr &&
         (entry->type == PieceType::kControl || entry->type == PieceType::kUnknown);
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_sentencepiece(std::string bytes, std::string_view file,
                                                        const TokenizerSidecar& sidecar,
                                                        const ModelConfig& config, Notes& notes) {
  return std::make_unique<SentencePieceTokenizer>(std::move(bytes), file, sidecar, config, notes);
}

}  // namespace triphase
