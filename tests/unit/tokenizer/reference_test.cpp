// Identical ids and texts to Hugging Face tokenizers and sentencepiece: on the committed fixtures,
// and on outside data where TRIPHASE_TEST_DATA and TRIPHASE_TOKENIZER_EXPECTED name it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "tests/unit/tokenizer/case_file.h"

namespace triphase {
namespace {

class CommittedTokenizer : public testing::TestWithParam<const char*> {};

TEST_P(CommittedTokenizer, EncodesAndDecodesAsItsReference) {
  const std::string folder =
      std::string(TRIPHASE_TEST_SOURCE_DIR) + "/tests/fixtures/tokenizer/" + GetParam();
  Notes notes;
  const auto tokenizer = load_tokenizer(folder, config_with_vocabulary(2000), notes);
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<TokenizerCase> cases = read_cases(folder + "/cases.jsonl");
  const CaseCounts counts = compare_with_cases(*tokenizer, cases);
  EXPECT_GE(counts.encoded, 200);
  EXPECT_GE(counts.decoded, 200);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CommittedTokenizer,
                         testing::Values("llama3", "qwen2", "neox", "gpt2", "sp-bpe", "sp-gemma",
                                         "sp-unigram", "sp-bpe-nfkc", "sp-bpe-suffix",
                                         "llama2-json", "mistral-json", "metaspace-json",
                                         "gemma-json"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

struct OutsideTokenizer {
  const char* folder;
  const char* expected;
  std::int64_t vocab_size;
  const char* model_type;
};

class OutsideData : public testing::TestWithParam<OutsideTokenizer> {};

bool exists(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "r");
  if (file != nullptr) std::fclose(file);
  return file != nullptr;
}

TEST_P(OutsideData, EncodesAndDecodesAsItsReference) {
  const char* data = std::getenv("TRIPHASE_TEST_DATA");
  const char* expected = std::getenv("TRIPHASE_TOKENIZER_EXPECTED");
  if (data == nullptr) GTEST_SKIP() << "TRIPHASE_TEST_DATA names no folder of test data";
  if (expected == nullptr) {
    GTEST_SKIP() << "TRIPHASE_TOKENIZER_EXPECTED names no folder written by "
                    "tools/lab/make_tokenizer_fixtures.py expected";
  }
  const std::string cases_path = std::string(expected) + "/" + GetParam().expected + ".jsonl";
  if (!exists(cases_path)) GTEST_SKIP() << cases_path << " is not there";
  Notes notes;
  const auto tokenizer =
      load_tokenizer(std::string(data) + "/tokenizers/" + GetParam().folder,
                     config_with_vocabulary(GetParam().vocab_size, GetParam().model_type), notes);
  ASSERT_NE(tokenizer, nullptr);
  const CaseCounts counts = compare_with_cases(*tokenizer, read_cases(cases_path));
  std::cout << GetParam().expected << ": " << counts.encoded << " texts encoded to "
            << counts.tokens << " ids, " << counts.decoded
            << " lists of ids decoded and streamed\n";
  EXPECT_GE(counts.encoded, 20'000);
}

// 20,000 random Unicode strings through each committed tokenizer; too large to be committed.
TEST_P(CommittedTokenizer, EncodesRandomStringsAsItsReference) {
  const char* expected = std::getenv("TRIPHASE_TOKENIZER_EXPECTED");
  if (expected == nullptr) {
    GTEST_SKIP() << "TRIPHASE_TOKENIZER_EXPECTED names no folder written by "
                    "tools/lab/make_tokenizer_fixtures.py expected";
  }
  const std::string cases_path = std::string(expected) + "/small-" + GetParam() + ".jsonl";
  if (!exists(cases_path)) GTEST_SKIP() << cases_path << " is not there";
  Notes notes;
  const auto tokenizer = load_tokenizer(
      std::string(TRIPHASE_TEST_SOURCE_DIR) + "/tests/fixtures/tokenizer/" + GetParam(),
      config_with_vocabulary(2000), notes);
  ASSERT_NE(tokenizer, nullptr);
  const CaseCounts counts = compare_with_cases(*tokenizer, read_cases(cases_path));
  std::cout << GetParam() << ": " << counts.encoded << " texts encoded to " << counts.tokens
            << " ids, " << counts.decoded << " lists of ids decoded and streamed\n";
  EXPECT_GE(counts.encoded, 20'000);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, OutsideData,
                         testing::Values(OutsideTokenizer{"llama2", "llama2", 32000, "llama"},
                                         OutsideTokenizer{"llama2", "llama2-special", 32000,
                                                          "llama"},
                                         OutsideTokenizer{"neox", "neox", 50432, "gpt_neox"},
                                         OutsideTokenizer{"opt", "opt", 50272, "opt"}),
                         [](const auto& tested) {
                           std::string name = tested.param.expected;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace triphase
