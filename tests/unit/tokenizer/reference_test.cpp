// Identical ids and texts to Hugging Face tokenizers and sentencepiece, on the committed fixtures.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/tokenizer/case_file.h"

namespace triphase {
namespace {

class CommittedTokenizer : public testing::TestWithParam<const char*> {};

TEST_P(CommittedTokenizer, EncodesAndDecodesAsItsReference) {
  const std::string folder = committed_tokenizer(GetParam());
  Notes notes;
  const auto tokenizer = load_tokenizer(folder, config_with_vocabulary(2000), notes);
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<TokenizerCase> cases = read_cases(folder + "/cases.jsonl");
  const CaseCounts counts = compare_with_cases(*tokenizer, cases);
  EXPECT_GE(counts.encoded, 200);
  EXPECT_GE(counts.decoded, 200);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CommittedTokenizer, testing::ValuesIn(kCommittedTokenizers),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace triphase
