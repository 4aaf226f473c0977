#pragma once

// What tokenizer_config.json, special_tokens_map.json and added_tokens.json say beside the
// tokenizer itself. Values only; nothing of them is executed (chat templates are not read).

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/files/file_reader.h"
#include "models/tokenizer/added_tokens.h"

namespace triphase {

struct TokenizerSidecar {
  std::string tokenizer_class;  // without a trailing "Fast"; empty when not said
  std::optional<bool> add_bos_token;
  std::optional<bool> add_eos_token;
  std::optional<bool> add_prefix_space;
  std::optional<bool> legacy;
  // Role ("bos_token", "pad_token", ...) to text; "additional_special_tokens" are in `special`.
  std::map<std::string, std::string, std::less<>> roles;
  std::vector<std::string> special;  // texts of all roles and additional ones, in file order
  std::vector<AddedToken> added;     // of tokenizer_config.json: with ids and flags
  std::vector<AddedToken> listed;    // of added_tokens.json: with ids alone
};

// Reads what is there; throws E-TOK-FORMAT, E-TOK-ID or E-TOK-JSON for what is malformed.
[[nodiscard]] TokenizerSidecar read_sidecar(const DirectoryHandle& directory);

// A special token that is looked for in raw text.
[[nodiscard]] AddedToken special_token(std::string content, TokenId id);

// An added-token object of tokenizer.json or tokenizer_config.json: content and flags, no id.
class JsonField;
[[nodiscard]] AddedToken parse_added_token(const JsonField& field);

}  // namespace triphase
