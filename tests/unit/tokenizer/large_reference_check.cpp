// Identical ids and texts to the references on what is too large to be committed: real tokenizers
// and 20,000 random strings. ctest does not run this; tests/fixtures/tokenizer/README.md says how.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <stdexcept>

#include "tests/unit/tokenizer/case_file.h"

namespace triphase {
namespace {

std::string folder_named_by(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr) throw std::runtime_error(std::string(variable) + " names no folder");
  return value;
}

void compare_with_reference(const Tokenizer& tokenizer, const std::string& expected) {
  const std::vector<TokenizerCase> cases =
      read_cases(folder_named_by("TRIPHASE_TOKENIZER_EXPECTED") + "/" + expected + ".jsonl");
  const CaseCounts counts = compare_with_cases(tokenizer, cases);
  std::cout << expected << ": " << counts.encoded << " texts encoded to " << counts.tokens
            << " ids, " << counts.decoded << " lists of ids decoded and streamed\n";
  EXPECT_GE(counts.encoded, 20'000);
}

std::string test_name(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

struct RealTokenizer {
  const char* folder;
  const char* expected;
  std::int64_t vocab_size;
  const char* model_type;
};

class RealTokenizers : public testing::TestWithParam<RealTokenizer> {};

TEST_P(RealTokenizers, EncodeAndDecodeAsTheirReference) {
  Notes notes;
  const auto tokenizer =
      load_tokenizer(folder_named_by("TRIPHASE_TEST_DATA") + "/tokenizers/" + GetParam().folder,
                     config_with_vocabulary(GetParam().vocab_size, GetParam().model_type), notes);
  ASSERT_NE(tokenizer, nullptr);
  compare_with_reference(*tokenizer, GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(Large, RealTokenizers,
                         testing::Values(RealTokenizer{"llama2", "llama2", 32000, "llama"},
                                         RealTokenizer{"llama2", "llama2-special", 32000, "llama"},
                                         RealTokenizer{"neox", "neox", 50432, "gpt_neox"},
                                         RealTokenizer{"opt", "opt", 50272, "opt"},
                                         RealTokenizer{"o200k", "o200k", 201088, "gpt_oss"}),
                         [](const auto& tested) { return test_name(tested.param.expected); });

class RandomStrings : public testing::TestWithParam<const char*> {};

TEST_P(RandomStrings, EncodeAndDecodeAsTheirReference) {
  Notes notes;
  const auto tokenizer =
      load_tokenizer(committed_tokenizer(GetParam()), config_with_vocabulary(2000), notes);
  ASSERT_NE(tokenizer, nullptr);
  compare_with_reference(*tokenizer, std::string("small-") + GetParam());
}

INSTANTIATE_TEST_SUITE_P(Large, RandomStrings, testing::ValuesIn(kCommittedTokenizers),
                         [](const auto& tested) { return test_name(tested.param); });

}  // namespace
}  // namespace triphase
