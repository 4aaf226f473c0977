// What tokenizer.json and the files beside it decide where they disagree.

#include <gtest/gtest.h>

#include "models/tokenizer/tokenizer.h"
#include "tests/unit/tokenizer/case_file.h"
#include "tests/unit/tokenizer/model_builder.h"

namespace triphase {
namespace {

std::unique_ptr<Tokenizer> load(const std::string& tokenizer, const std::string& config,
                                Notes& notes, const std::string& map = "{}") {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", tokenizer);
  folder.write("tokenizer_config.json", config);
  folder.write("special_tokens_map.json", map);
  return load_tokenizer(folder.path(), config_with_vocabulary(100, "llama"), notes);
}

// As transformers 5 has it, which wrote such files itself.
TEST(TokenizerSidecar, TokenizerJsonDecidesWhateverClassAndFlagsSay) {
  JsonSpec spec;
  std::string name = "LlamaTokenizer";
  std::vector<TokenId> ids;
  // Reads into `ids`, and names the flags that a note says are ignored.
  const auto ignored = [&](const std::string& flags) {
    Notes notes;
    const std::string config =
        R"({"tokenizer_class":")" + name + R"(","bos_token":"b","eos_token":"c")" + flags + "}";
    ids = load(spec.text(), config, notes)->encode("a", {});
    std::string names;
    for (const std::string& note : notes) {
      if (note.find(" of tokenizer_config.json is ignored") == std::string::npos) continue;
      names += note.substr(0, note.find(" of ")) + ";";
    }
    return names;
  };
  const auto surrounded = [](const std::string& front) {
    return R"({"type":"TemplateProcessing","single":[)" + front +
           R"({"Sequence":{"id":"A","type_id":0}}],"pair":[],)"
           R"("special_tokens":{"b":{"id":"b","ids":[1],"tokens":["b"]}}})";
  };
  for (const std::string& none :
       {surrounded(""), std::string(R"({"type":"ByteLevel","trim_offsets":true})"),
        std::string("null")}) {
    spec.post_processor = none;
    EXPECT_EQ(ignored(""), "");
    EXPECT_EQ(ids, (std::vector<TokenId>{0})) << none;
    EXPECT_EQ(ignored(R"(,"add_bos_token":true,"add_eos_token":true)"),
              "tokenizer: add_bos_token;tokenizer: add_eos_token;");
    EXPECT_EQ(ids, (std::vector<TokenId>{0})) << none;
  }
  spec.post_processor = surrounded(R"({"SpecialToken":{"id":"b","type_id":0}},)");
  EXPECT_EQ(ignored(R"(,"add_bos_token":true,"add_eos_token":false)"), "");
  EXPECT_EQ(ids, (std::vector<TokenId>{1, 0}));
  EXPECT_EQ(ignored(R"(,"add_bos_token":false)"), "tokenizer: add_bos_token;");
  EXPECT_EQ(ids, (std::vector<TokenId>{1, 0}));
  // But of CodeLlama, whose texts begin with BOS.
  name = "CodeLlamaTokenizerFast";
  for (const std::string& any : {std::string("null"), surrounded("")}) {
    spec.post_processor = any;
    EXPECT_EQ(ignored(R"(,"add_eos_token":true)"), "tokenizer: add_eos_token;");
    EXPECT_EQ(ids, (std::vector<TokenId>{1, 0})) << any;
  }
}

TEST(TokenizerSidecar, TheMapWinsOverAConfigWithoutAddedTokensDecoder) {
  const auto bos = [](const std::string& config) {
    Notes notes;
    const auto tokenizer =
        load(JsonSpec{}.text(), R"({"bos_token":"a","eos_token":"b")" + config + "}", notes,
             R"({"bos_token":{"content":"c"}})");
    EXPECT_TRUE(tokenizer->is_special(*tokenizer->bos()) && tokenizer->is_special(1));
    EXPECT_FALSE(tokenizer->is_special(2 - *tokenizer->bos()));  // the token of the other file
    return tokenizer->bos();
  };
  EXPECT_EQ(bos(""), std::optional<TokenId>(2));
  EXPECT_EQ(bos(R"(,"added_tokens_decoder":{})"), std::optional<TokenId>(0));
}

}  // namespace
}  // namespace triphase
