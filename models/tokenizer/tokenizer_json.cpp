#include "models/tokenizer/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "models/tokenizer/json_components.h"
#include "models/tokenizer/pipeline_tokenizer.h"

namespace triphase {
namespace {

// Id of a token text among added tokens and vocabulary.
TokenId find_token(const AddedTokens& added, const Vocabulary& vocabulary,
                   std::string_view content) {
  if (const AddedToken* token = added.by_content(content)) return token->id;
  return vocabulary.find(content);
}

// What to say of tokens that are not used, by id.
using UnusedTokens = std::map<TokenId, std::string>;

// A prompt must not hold a token that the model has no row for.
bool leave_out(const AddedToken& token, std::int64_t embedding_rows, UnusedTokens& unused) {
  if (token.id < embedding_rows) return false;
  unused.emplace(token.id, fmt::format("tokenizer: \"{}\" (id {}) has no embedding row; left out",
                                       escape_untrusted(token.content), token.id));
  return true;
}

// The added tokens of tokenizer.json: new ids and texts, or vocabulary entries under their own id.
void parse_added_tokens(const JsonField& field, const Vocabulary& vocabulary,
                        std::int64_t embedding_rows, AddedTokens& added, UnusedTokens& unused) {
  if (field.absent()) return;
  for (std::size_t i = 0; i < field.array().size(); ++i) {
    const JsonField entry = field.element(i);
    AddedToken token = parse_added_token(entry);
    token.id = entry.member("id").token_id();
    const TokenId known = find_token(added, vocabulary, token.content);
    const bool id_taken = vocabulary.contains(token.id) || added.by_id(token.id) != nullptr;
    if (known == kNoToken ? id_taken : known != token.id) {
      throw entry.member("id")
          .error("E-TOK-ID", "ids that agree with the vocabulary")
          .found(known == kNoToken ? fmt::format("id {}, which another token has", token.id)
                                   : fmt::format("id {} for \"{}\", which has id {}", token.id,
                                                 escape_untrusted(token.content), known));
    }
    if (leave_out(token, embedding_rows, unused)) continue;
    if (added.by_id(token.id) == nullptr) added.add(std::move(token));
  }
}

// What the files beside tokenizer.json say of tokens. As in transformers, its ids win, but flags in
// tokenizer_config.json and what roles the tokens have.
void add_sidecar_tokens(const TokenizerSidecar& sidecar, const Vocabulary& vocabulary,
                        std::int64_t embedding_rows, AddedTokens& added, UnusedTokens& unused) {
  const auto add = [&](const AddedToken& token, bool flags_win) {
    const TokenId known = find_token(added, vocabulary, token.content);
    const bool id_taken = vocabulary.contains(token.id) || added.by_id(token.id) != nullptr;
    if (known == kNoToken ? id_taken : known != token.id) {
      unused.emplace(
          token.id,
          fmt::format(
              "tokenizer: \"{}\" has id {} in the files beside the tokenizer and {}; that is used",
              escape_untrusted(token.content), token.id,
              known == kNoToken ? "another token has it in the tokenizer"
                                : fmt::format("{} in the tokenizer", known)));
      return;
    }
    if (leave_out(token, embedding_rows, unused)) return;
    if (added.by_id(token.id) == nullptr) {
      added.add(token);
    } else if (flags_win) {
      added.replace(token);
    }
  };
  for (const AddedToken& token : sidecar.added) add(token, true);
  for (const AddedToken& token : sidecar.listed) add(token, false);
  for (const std::string& content : sidecar.special) {
    const TokenId id = find_token(added, vocabulary, content);
    if (id == kNoToken) continue;
    if (added.by_id(id) == nullptr) {
      added.add(special_token(content, id));
    } else {
      added.mark_special(id);
    }
  }
}

void note_unused(const UnusedTokens& unused, Notes& notes) {
  constexpr std::size_t kMost = 5;
  const std::size_t shown = std::min(unused.size(), kMost);
  auto token = unused.begin();
  for (std::size_t i = 0; i < shown; ++i) notes.push_back((token++)->second);
  if (shown < unused.size()) {
    notes.push_back(fmt::format("tokenizer: {} more tokens likewise", unused.size() - shown));
  }
}

std::optional<TokenId> role_token(const TokenizerSidecar& sidecar, std::string_view role,
                                  const AddedTokens& added, const Vocabulary& vocabulary) {
  const auto found = sidecar.roles.find(role);
  if (found == sidecar.roles.end()) return std::nullopt;
  const TokenId id = find_token(added, vocabulary, found->second);
  return id == kNoToken ? std::nullopt : std::optional(id);
}

void note_unused_flags(const TokenizerSidecar& sidecar, const Surrounding& surrounding,
                       Notes& notes) {
  const auto note = [&](std::string_view name, std::optional<bool> flag, bool added) {
    if (flag.value_or(added) == added) return;
    notes.push_back(
        fmt::format("tokenizer: {} of tokenizer_config.json is ignored: tokenizer.json decides, as "
                    "in transformers 5",
                    name));
  };
  note("add_bos_token", sidecar.add_bos_token, !surrounding.before.empty());
  note("add_eos_token", sidecar.add_eos_token, !surrounding.after.empty());
}

void check_surrounding(const PipelineParts& parts) {
  for (const auto* ids : {&parts.surrounding.before, &parts.surrounding.after}) {
    for (const TokenId id : *ids) {
      if (parts.model.vocabulary().contains(id) || parts.added.by_id(id) != nullptr) continue;
      throw Error(ErrorRole::kModel, "E-TOK-TEMPLATE", "post_processor")
          .file("tokenizer.json")
          .found(fmt::format("token id {}", id))
          .expected("ids of the tokenizer");
    }
  }
}

std::optional<TokenId> find_bos(const TokenizerSidecar& sidecar, const PipelineParts& parts,
                                const ModelConfig& config) {
  const Vocabulary& vocabulary = parts.model.vocabulary();
  if (const auto bos = role_token(sidecar, "bos_token", parts.added, vocabulary)) return bos;
  if (parts.surrounding.before.size() == 1) return parts.surrounding.before[0];
  if (config.bos_id && (vocabulary.contains(*config.bos_id) || parts.added.by_id(*config.bos_id))) {
    return *config.bos_id;
  }
  return std::nullopt;
}

}  // namespace

std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view text, std::string_view file,
                                               const TokenizerSidecar& sidecar,
                                               const ModelConfig& config, Notes& notes) {
  const Json document = parse_json_file(text, file, ErrorRole::kModel, "E-TOK-JSON");
  const JsonField root(&document, "", file);
  if (!document.is_object()) throw root.error("E-TOK-FORMAT", "an object");
  PipelineParts parts{{},
                      parse_normalizer(root.member("normalizer")),
                      parse_pre_tokenizer(root.member("pre_tokenizer")),
                      parse_bpe_model(root.member("model"), config.vocab_size),
                      parse_post_processor(root.member("post_processor")),
                      parse_decoder(root.member("decoder")),
                      std::nullopt};
  UnusedTokens unused;
  parse_added_tokens(root.member("added_tokens"), parts.model.vocabulary(), config.vocab_size,
                     parts.added, unused);
  add_sidecar_tokens(sidecar, parts.model.vocabulary(), config.vocab_size, parts.added, unused);
  note_unused(unused, notes);
  for (const std::string_view setting : {"truncation", "padding"}) {
    if (!root.member(setting).absent()) {
      notes.push_back(fmt::format("tokenizer: {} of tokenizer.json is not applied", setting));
    }
  }
  parts.bos = find_bos(sidecar, parts, config);
  // transformers 5 makes CodeLlama's template anew; all others are those of tokenizer.json.
  if (sidecar.tokenizer_class == "CodeLlamaTokenizer" && parts.bos) {
    parts.surrounding = {{*parts.bos}, {}};
  }
  note_unused_flags(sidecar, parts.surrounding, notes);
  check_surrounding(parts);
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

std::unique_ptr<Tokenizer> tokenizer_from_vocabulary(std::string_view vocabulary_text,
                                                     std::string_view merges_text,
                                                     const TokenizerSidecar& sidecar,
                                                     const ModelConfig& config, Notes& notes) {
  const Json document =
      parse_json_file(vocabulary_text, "vocab.json", ErrorRole::kModel, "E-TOK-JSON");
  const JsonField root(&document, "", "vocab.json");
  const bool qwen = sidecar.tokenizer_class == "Qwen2Tokenizer" ||
                    (sidecar.tokenizer_class.empty() && config.model_type.starts_with("qwen"));
  const bool opt = config.model_type == "opt";

  Normalizers normalizers;
  PreTokenizers pre_tokenizers;
  if (qwen) {
    normalizers.push_back(make_unicode_normalizer(UnicodeForm::kNfc));
    pre_tokenizers.push_back(make_split(Regex::compile(kQwen2Pattern, "vocab.json", "pattern"),
                                        SplitBehavior::kIsolated, false));
  }
  pre_tokenizers.push_back(
      make_byte_level(sidecar.add_prefix_space.value_or(false), /*use_regex=*/!qwen));
  DecodeStages decoder;
  decoder.push_back(DecodeStage{DecodeStage::Kind::kByteLevel, {}, {}, 0, 0});
  PipelineParts parts{{},
                      std::move(normalizers),
                      std::move(pre_tokenizers),
                      parse_vocabulary_and_merges(root, merges_text, config.vocab_size),
                      {},
                      std::move(decoder),
                      std::nullopt};

  TokenizerSidecar known = sidecar;
  if (known.special.empty()) {
    // The directory names no special tokens: those that the family's own files would name.
    known.special =
        opt ? std::vector<std::string>{"</s>", "<pad>"} : std::vector<std::string>{"<|endoftext|>"};
  }
  if (!known.roles.contains("bos_token")) {
    known.roles.emplace("bos_token", opt ? "</s>" : "<|endoftext|>");
  }
  UnusedTokens unused;
  add_sidecar_tokens(known, parts.model.vocabulary(), config.vocab_size, parts.added, unused);
  note_unused(unused, notes);
  parts.bos = find_bos(known, parts, config);
  if (known.add_bos_token.value_or(opt) && parts.bos) parts.surrounding.before = {*parts.bos};
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace triphase
