#include "models/tokenizer/sentencepiece_text.h"

#include <utility>

#include "models/tokenizer/byte_level.h"
#include "models/tokenizer/characters.h"

namespace triphase {

SentencePieceText::SentencePieceText(const SentencePieceModel& model) : model_(&model) {
  if (!model.charsmap.empty()) charsmap_ = Charsmap::parse(model.charsmap);
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceEntry& piece = model.pieces[id];
    if (const auto byte = fallback_byte(piece.text); byte && piece.type == PieceType::kByte) {
      byte_ids_[*byte] = static_cast<TokenId>(id);
    }
    if (piece.type == PieceType::kUserDefined) {
      user_defined_.add(piece.text, static_cast<std::uint32_t>(id));
    }
  }
}

std::string_view SentencePieceText::prefix(std::string_view text, std::size_t position,
                                           std::size_t& length) const {
  std::uint32_t id = 0;
  length = user_defined_.longest(text, position, id);
  if (length == 0 && charsmap_) {
    std::string_view replacement;
    length = charsmap_->longest(text, position, replacement);
    if (length != 0) return replacement;
  }
  if (length == 0) length = character_length(text, position);
  return text.substr(position, length);
}

std::string SentencePieceText::normalized(std::string_view text, bool dummy_prefix) const {
  const std::string_view space = model_->escape_whitespaces ? kMetaspace : std::string_view(" ");
  std::size_t at = 0;
  std::size_t length = 0;
  if (model_->remove_extra_whitespaces) {
    while (at < text.size() && prefix(text, at, length) == " ") at += length;
  }
  std::string out;
  if (at == text.size()) return out;
  out.reserve(text.size() + text.size() / 2);
  if (dummy_prefix && !model_->whitespace_as_suffix) out.append(space);
  bool after_space = model_->remove_extra_whitespaces;
  for (; at < text.size(); at += length) {
    std::string_view part = prefix(text, at, length);
    while (after_space && part.starts_with(' ')) part.remove_prefix(1);
    for (const char c : part) {
      if (c == ' ') {
        out.append(space);
      } else {
        out.push_back(c);
      }
    }
    if (!part.empty()) after_space = model_->remove_extra_whitespaces && part.ends_with(' ');
  }
  if (model_->remove_extra_whitespaces) {
    while (out.ends_with(space)) out.erase(out.size() - space.size());
  }
  if (dummy_prefix && model_->whitespace_as_suffix) out.append(space);
  return out;
}

void SentencePieceText::append_unknown(std::string_view character, bool& after_unknown,
                                       std::vector<TokenId>& out) const {
  if (model_->byte_fallback) {
    for (const char c : character) out.push_back(byte_ids_[static_cast<unsigned char>(c)]);
    return;
  }
  if (!std::exchange(after_unknown, true)) out.push_back(model_->unknown_id);
}

}  // namespace triphase
