#pragma once

// Reads cases.jsonl files of tools/lab/make_tokenizer_fixtures.py and compares a tokenizer with
// them.

#include <cstdint>
#include <string>
#include <vector>

#include "models/tokenizer/tokenizer.h"

namespace triphase {

// The folders under tests/fixtures/tokenizer.
inline constexpr const char* kCommittedTokenizers[] = {
    "llama3",        "qwen2",       "o200k",        "neox",           "falcon",
    "gpt2",          "sp-bpe",      "sp-gemma",     "sp-unigram",     "sp-bpe-nfkc",
    "sp-bpe-suffix", "llama2-json", "mistral-json", "metaspace-json", "gemma-json"};

[[nodiscard]] std::string committed_tokenizer(const std::string& name);

struct TokenizerCase {
  std::string text;
  std::vector<TokenId> ids;
  std::string decoded;  // skip_special
  std::string shown;    // with special tokens
  bool has_text = false;
  bool has_shown = false;
  bool encode_only = false;
  EncodeOptions options{.add_special = false, .parse_special = true};
};

[[nodiscard]] std::vector<TokenizerCase> read_cases(const std::string& path);

struct CaseCounts {
  std::int64_t encoded = 0;
  std::int64_t decoded = 0;
  std::int64_t tokens = 0;
};

// Encodes, decodes and streams every case; each difference is a test failure (the first 20 are
// printed).
CaseCounts compare_with_cases(const Tokenizer& tokenizer, const std::vector<TokenizerCase>& cases);

// What the ids give one at a time, as the completion of a prompt of the ids `before`.
[[nodiscard]] std::string streamed(const Tokenizer& tokenizer, std::span<const TokenId> ids,
                                   std::span<const TokenId> before = {});

// A config that accepts any id below `vocab_size`.
[[nodiscard]] ModelConfig config_with_vocabulary(std::int64_t vocab_size,
                                                 const std::string& model_type = "llama");

}  // namespace triphase
