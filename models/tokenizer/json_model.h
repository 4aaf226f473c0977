#pragma once

// The "model" of a tokenizer.json, and vocab.json with merges.txt: a BPE vocabulary and its merges
// out of untrusted text. Every id, merge and merge result is checked before use.

#include <cstdint>
#include <string_view>

#include "models/tokenizer/bpe_model.h"
#include "models/tokenizer/json_field.h"

namespace triphase {

// The "model" member of a tokenizer.json.
[[nodiscard]] BpeModel parse_bpe_model(const JsonField& field, std::int64_t embedding_rows);

// vocab.json (parsed) and merges.txt (its text): GPT-2's form.
[[nodiscard]] BpeModel parse_vocabulary_and_merges(const JsonField& vocabulary,
                                                   std::string_view merges_text,
                                                   std::int64_t embedding_rows);

}  // namespace triphase
