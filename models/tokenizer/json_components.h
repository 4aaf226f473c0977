#pragma once

// Normalizers, pre-tokenizers, decoders and post-processors of a tokenizer.json, by their type
// names. An unknown component or setting is refused with its JSON path (E-TOK-COMPONENT); none is
// ever ignored. Pure.

#include <string>
#include <vector>

#include "models/tokenizer/json_field.h"
#include "models/tokenizer/normalizer.h"
#include "models/tokenizer/pretokenizer.h"
#include "models/tokenizer/text_decoder.h"

namespace triphase {

[[nodiscard]] Normalizers parse_normalizer(const JsonField& field);
[[nodiscard]] PreTokenizers parse_pre_tokenizer(const JsonField& field);
[[nodiscard]] DecodeStages parse_decoder(const JsonField& field);

// What a post-processor puts around the ids of one text.
struct Surrounding {
  std::vector<TokenId> before;
  std::vector<TokenId> after;
};
[[nodiscard]] Surrounding parse_post_processor(const JsonField& field);

}  // namespace triphase
