#include "models/tokenizer/pipeline_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace triphase {

// Working memory of one encode call.
struct PipelineTokenizer::Scratch {
  explicit Scratch(const MergeTable& merges) : merger(merges) {}
  RegexBudget budget;
  BpeMerger merger;
  std::string normalized;
  Pieces pieces;
  Pieces other;
};

class PipelineTokenizer::Decoder final : public TextDecoder {
 public:
  Decoder(const PipelineTokenizer& tokenizer, bool skip_special)
      : tokenizer_(&tokenizer), skip_special_(skip_special), chain_(tokenizer.parts_.decoder) {}

  void push(TokenId id, std::string& out) override {
    if (skip_special_ && tokenizer_->is_special(id)) return;
    const bool known = tokenizer_->parts_.model.vocabulary().contains(id) ||
                       tokenizer_->parts_.added.by_id(id) != nullptr;
    if (known) chain_.push(tokenizer_->token_text(id), out);
  }
  [[nodiscard]] std::string_view held() const override { return chain_.held(); }
  void begin_text(std::string& out) override { chain_.begin_text(out); }
  void finish(std::string& out) override { chain_.finish(out); }

 private:
  const PipelineTokenizer* tokenizer_;
  bool skip_special_;
  StageChain chain_;
};

PipelineTokenizer::PipelineTokenizer(PipelineParts parts) : parts_(std::move(parts)) {
  parts_.added.finish([this](std::string_view content) {
    std::string text(content);
    RegexBudget budget;
    try {
      normalize(parts_.normalizers, text, budget);
    } catch (const Error& error) {
      throw Error(ErrorRole::kModel, error.code(), "added_tokens")
          .file("tokenizer.json")
          .found(fmt::format("\"{}\", with {}", escape_untrusted(content), error.found()))
          .expected("tokens that the normalizer can take");
    }
    return text;
  });
  vocab_size_ = parts_.model.vocabulary().end_id();
  for (const AddedToken& token : parts_.added.all()) {
    vocab_size_ = std::max(vocab_size_, std::int64_t{token.id} + 1);
  }
  const bool byte_level = std::any_of(
      parts_.decoder.begin(), parts_.decoder.end(),
      [](const DecodeStage& stage) { return stage.kind == DecodeStage::Kind::kByteLevel; });
  kind_ = byte_level ? "byte-level bpe" : "bpe";
}

std::vector<TokenId> PipelineTokenizer::encode(std::string_view text,
                                               const EncodeOptions& options) const {
  Scratch scratch(parts_.model.merges());
  std::vector<TokenId> ids;
  if (options.add_special) ids = parts_.surrounding.before;
  parts_.added.split(
      text, /*normalized=*/false, options.parse_special,
      [&](std::size_t begin, std::size_t end) {
        encode_text(text.substr(begin, end - begin), begin == 0, options.parse_special, scratch,
                    ids);
      },
      [&](TokenId id) { ids.push_back(id); });
  if (options.add_special) {
    ids.insert(ids.end(), parts_.surrounding.after.begin(), parts_.surrounding.after.end());
  }
  return ids;
}

void PipelineTokenizer::encode_text(std::string_view text, bool at_origin, bool parse_special,
                                    Scratch& scratch, std::vector<TokenId>& out) const {
  scratch.normalized.assign(text);
  normalize(parts_.normalizers, scratch.normalized, scratch.budget);
  const std::string_view normalized = scratch.normalized;
  parts_.added.split(
      normalized, /*normalized=*/true, parse_special,
      [&](std::size_t begin, std::size_t end) {
        Pieces& pieces = scratch.pieces;
        pieces.clear();
        pieces.add(normalized.substr(begin, end - begin));
        pieces.at_origin = at_origin && begin == 0;
        pre_tokenize(parts_.pre_tokenizers, pieces, scratch.other, scratch.budget);
        for (std::size_t i = 0; i < pieces.size(); ++i) {
          parts_.model.encode(pieces[i], scratch.merger, out);
        }
      },
      [&](TokenId id) { out.push_back(id); });
}

std::unique_ptr<TextDecoder> PipelineTokenizer::new_decoder(bool skip_special) const {
  return std::make_unique<Decoder>(*this, skip_special);
}

std::string_view PipelineTokenizer::token_text(TokenId id) const {
  const AddedToken* added = parts_.added.by_id(id);
  return added != nullptr ? std::string_view(added->shown) : parts_.model.vocabulary().text(id);
}

std::string PipelineTokenizer::token_bytes(TokenId id) const {
  return decoded_token_bytes(parts_.decoder, token_text(id));
}

bool PipelineTokenizer::is_special(TokenId id) const {
  const AddedToken* added = parts_.added.by_id(id);
  return added != nullptr && added->special;
}

}  // namespace triphase
