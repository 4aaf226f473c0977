#pragma once

// A tokenizer.model (SentencePiece BPE or unigram) with the semantics of Hugging Face's LLaMA
// tokenizer: special-token text is cut out of the prompt first, BOS goes in front.

#include <memory>
#include <string>

#include "models/tokenizer/sidecar.h"
#include "models/tokenizer/tokenizer.h"

namespace triphase {

// `bytes` is the content of tokenizer.model. Throws kModel E-TOK-*.
[[nodiscard]] std::unique_ptr<Tokenizer> tokenizer_from_sentencepiece(
    std::string bytes, std::string_view file, const TokenizerSidecar& sidecar,
    const ModelConfig& config, Notes& notes);

}  // namespace triphase
