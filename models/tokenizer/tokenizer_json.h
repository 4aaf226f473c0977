#pragma once

// Builds a tokenizer from a tokenizer.json, or from vocab.json and merges.txt, with what the files
// beside it say. Bytes are untrusted: every error is kModel with an E-TOK-* code.

#include <memory>
#include <string_view>

#include "models/tokenizer/json_model.h"
#include "models/tokenizer/sidecar.h"
#include "models/tokenizer/tokenizer.h"

namespace triphase {

[[nodiscard]] std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view text,
                                                             std::string_view file,
                                                             const TokenizerSidecar& sidecar,
                                                             const ModelConfig& config,
                                                             Notes& notes);

// GPT-2's two files. `config.model_type` decides what the files do not say: the pre-tokenizer of
// Qwen2, the BOS of OPT.
[[nodiscard]] std::unique_ptr<Tokenizer> tokenizer_from_vocabulary(std::string_view vocabulary_text,
                                                                   std::string_view merges_text,
                                                                   const TokenizerSidecar& sidecar,
                                                                   const ModelConfig& config,
                                                                   Notes& notes);

}  // namespace triphase
