// Identical ids and texts to Hugging Face tokenizers and sentencepiece, on the committed fixtures.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "tests/support/paths.h"
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

// tokenizer.json is there for libraries that read nothing else, and is what triphase takes.
TEST(ShippedTokenizers, BothFilesGiveTheSameIdsAndTexts) {
  const std::string shipped = source_path("models/shipped/");
  std::vector<std::string> texts = {"",
                                    " ",
                                    "  two  spaces",
                                    "a\n\nb",
                                    "1234 5.67",
                                    "\t end ",
                                    "ends\n",
                                    "\xC3\xA9 \xE6\xBC\xA2 \xF0\x9F\x98\x80",
                                    "\xE2\x96\x81x"};
  std::ifstream prompts(shipped + "prompts.jsonl");
  JsonProblem problem;
  for (std::string line; std::getline(prompts, line);) {
    const std::optional<Json> json = parse_json(line, problem);
    ASSERT_TRUE(json && json->find("prompt") != nullptr) << line;
    texts.push_back(*json->find("prompt")->string());
  }
  ASSERT_GE(texts.size(), 30U);
  for (const char* name : {"triphase-mha", "triphase-gqa"}) {
    const std::string folder = ::testing::TempDir() + "shipped-" + name;
    std::filesystem::create_directories(folder);
    for (const char* file : {"tokenizer.model", "tokenizer_config.json"}) {
      std::filesystem::copy_file(shipped + name + "/" + file, folder + "/" + file,
                                 std::filesystem::copy_options::overwrite_existing);
    }
    Notes notes;
    const auto json = load_tokenizer(shipped + name, config_with_vocabulary(2048), notes);
    const auto sentencepiece = load_tokenizer(folder, config_with_vocabulary(2048), notes);
    EXPECT_NE(json->kind(), sentencepiece->kind());
    for (const std::string& text : texts) {
      const std::vector<TokenId> ids = sentencepiece->encode(text, {});
      EXPECT_EQ(json->encode(text, {}), ids) << text;
      EXPECT_EQ(json->decode(ids, true), sentencepiece->decode(ids, true)) << text;
      const std::span all(ids);
      for (std::size_t at = 0; at <= ids.size(); ++at) {
        EXPECT_EQ(streamed(*json, all.subspan(at), all.first(at)),
                  streamed(*sentencepiece, all.subspan(at), all.first(at)))
            << text << ", after " << at;
      }
    }
    std::filesystem::remove_all(folder);
  }
}

// Whether text may end where it is must not wait for the token after a run of bytes.
TEST(ShippedTokenizers, ALineBreakIsHeldAtOnce) {
  Notes notes;
  const auto tokenizer = load_tokenizer(source_path("models/shipped/triphase-mha"),
                                        config_with_vocabulary(2048), notes);
  const std::unique_ptr<TextDecoder> decoder = make_stream_decoder(*tokenizer);
  std::string text;
  for (const TokenId id : tokenizer->encode("a\n\n", {})) decoder->push(id, text);
  EXPECT_EQ(text + std::string(decoder->held()), "a\n\n");
  EXPECT_FALSE(decoder->held().empty());
}

}  // namespace
}  // namespace triphase
