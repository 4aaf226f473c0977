#include "models/tokenizer/text_decoder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"
#include "models/tokenizer/byte_level.h"
#include "models/tokenizer/characters.h"
#include "models/tokenizer/normalizer.h"

namespace triphase {
namespace {

// Hex digits of either case here, as Hugging Face's decoder reads them.
std::optional<std::uint8_t> lenient_fallback_byte(std::string_view token) {
  if (token.size() != 6) return std::nullopt;
  std::string upper(token);
  for (const std::size_t i : {3U, 4U}) {
    if (upper[i] >= 'a' && upper[i] <= 'f') upper[i] = static_cast<char>(upper[i] - 'a' + 'A');
  }
  return fallback_byte(upper);
}

// Bytes of an unfinished character at the end of `text`: the last three at most.
std::size_t begun_character(std::string_view text) {
  std::size_t begun = 0;
  for (std::size_t tail = 1; tail <= std::min<std::size_t>(3, text.size()); ++tail) {
    if (is_utf8_prefix(text.substr(text.size() - tail))) begun = tail;
  }
  return begun;
}

}  // namespace

bool is_utf8_prefix(std::string_view text) {
  if (text.empty() || text.size() >= 4) return false;
  // A prefix is what some completion makes well-formed; trail bytes at both ends of the ranges of
  // second bytes (U+D800 and overlong forms) decide.
  for (const char trail : {'\x80', '\x90', '\xBF'}) {
    std::string candidate(text);
    while (candidate.size() < 4) {
      candidate.push_back(trail);
      if (utf8_sequence_length(candidate, 0) == candidate.size()) return true;
    }
  }
  return false;
}

void drain_utf8(std::string& pending, std::string& out) {
  const std::size_t settled = pending.size() - begun_character(pending);
  out += replace_invalid_utf8(std::string_view(pending).substr(0, settled));
  pending.erase(0, settled);
}

// Takes tokens, gives tokens to the next stage (or text to `out` at the end of the chain).
class StageChain::Stage {
 public:
  Stage(const DecodeStage& rule, bool fused) : rule_(&rule), fused_(fused) {}
  void set_next(Stage* next) { next_ = next; }

  void push(std::string_view token, std::string& out) {
    switch (rule_->kind) {
      case DecodeStage::Kind::kByteLevel: {
        const std::optional<std::string> bytes = byte_level_bytes(token);
        if (bytes) {
          pending_ += *bytes;
        } else {
          pending_ += token;
        }
        std::string settled;
        drain_utf8(pending_, settled);
        if (!settled.empty()) emit(settled, out);
        break;
      }
      case DecodeStage::Kind::kByteFallback:
        if (const std::optional<std::uint8_t> byte = lenient_fallback_byte(token)) {
          pending_.push_back(static_cast<char>(*byte));
        } else {
          end_byte_run(out);
          emit(token, out);
        }
        break;
      case DecodeStage::Kind::kSpaceMark:
        emit(replace_each(token, rule_->content, rule_->start != 0 && first_ ? "" : " "), out);
        break;
      case DecodeStage::Kind::kReplace:
        emit(replaced(token, rule_->pattern[0], rule_->content, budget_), out);
        break;
      case DecodeStage::Kind::kStrip:
        strip(token, out);
        break;
      case DecodeStage::Kind::kFuse:
        emit(token, out);
        break;
      case DecodeStage::Kind::kSpaceJoin:
        if (!first_) emit(" ", out);
        emit(token, out);
        break;
    }
    first_ = false;
  }

  // Of a run of bytes, where it is UTF-8 so far.
  [[nodiscard]] std::string_view held() const {
    const bool run = rule_->kind == DecodeStage::Kind::kByteFallback && !malformed_;
    return run && first_invalid_utf8(pending_) == std::string_view::npos ? pending_
                                                                         : std::string_view();
  }

  void begin_text(std::string& out) {
    if (rule_->kind == DecodeStage::Kind::kByteFallback) end_characters(out);
    if (next_ != nullptr) next_->begin_text(out);
  }

  void finish(std::string& out) {
    switch (rule_->kind) {
      case DecodeStage::Kind::kByteLevel:
        if (!pending_.empty()) emit(replace_invalid_utf8(pending_), out);
        break;
      case DecodeStage::Kind::kByteFallback:
        end_byte_run(out);
        break;
      default:
        // Trailing characters to strip are in pending_ and end with it.
        break;
    }
    pending_.clear();
    if (next_ != nullptr) next_->finish(out);
  }

 private:
  void emit(std::string_view token, std::string& out) {
    if (next_ != nullptr) {
      next_->push(token, out);
    } else {
      out.append(token);
    }
  }

  // A run is text only when all of it is UTF-8; otherwise each of its bytes is U+FFFD.
  void end_byte_run(std::string& out) {
    emit_bytes(pending_, out);
    pending_.clear();
    malformed_ = false;
  }
  // Of a run that may go on, all but a character that it only begins.
  void end_characters(std::string& out) {
    const std::size_t settled = pending_.size() - begun_character(pending_);
    emit_bytes(std::string_view(pending_).substr(0, settled), out);
    pending_.erase(0, settled);
  }
  void emit_bytes(std::string_view bytes, std::string& out) {
    if (bytes.empty()) return;
    malformed_ = malformed_ || first_invalid_utf8(bytes) != std::string_view::npos;
    if (!malformed_) return emit(bytes, out);
    for (std::size_t i = 0; i < bytes.size(); ++i) emit("\xEF\xBF\xBD", out);
  }

  void strip(std::string_view token, std::string& out) {
    const std::string& content = rule_->content;
    if (!fused_) stripped_ = 0;
    if (!fused_ || stripping_) {
      while (stripped_ < rule_->start && token.starts_with(content)) {
        token.remove_prefix(content.size());
        ++stripped_;
      }
      if (!token.empty()) stripping_ = false;
    }
    if (!fused_) {
      for (std::uint32_t i = 0; i < rule_->stop && token.ends_with(content); ++i) {
        token.remove_suffix(content.size());
      }
      emit(token, out);
      return;
    }
    // One text in parts: its last characters wait, as they may be its end.
    pending_ += token;
    std::size_t keep = 0;
    for (std::uint32_t i = 0; i < rule_->stop; ++i) {
      if (!std::string_view(pending_).substr(0, pending_.size() - keep).ends_with(content)) break;
      keep += content.size();
    }
    emit(std::string_view(pending_).substr(0, pending_.size() - keep), out);
    pending_.erase(0, pending_.size() - keep);
  }

  const DecodeStage* rule_;
  bool fused_;  // the tokens that arrive are parts of one text
  Stage* next_ = nullptr;
  bool first_ = true;
  std::string pending_;
  bool malformed_ = false;  // of a byte run, what begin_text() ended
  std::uint32_t stripped_ = 0;
  bool stripping_ = true;
  RegexBudget budget_;
};

StageChain::StageChain(const DecodeStages& stages) {
  bool fused = false;
  for (const DecodeStage& rule : stages) {
    stages_.push_back(std::make_unique<Stage>(rule, fused));
    fused = fused || rule.kind == DecodeStage::Kind::kFuse ||
            rule.kind == DecodeStage::Kind::kByteLevel;
  }
  for (std::size_t i = 0; i + 1 < stages_.size(); ++i) stages_[i]->set_next(stages_[i + 1].get());
}

StageChain::~StageChain() = default;

void StageChain::push(std::string_view token, std::string& out) { stages_[0]->push(token, out); }

std::string_view StageChain::held() const {
  for (const std::unique_ptr<Stage>& stage : stages_) {
    if (const std::string_view held = stage->held(); !held.empty()) return held;
  }
  return {};
}

void StageChain::begin_text(std::string& out) { stages_[0]->begin_text(out); }

void StageChain::finish(std::string& out) { stages_[0]->finish(out); }

std::string decoded_token_bytes(const DecodeStages& stages, std::string_view token) {
  std::string text(token);
  RegexBudget budget;
  for (const DecodeStage& rule : stages) {
    switch (rule.kind) {
      case DecodeStage::Kind::kByteLevel:
        if (std::optional<std::string> bytes = byte_level_bytes(text)) text = std::move(*bytes);
        break;
      case DecodeStage::Kind::kByteFallback:
        if (const std::optional<std::uint8_t> byte = lenient_fallback_byte(text)) {
          return {static_cast<char>(*byte)};
        }
        break;
      case DecodeStage::Kind::kSpaceMark:
        text = replace_each(text, rule.content, " ");
        break;
      case DecodeStage::Kind::kReplace:
        text = replaced(text, rule.pattern[0], rule.content, budget);
        break;
      case DecodeStage::Kind::kStrip:
      case DecodeStage::Kind::kFuse:
      case DecodeStage::Kind::kSpaceJoin:
        break;
    }
  }
  return text;
}

}  // namespace triphase
