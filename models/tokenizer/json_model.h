#pragma once

// The "model" of a tokenizer.json, and vocab.json with merges.txt: a BPE vocabulary and its merges
// out of untrusted text. Every id, merge and merge result is checked before use.

#include <cstdint>
#include <string_view>

#include "models/tokenizer/bpe_model.h"
#include "models/tokenizer/json_field.h"

namespace triphase {

// Ids must be below the number of embedding rows, or the model could not take them.
struct IdLimit {
  std::int64_t embedding_rows = 0;
  // Throws E-TOK-ID for ids outside [0, 2^31) and E-TOK-SIZE for those without a row.
  void check(std::int64_t id, const JsonField& field) const;
};

// {"token": id, ...}
[[nodiscard]] Vocabulary parse_vocabulary(const JsonField& field, const IdLimit& limit);

// Adds the merge of two tokens. `field` and `index` (from 0) are for messages. Throws E-TOK-MERGE.
void add_merge(std::string_view left, std::string_view right, const Vocabulary& vocabulary,
               std::size_t index, const JsonField& field, MergeTable& merges);

// The "model" member of a tokenizer.json.
[[nodiscard]] BpeModel parse_bpe_model(const JsonField& field, const IdLimit& limit);

// vocab.json (parsed) and merges.txt (its text): GPT-2's form.
[[nodiscard]] BpeModel parse_vocabulary_and_merges(const JsonField& vocabulary,
                                                   std::string_view merges_text,
                                                   std::string_view merges_file,
                                                   const IdLimit& limit);

}  // namespace triphase
