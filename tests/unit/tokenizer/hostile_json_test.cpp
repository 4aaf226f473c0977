// tokenizer.json and the files beside it as an enemy would write them: every refusal names the
// place and has its code.

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "models/tokenizer/tokenizer.h"
#include "tests/unit/tokenizer/case_file.h"
#include "tests/unit/tokenizer/model_builder.h"

namespace triphase {
namespace {

using Files = std::vector<std::pair<std::string, std::string>>;

std::unique_ptr<Tokenizer> load(const Files& files, Notes& notes, std::int64_t rows = 100,
                                const std::string& model_type = "llama") {
  const TemporaryFolder folder;
  for (const auto& [name, content] : files) folder.write(name, content);
  return load_tokenizer(folder.path(), config_with_vocabulary(rows, model_type), notes);
}

std::unique_ptr<Tokenizer> load(const JsonSpec& spec) {
  Notes notes;
  return load({{"tokenizer.json", spec.text()}}, notes);
}

std::vector<TokenId> encode(const Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.encode(text, EncodeOptions{});
}

void expect_refused(const Files& files, const std::string& code,
                    const std::vector<std::string>& parts, std::int64_t rows = 100) {
  Notes notes;
  try {
    load(files, notes, rows);
    ADD_FAILURE() << "not refused, expected " << code;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_EQ(error.role(), ErrorRole::kModel) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(error.message().find(part), std::string::npos) << error.what() << " lacks " << part;
    }
  }
}

void expect_json_refused(const JsonSpec& spec, const std::string& code,
                         const std::vector<std::string>& parts) {
  expect_refused({{"tokenizer.json", spec.text()}}, code, parts);
}

TEST(TokenizerJson, PlainFileWorks) {
  const auto tokenizer = load(JsonSpec{});
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(encode(*tokenizer, "abc ab"), (std::vector<TokenId>{4, 5, 3}));
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{4, 5, 3}, true), "abc ab");
  EXPECT_EQ(tokenizer->vocab_size(), 6);
  EXPECT_EQ(tokenizer->kind(), "byte-level bpe");
}

TEST(TokenizerJson, NothingThereIsNotAnError) {
  Notes notes;
  EXPECT_EQ(load({}, notes), nullptr);
}

TEST(TokenizerJson, HalfOfVocabularyAndMergesIsNamed) {
  expect_refused({{"vocab.json", "{}"}}, "E-TOK-FILE", {"merges.txt"});
  expect_refused({{"merges.txt", "a b\n"}}, "E-TOK-FILE", {"vocab.json"});
}

TEST(TokenizerJson, UnknownComponentsAreRefusedByPath) {
  JsonSpec spec;
  spec.model_type = "\"WordPiece\"";
  expect_json_refused(spec, "E-TOK-COMPONENT",
                      {"tokenizer.json: model.type: \"WordPiece\"", "BPE"});
  spec = {};
  spec.pre_tokenizer =
      R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Nonsense"}]})";
  expect_json_refused(spec, "E-TOK-COMPONENT",
                      {"pre_tokenizer.pretokenizers[1].type: \"Nonsense\""});
  spec = {};
  spec.normalizer = R"({"type":"Sequence","normalizers":[{"type":"Sequence","normalizers":[)"
                    R"({"type":"Precompiled","precompiled_charsmap":""}]}]})";
  expect_json_refused(spec, "E-TOK-COMPONENT",
                      {"normalizer.normalizers[0].normalizers[0].type", "Precompiled"});
  spec = {};
  spec.decoder = R"({"type":"WordPiece"})";
  expect_json_refused(spec, "E-TOK-COMPONENT", {"decoder.type"});
  spec = {};
  spec.decoder = R"({"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"ByteLevel"}]})";
  expect_json_refused(spec, "E-TOK-COMPONENT", {"decoder.decoders[1].type"});
  spec = {};
  spec.post_processor = R"({"type":"Nonsense"})";
  expect_json_refused(spec, "E-TOK-COMPONENT", {"post_processor.type", "BertProcessing"});
  spec = {};
  spec.pre_tokenizer = R"({"type":"Split","pattern":{"String":" "},"behavior":"Sideways"})";
  expect_json_refused(spec, "E-TOK-COMPONENT", {"pre_tokenizer.behavior", "Sideways"});
  spec = {};
  spec.model_extra = R"(,"end_of_word_suffix":"</w>")";
  expect_json_refused(spec, "E-TOK-COMPONENT", {"model.end_of_word_suffix", "</w>"});
  spec = {};
  spec.model_extra = R"(,"dropout":0.1)";
  expect_json_refused(spec, "E-TOK-COMPONENT", {"model.dropout"});
}

TEST(TokenizerJson, WrongTypesAreRefusedByPath) {
  JsonSpec spec;
  spec.vocab = "[]";
  expect_json_refused(spec, "E-TOK-FORMAT", {"model.vocab"});
  spec = {};
  spec.merges = "3";
  expect_json_refused(spec, "E-TOK-FORMAT", {"model.merges: 3"});
  spec = {};
  spec.pre_tokenizer = "7";
  expect_json_refused(spec, "E-TOK-FORMAT", {"pre_tokenizer.type"});
  spec = {};
  spec.pre_tokenizer = R"({"type":"ByteLevel","add_prefix_space":"yes"})";
  expect_json_refused(spec, "E-TOK-FORMAT", {"pre_tokenizer.add_prefix_space", "true or false"});
  expect_refused({{"tokenizer.json", "[1]"}}, "E-TOK-FORMAT", {"array of 1"});
  expect_refused({{"tokenizer.json", "{"}}, "E-TOK-JSON", {"tokenizer.json"});
  expect_refused({{"tokenizer.json", std::string(100, '[')}}, "E-TOK-JSON", {"64"});
  expect_refused({{"tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"}},
                 "E-TOK-LFS", {"git lfs pull"});
}

TEST(TokenizerJson, IdsAreChecked) {
  JsonSpec spec;
  spec.vocab = R"({"a":0,"b":0})";
  spec.merges = "[]";
  expect_json_refused(spec, "E-TOK-ID", {"model.vocab", "id 0", "\"a\""});
  for (const char* id : {"-1", "2147483648", "99999999999", "1.5", "\"1\"", "null"}) {
    spec.vocab = std::string(R"({"a":)") + id + "}";
    expect_json_refused(spec, "E-TOK-ID", {"model.vocab"});
  }
  spec.vocab = R"({"a":100})";
  expect_json_refused(spec, "E-TOK-SIZE", {"token id 100", "100 embedding rows"});
  spec.vocab = "{}";
  expect_json_refused(spec, "E-TOK-FORMAT", {"model.vocab"});
  // Gaps are normal.
  spec.vocab = R"({"a":7,"Ġ":99})";
  const auto tokenizer = load(spec);
  EXPECT_EQ(encode(*tokenizer, "a a"), (std::vector<TokenId>{7, 99, 7}));
  EXPECT_EQ(tokenizer->vocab_size(), 100);
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{7, 50, -1, 1000, 99}, true), "a ");
}

TEST(TokenizerJson, AddedTokensMustAgreeWithTheVocabulary) {
  JsonSpec spec;
  spec.added_tokens = R"([{"id":9,"content":"a","special":true}])";
  expect_json_refused(spec, "E-TOK-ID", {"added_tokens[0].id", "id 9", "id 0"});
  spec.added_tokens = R"([{"id":1,"content":"<x>","special":true}])";
  expect_json_refused(spec, "E-TOK-ID", {"added_tokens[0].id"});
  for (const char* id : {"-1", "2147483648"}) {
    spec.added_tokens = std::string(R"([{"id":)") + id + R"(,"content":"<x>"}])";
    expect_json_refused(spec, "E-TOK-ID", {"added_tokens[0].id", id});
  }
  spec.added_tokens = R"([{"id":9,"content":""}])";
  expect_json_refused(spec, "E-TOK-LIMIT", {"added_tokens[0].content"});
  spec.added_tokens = R"([{"id":9,"content":")" + std::string(5000, 'x') + R"("}])";
  expect_json_refused(spec, "E-TOK-LIMIT", {"5000 bytes"});
}

// gemma-3-1b names a token for images behind its last row, in both files.
TEST(TokenizerJson, AddedTokensWithoutARowAreLeftOut) {
  JsonSpec spec;
  spec.added_tokens = R"([{"id":100,"content":"ab","special":true},)"
                      R"({"id":9,"content":"c<","special":true}])";
  expect_json_refused(spec, "E-TOK-ID", {"added_tokens[0].id", "which has id 3"});
  spec.added_tokens = R"([{"id":100,"content":"a<","special":true},)"
                      R"({"id":9,"content":"c<","special":true}])";
  Notes notes;
  const auto tokenizer = load(
      {{"tokenizer.json", spec.text()},
       {"tokenizer_config.json",
        R"({"added_tokens_decoder":{"100":{"content":"a<","special":true}},"pad_token":"a<"})"}},
      notes);
  EXPECT_EQ(encode(*tokenizer, "ac<a<"), (std::vector<TokenId>{0, 9, 0}));
  EXPECT_EQ(tokenizer->vocab_size(), 10);
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_EQ(notes[0], "tokenizer: \"a<\" (id 100) has no embedding row; left out");
  spec.post_processor = R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"a<"}},)"
                        R"({"Sequence":{"id":"A"}}],"special_tokens":{"a<":{"ids":[100]}}})";
  expect_json_refused(spec, "E-TOK-TEMPLATE", {"100"});
}

TEST(TokenizerJson, MergesAreChecked) {
  JsonSpec spec;
  for (const char* merges : {R"(["a b","a"])", R"(["a b","a b c"])", R"(["a b",["a"]])",
                             R"(["a b",["a","b","c"]])", R"(["a b",["a",3]])", R"(["a b",3])"}) {
    spec.merges = merges;
    expect_json_refused(spec, "E-TOK-MERGE", {"model.merges[1]"});
  }
  spec.merges = R"(["x b"])";
  expect_json_refused(spec, "E-TOK-MERGE", {"model.merges[0]", "\"x\""});
  spec.merges = R"(["a x"])";
  expect_json_refused(spec, "E-TOK-MERGE", {"\"x\""});
  spec.merges = R"(["a c"])";
  expect_json_refused(spec, "E-TOK-MERGE", {"\"ac\""});
  spec.merges = R"([["a","b"],["ab","c"]])";
  EXPECT_EQ(encode(*load(spec), "abc"), (std::vector<TokenId>{4}));
  expect_refused(
      {{"vocab.json", R"({"a":0,"b":1,"ab":2})"}, {"merges.txt", "#version: 0.2\na b\nab\n"}},
      "E-TOK-MERGE", {"merges.txt:3"});
}

TEST(TokenizerJson, IgnoreMergesTakesWholePiecesFirst) {
  JsonSpec spec;
  spec.merges = "[]";
  EXPECT_EQ(encode(*load(spec), "abc"), (std::vector<TokenId>{0, 1, 2}));
  spec.model_extra = R"(,"ignore_merges":true)";
  EXPECT_EQ(encode(*load(spec), "abc"), (std::vector<TokenId>{4}));
}

TEST(TokenizerJson, PunctuationSplitsByItsBehavior) {
  JsonSpec spec;
  spec.vocab = R"({"a":0,".":1,"a.":2,".a":3,"..":4,"Ġ":5})";
  spec.merges = R"([". .","a .",". a"])";
  const auto with = [&](const std::string& behavior) {
    spec.pre_tokenizer = R"({"type":"Sequence","pretokenizers":[{"type":"Punctuation")" + behavior +
                         R"(},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})";
    return encode(*load(spec), "a..a");
  };
  EXPECT_EQ(with(""), (std::vector<TokenId>{0, 1, 1, 0}));
  EXPECT_EQ(with(R"(,"behavior":"Isolated")"), (std::vector<TokenId>{0, 1, 1, 0}));
  EXPECT_EQ(with(R"(,"behavior":"Contiguous")"), (std::vector<TokenId>{0, 4, 0}));
  EXPECT_EQ(with(R"(,"behavior":"Removed")"), (std::vector<TokenId>{0, 0}));
  EXPECT_EQ(with(R"(,"behavior":"MergedWithPrevious")"), (std::vector<TokenId>{2, 1, 0}));
  EXPECT_EQ(with(R"(,"behavior":"MergedWithNext")"), (std::vector<TokenId>{0, 1, 3}));
}

TEST(TokenizerJson, TemplatesNameKnownTokens) {
  JsonSpec spec;
  spec.post_processor = R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},)"
                        R"({"Sequence":{"id":"A"}}],"special_tokens":{}})";
  expect_json_refused(spec, "E-TOK-TEMPLATE", {"post_processor.single[0].SpecialToken"});
  spec.post_processor = R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},)"
                        R"({"Sequence":{"id":"A"}}],"special_tokens":{"<s>":{"ids":[77]}}})";
  expect_json_refused(spec, "E-TOK-TEMPLATE", {"77"});
  spec.post_processor = R"({"type":"TemplateProcessing","single":[],"special_tokens":{}})";
  expect_json_refused(spec, "E-TOK-COMPONENT", {"post_processor.single"});
  spec.post_processor =
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"c"}},{"Sequence":{"id":"A"}},)"
      R"({"SpecialToken":{"id":"b"}}],"special_tokens":{"c":{"ids":[2]},"b":{"ids":[1,1]}}})";
  const auto tokenizer = load(spec);
  EXPECT_EQ(encode(*tokenizer, "a"), (std::vector<TokenId>{2, 0, 1, 1}));
  EXPECT_EQ(tokenizer->encode("a", {.add_special = false, .parse_special = true}),
            (std::vector<TokenId>{0}));
}

TEST(TokenizerJson, RobertaAndBertPutOneTokenAtEachEnd) {
  JsonSpec spec;
  for (const std::string type : {"RobertaProcessing", "BertProcessing"}) {
    const auto with = [&](const std::string& sep) {
      spec.post_processor = R"({"type":")" + type + R"(","sep":)" + sep + R"(,"cls":["c",2]})";
    };
    with(R"(["b",1])");
    EXPECT_EQ(encode(*load(spec), "a"), (std::vector<TokenId>{2, 0, 1}));
    with(R"(["b",77])");
    expect_json_refused(spec, "E-TOK-TEMPLATE", {"77"});
    with(R"(["b",-1])");
    expect_json_refused(spec, "E-TOK-ID", {"post_processor.sep[1]"});
    with(R"(["b"])");
    expect_json_refused(spec, "E-TOK-FORMAT", {"post_processor.sep", "a token and its id"});
  }
}

TEST(TokenizerJson, BadPatternsAreRefusedWithTheirOffset) {
  JsonSpec spec;
  const auto with_pattern = [&](const std::string& pattern) {
    spec.pre_tokenizer =
        R"({"type":"Split","pattern":{"Regex":")" + pattern + R"("},"behavior":"Isolated"})";
  };
  with_pattern("ab(c");
  expect_json_refused(spec, "E-TOK-REGEX", {"pre_tokenizer.pattern.Regex", "offset 4"});
  // Means a hex digit to Oniguruma and white space to PCRE2.
  with_pattern(R"(a\\h)");
  expect_json_refused(spec, "E-TOK-REGEX", {"offset 1"});
  with_pattern("(*LIMIT_MATCH=1)a");
  expect_json_refused(spec, "E-TOK-REGEX", {"offset 0"});
  with_pattern("[a&&b]");
  expect_json_refused(spec, "E-TOK-REGEX", {"offset 2"});
  with_pattern(std::string(5000, 'a'));
  expect_json_refused(spec, "E-TOK-REGEX", {"5000 bytes"});
  spec.pre_tokenizer = R"({"type":"Split","pattern":{"String":""},"behavior":"Isolated"})";
  expect_json_refused(spec, "E-TOK-COMPONENT", {"pre_tokenizer.pattern.String"});
}

TEST(TokenizerJson, CatastrophicPatternIsAnErrorOfTheLine) {
  JsonSpec spec;
  spec.pre_tokenizer = R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":)"
                       R"("(a+)+(a+)+(a+)+$|."},"behavior":"Isolated"},{"type":"ByteLevel"}]})";
  const auto tokenizer = load(spec);
  EXPECT_FALSE(encode(*tokenizer, "aab").empty());
  try {
    static_cast<void>(encode(*tokenizer, std::string(3000, 'a') + "b"));
    ADD_FAILURE() << "no limit was hit";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E-TOK-REGEX");
    EXPECT_EQ(error.role(), ErrorRole::kInput);
    EXPECT_NE(error.message().find("at byte"), std::string::npos) << error.what();
  }
  // The next line is not affected.
  EXPECT_FALSE(encode(*tokenizer, "aab").empty());
}

TEST(TokenizerJson, FilesBesideItAreChecked) {
  const std::string json = JsonSpec{}.text();
  expect_refused({{"tokenizer.json", json}, {"tokenizer_config.json", "{"}}, "E-TOK-JSON",
                 {"tokenizer_config.json"});
  for (const char* name :
       {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}) {
    expect_refused({{"tokenizer.json", json}, {name, "[]"}}, "E-TOK-FORMAT",
                   {std::string(name) + ": JSON: array of 0, expected an object"});
  }
  expect_refused({{"tokenizer.json", json}, {"tokenizer_config.json", R"({"add_bos_token":"x"})"}},
                 "E-TOK-FORMAT", {"tokenizer_config.json: add_bos_token"});
  expect_refused(
      {{"tokenizer.json", json},
       {"tokenizer_config.json", R"({"added_tokens_decoder":{"-3":{"content":"<x>"}}})"}},
      "E-TOK-ID", {"added_tokens_decoder"});
  expect_refused(
      {{"tokenizer.json", json},
       {"tokenizer_config.json", R"({"added_tokens_decoder":{"4x":{"content":"<x>"}}})"}},
      "E-TOK-ID", {"added_tokens_decoder"});
  expect_refused({{"tokenizer.json", json}, {"added_tokens.json", R"({"<x>":-1})"}}, "E-TOK-ID",
                 {"added_tokens.json"});
}

TEST(TokenizerJson, LinksToNothingAreNotPassedOver) {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", JsonSpec{}.text());
  std::filesystem::create_symlink("nowhere", folder.path() + "/tokenizer_config.json");
  Notes notes;
  try {
    static_cast<void>(load_tokenizer(folder.path(), config_with_vocabulary(100, "llama"), notes));
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E-TOK-FILE");
    EXPECT_NE(error.message().find("tokenizer_config.json: open: a link to nothing"),
              std::string::npos)
        << error.what();
  }
}

// As transformers 4 and 5 write them and as they are on the Hub.
TEST(TokenizerJson, OddValuesOfRealFilesBesideItAreRead) {
  for (const char* config :
       {R"({"model_max_length": 1000000000000000019884624838656})",
        R"({"model_max_length": 1e30, "clean_up_tokenization_spaces": true})",
        R"({"model_max_length": null, "tokenizer_class": null, "chat_template": null})",
        R"({"add_bos_token": null, "add_prefix_space": null, "legacy": null})",
        R"({"bos_token": null, "unk_token": null, "additional_special_tokens": null})",
        R"({"added_tokens_decoder": null, "extra_special_tokens": {}})",
        R"({"added_tokens_decoder": {}, "extra_special_tokens": []})",
        R"({"sp_model_kwargs": {}, "auto_map": {"AutoTokenizer": ["x.py", null]}})",
        R"({"chat_template": [{"name": "default", "template": "{{ messages }}"}]})"}) {
    Notes notes;
    const auto tokenizer =
        load({{"tokenizer.json", JsonSpec{}.text()}, {"tokenizer_config.json", config}}, notes);
    EXPECT_EQ(encode(*tokenizer, "abc ab"), (std::vector<TokenId>{4, 5, 3})) << config;
  }
  for (const char* config :
       {R"({"eos_token": "c", "extra_special_tokens": ["a"]})",
        R"({"eos_token": {"__type": "AddedToken", "content": "c", "lstrip": false,
            "normalized": true, "rstrip": false, "single_word": false},
            "additional_special_tokens": [{"content": "a", "special": true}]})",
        R"({"eos_token": {"content": "c"}, "extra_special_tokens": {"image_token": "a"}})"}) {
    Notes notes;
    const auto tokenizer =
        load({{"tokenizer.json", JsonSpec{}.text()}, {"tokenizer_config.json", config}}, notes);
    EXPECT_TRUE(tokenizer->is_special(2)) << config;
    EXPECT_TRUE(tokenizer->is_special(0)) << config;
    EXPECT_FALSE(tokenizer->is_special(1)) << config;
  }
}

TEST(TokenizerJson, TokenizerWinsOverTheFilesBesideIt) {
  Notes notes;
  const auto tokenizer =
      load({{"tokenizer.json", JsonSpec{}.text()},
            {"tokenizer_config.json", R"({"chat_template":"{{ 7*7 }}","added_tokens_decoder":{)"
                                      R"("2":{"content":"a","special":true},)"
                                      R"("40":{"content":"<new>","special":true}}})"},
            {"special_tokens_map.json", R"({"bos_token":"c"})"}},
           notes);
  EXPECT_EQ(encode(*tokenizer, "a<new>b"), (std::vector<TokenId>{0, 40, 1}));
  EXPECT_EQ(tokenizer->bos(), std::optional<TokenId>(2));
  EXPECT_TRUE(tokenizer->is_special(2));
  EXPECT_TRUE(tokenizer->is_special(40));
  EXPECT_FALSE(tokenizer->is_special(0));
  std::string all;
  for (const std::string& note : notes) all += note + "\n";
  EXPECT_NE(all.find("\"a\" has id 2"), std::string::npos) << all;
}

TEST(TokenizerJson, FlagsAndRolesOfTheConfigWinOverTokenizerJson) {
  JsonSpec spec;
  spec.added_tokens = R"([{"id":10,"content":"<l>","special":true,"normalized":false},)"
                      R"({"id":11,"content":"<e>","special":false,"normalized":false},)"
                      R"({"id":12,"content":"<r>","rstrip":true,"normalized":false}])";
  Notes notes;
  const auto tokenizer =
      load({{"tokenizer.json", spec.text()},
            {"tokenizer_config.json",
             R"({"eos_token":"<e>","added_tokens_decoder":{)"
             R"("10":{"content":"<l>","special":false,"lstrip":true,"normalized":false}}})"},
            {"added_tokens.json", R"({"<r>":12,"<new>":13,"<e>":11})"}},
           notes);
  EXPECT_EQ(encode(*tokenizer, "a <l> a"), (std::vector<TokenId>{0, 10, 5, 0}));
  EXPECT_FALSE(tokenizer->is_special(10));
  EXPECT_TRUE(tokenizer->is_special(11));
  // added_tokens.json says nothing of flags.
  EXPECT_EQ(encode(*tokenizer, "<r> a<new>"), (std::vector<TokenId>{12, 0, 13}));
}

TEST(TokenizerJson, OptStartsWithItsBos) {
  Notes notes;
  const Files files = {{"vocab.json", R"({"<s>":0,"<pad>":1,"</s>":2,"a":3,"b":4,"ab":5})"},
                       {"merges.txt", "#version: 0.2\na b\n"}};
  const auto opt = load(files, notes, 100, "opt");
  EXPECT_EQ(encode(*opt, "ab</s>"), (std::vector<TokenId>{2, 5, 2}));
  EXPECT_EQ(opt->encode("ab", {.add_special = false, .parse_special = true}),
            (std::vector<TokenId>{5}));
  EXPECT_EQ(opt->bos(), std::optional<TokenId>(2));
  EXPECT_EQ(opt->decode(std::vector<TokenId>{2, 5, 2}, true), "ab");
  EXPECT_EQ(opt->decode(std::vector<TokenId>{2, 5, 2}, false), "</s>ab</s>");
}

std::string sequence_of(const std::string& list, const std::string& component, int count) {
  std::string text = R"({"type":"Sequence",")" + list + "\":[";
  for (int i = 0; i < count; ++i) text += (i == 0 ? "" : ",") + component;
  return text + "]}";
}

constexpr const char* kDoubling = R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})";

TEST(TokenizerJson, NormalizersThatMultiplyATextAreAnErrorOfTheLine) {
  JsonSpec spec;
  spec.normalizer = sequence_of("normalizers", kDoubling, 40);
  const auto tokenizer = load(spec);
  try {
    static_cast<void>(encode(*tokenizer, "aaaa"));
    ADD_FAILURE() << "no limit was hit";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E-TOK-LIMIT");
    EXPECT_EQ(error.role(), ErrorRole::kInput);
  }
  EXPECT_FALSE(encode(*tokenizer, "b").empty());
  // Of the model's own tokens it is the model's fault.
  spec.added_tokens = R"([{"id":9,"content":"<a>","normalized":true}])";
  expect_json_refused(spec, "E-TOK-LIMIT", {"added_tokens", "<a>"});
  // As long as real ones make it.
  spec = {};
  spec.normalizer = sequence_of("normalizers", kDoubling, 4);
  EXPECT_FALSE(encode(*load(spec), std::string(100'000, 'a')).empty());
}

TEST(TokenizerJson, ComponentsThatMultiplyATextAreRefused) {
  JsonSpec spec;
  spec.decoder = sequence_of("decoders", kDoubling, 40);
  expect_json_refused(spec, "E-TOK-LIMIT", {"decoder.decoders[6]", "64 times"});
  spec = {};
  spec.pre_tokenizer = sequence_of("pretokenizers", R"({"type":"ByteLevel"})", 2);
  expect_json_refused(spec, "E-TOK-COMPONENT",
                      {"pre_tokenizer.pretokenizers[1].type", "one ByteLevel"});
  spec = {};
  spec.normalizer = sequence_of("normalizers", R"({"type":"NFC"})", 65);
  expect_json_refused(spec, "E-TOK-LIMIT", {"normalizer.normalizers[64]", "64 components"});
  spec.normalizer = R"({"type":"Prepend","prepend":")" + std::string(1025, 'x') + R"("})";
  expect_json_refused(spec, "E-TOK-LIMIT", {"normalizer.prepend", "1024 bytes"});
}

TEST(TokenizerJson, TemplatesMayNotFloodAText) {
  JsonSpec spec;
  const auto with = [&](int parts, int ids) {
    std::string text = R"({"type":"TemplateProcessing","single":[)";
    for (int i = 0; i < parts; ++i) text += R"({"SpecialToken":{"id":"a"}},)";
    text += R"({"Sequence":{"id":"A"}}],"special_tokens":{"a":{"ids":[)";
    for (int i = 0; i < ids; ++i) text += i == 0 ? "0" : ",0";
    spec.post_processor = text + "]}}}";
  };
  with(1000, 1000);
  expect_json_refused(spec, "E-TOK-LIMIT", {"post_processor.single[1]", "1024 tokens"});
  with(3000, 0);
  expect_json_refused(spec, "E-TOK-LIMIT", {"post_processor.single", "2048 parts"});
  with(1024, 1);
  EXPECT_EQ(encode(*load(spec), "a").size(), 1025U);
}

TEST(TokenizerJson, MegabytesOfAddedTokensAreRefused) {
  JsonSpec spec;
  spec.added_tokens = "[";
  for (int i = 0; i < 5000; ++i) {
    spec.added_tokens += (i == 0 ? "" : ",") + (R"({"id":)" + std::to_string(6 + i)) +
                         R"(,"content":")" + std::to_string(1000 + i) + std::string(1000, 'x') +
                         R"("})";
  }
  spec.added_tokens += "]";
  expect_refused({{"tokenizer.json", spec.text()}}, "E-TOK-LIMIT", {"added_tokens"}, 10'000);
}

// Seconds of the processor that this thread has used: other processes do not count.
double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// 16 times the tokens take about 16 times the work (256 times if it were quadratic), and what is
// not used is not told one by one. A busy machine slows a run down, so the fastest runs count.
TEST(TokenizerJson, ManyTokensBesideItTakeLinearTime) {
  const auto seconds = [](int count, Notes& notes) {
    std::string added = "{";
    std::string special = R"({"extra_special_tokens":{)";
    for (int i = 0; i < count; ++i) {
      const std::string number = std::to_string(i);
      added += (i == 0 ? "\"<x" : ",\"<x") + number + "\":" + std::to_string(1000 + i);
      special += (i == 0 ? "\"k" : ",\"k") + number + "\":\"<y" + number + ">\"";
    }
    const Files files = {{"tokenizer.json", JsonSpec{}.text()},
                         {"added_tokens.json", added + "}"},
                         {"special_tokens_map.json", special + "}}"}};
    notes.clear();
    const double start = processor_seconds();
    static_cast<void>(load(files, notes));
    return processor_seconds() - start;
  };
  Notes notes;
  double few = seconds(3'000, notes);
  double many = seconds(48'000, notes);
  EXPECT_LT(notes.size(), 10U);
  for (int round = 0; round < 20 && many >= 60.0 * few; ++round) {
    few = std::min(few, seconds(3'000, notes));
    many = std::min(many, seconds(48'000, notes));
  }
  EXPECT_LT(many, 60.0 * few);
}

}  // namespace
}  // namespace triphase
