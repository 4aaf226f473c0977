// SentencePiece models as an enemy would write them, and what a good one is read as.

#include "models/tokenizer/sentencepiece_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>

#include "models/tokenizer/sentencepiece_charsmap.h"
#include "models/tokenizer/tokenizer.h"
#include "tests/unit/tokenizer/case_file.h"
#include "tests/unit/tokenizer/model_builder.h"

namespace triphase {
namespace {

void expect_refused(const std::string& bytes, const std::string& code, const std::string& part) {
  try {
    static_cast<void>(check_sentencepiece(bytes, "tokenizer.model"));
    ADD_FAILURE() << "not refused, expected " << code;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(error.message().find(part), std::string::npos) << error.what() << " lacks " << part;
  }
}

std::string model(const std::vector<PieceSpec>& pieces, const std::string& trainer_extra = "",
                  const std::string& normalizer_extra = "") {
  return sentencepiece_bytes(pieces, trainer_fields(2) + trainer_extra,
                             llama_normalizer() + normalizer_extra);
}

std::vector<PieceSpec> with(const PieceSpec& piece) {
  std::vector<PieceSpec> pieces = letter_pieces();
  pieces.push_back(piece);
  return pieces;
}

std::unique_ptr<Tokenizer> load(const std::string& bytes, std::int64_t rows = 1000,
                                const std::string& config = "{}") {
  const TemporaryFolder folder;
  folder.write("tokenizer.model", bytes);
  folder.write("tokenizer_config.json", config);
  Notes notes;
  return load_tokenizer(folder.path(), config_with_vocabulary(rows), notes);
}

TEST(SentencePieceCheck, ReadsWhatIsThere) {
  const std::string bytes = model(letter_pieces(), bytes_field(46, "<begin>"));
  const SentencePieceModel read = check_sentencepiece(bytes, "tokenizer.model");
  EXPECT_EQ(read.kind, SentencePieceModel::Kind::kBpe);
  EXPECT_EQ(read.pieces.size(), 10U);
  EXPECT_EQ(read.pieces[4].text, "ab");
  EXPECT_EQ(read.pieces[4].score, -2.0F);
  EXPECT_EQ(read.unknown_id, 0);
  EXPECT_EQ(read.bos_piece, "<begin>");
  EXPECT_TRUE(read.add_dummy_prefix);
  EXPECT_FALSE(read.remove_extra_whitespaces);
}

TEST(SentencePieceCheck, EveryTruncationIsRefusedOrRead) {
  const std::string bytes = model(letter_pieces());
  int refused = 0;
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    try {
      static_cast<void>(check_sentencepiece(bytes.substr(0, length), "tokenizer.model"));
    } catch (const Error& error) {
      ++refused;
      EXPECT_EQ(error.role(), ErrorRole::kModel);
    }
  }
  EXPECT_GT(refused, static_cast<int>(bytes.size() / 2));
}

TEST(SentencePieceCheck, RefusesWhatIsNotAModel) {
  expect_refused("", "E-TOK-FORMAT", "pieces");
  expect_refused("IQ== 0\nIg== 1\n", "E-TOK-TIKTOKEN", "tokenizer.json");
  expect_refused(std::string(kMaxSentencePieceBytes + 1, '\0'), "E-TOK-LIMIT", "bytes");
  expect_refused(std::string("\x0B\x0C", 2), "E-TOK-FORMAT", "protocol buffer");  // a group
  expect_refused(std::string("\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", 11), "E-TOK-FORMAT",
                 "protocol buffer");  // a length of 2^64 - 1
}

TEST(SentencePieceCheck, RefusesBadPieces) {
  expect_refused(model(with({"", 0, 1})), "E-TOK-PIECE", "empty");
  expect_refused(model(with({"ab", 0, 1})), "E-TOK-PIECE", "again");
  expect_refused(model(with({"<unk2>", 0, 2})), "E-TOK-PIECE", "second unknown");
  expect_refused(model({{"a", 0, 1}}), "E-TOK-PIECE", "no unknown");
  expect_refused(model(with({"x", 0, 7})), "E-TOK-PIECE", "type 7");
  expect_refused(model(with({std::string(4097, 'x'), 0, 1})), "E-TOK-LIMIT", "4097");
  expect_refused(model(with({"x", std::nanf(""), 1})), "E-TOK-PIECE", "finite");
  expect_refused(model(with({"\x8D\x93", 0, 1})), "E-TOK-PIECE", "UTF-8");
  expect_refused(model(with({"x", -std::numeric_limits<float>::infinity(), 1})), "E-TOK-PIECE",
                 "finite");
  expect_refused(model(with({"<0x41>", 0, 6})), "E-TOK-PIECE", "byte_fallback");
  const std::string fallback = varint_field(35, 1);
  expect_refused(model(letter_pieces(), fallback), "E-TOK-PIECE", "0 byte pieces");
  for (const char* bad : {"<0x-1>", "<0x4g>", "<0xab>", "<0x100>", "x"}) {
    expect_refused(model(with({bad, 0, 6}), fallback), "E-TOK-PIECE", "<0x00> to <0xFF>");
  }
  expect_refused(model(letter_pieces(), varint_field(3, 3)), "E-TOK-COMPONENT", "model_type");
}

TEST(SentencePieceCheck, AcceptsNulInPieces) {
  const PieceSpec nul{std::string("\0z", 2), -9, 1};
  const std::string text("a\0z", 3);
  for (const std::uint64_t kind : {1U, 2U}) {  // the library dies of the unigram model
    const auto tokenizer =
        load(sentencepiece_bytes(with(nul), trainer_fields(kind), llama_normalizer()));
    EXPECT_EQ(tokenizer->encode(text, {.add_special = false, .parse_special = false}),
              (std::vector<TokenId>{5, 6, 10}));
    EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{5, 6, 10}, true), text);
  }
  std::vector<PieceSpec> pieces = with(nul);
  pieces.push_back({std::string(300, 'x'), -10, 1});  // needs the library
  try {
    static_cast<void>(load(sentencepiece_bytes(pieces, trainer_fields(1), llama_normalizer())));
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E-TOK-PIECE");
  }
}

TEST(SentencePieceTokenizer, UnusedPiecesGoThroughTheLibrary) {
  std::vector<PieceSpec> pieces = letter_pieces();
  pieces[4].type = 5;  // "ab" may be passed through, but not be a result
  const auto tokenizer = load(model(pieces));
  EXPECT_EQ(tokenizer->encode("cab</s>", {}), (std::vector<TokenId>{1, 5, 8, 6, 7, 2}));
  EXPECT_EQ(tokenizer->encode("ab", {}), (std::vector<TokenId>{1, 3}));
}

TEST(SentencePieceTokenizer, LongPiecesGoThroughTheLibrary) {
  const std::string word(300, 'a');
  for (const std::uint64_t kind : {1U, 2U}) {
    std::vector<PieceSpec> pieces = letter_pieces();
    pieces.push_back({word, -0.5F, 1});
    const auto tokenizer =
        load(sentencepiece_bytes(pieces, trainer_fields(kind), llama_normalizer()));
    EXPECT_EQ(tokenizer->encode("ab", {}), (std::vector<TokenId>{1, 3}));
    if (kind == 1) {
      EXPECT_EQ(tokenizer->encode(word, {}), (std::vector<TokenId>{1, 5, 10}));
    }
  }
}

TEST(SentencePieceCheck, ChecksIdsAgainstEmbeddingRows) {
  EXPECT_NO_THROW(static_cast<void>(load(model(letter_pieces()), 10)));
  try {
    static_cast<void>(load(model(letter_pieces()), 9));
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E-TOK-SIZE");
    EXPECT_NE(error.message().find("token id 9"), std::string::npos);
    EXPECT_NE(error.message().find("9 embedding rows"), std::string::npos);
  }
}

// Units of a double array whose root leads to `base`.
std::string charsmap(const std::vector<std::uint32_t>& units, std::string_view texts) {
  const auto bytes = static_cast<std::uint32_t>(units.size() * 4);
  std::string out(4 + bytes, '\0');
  std::memcpy(out.data(), &bytes, 4);
  std::memcpy(out.data() + 4, units.data(), bytes);
  return out + std::string(texts);
}

// A trie with the rule "A" -> text 0: the root's base is 256, 'A' is unit 321, its leaf unit 513.
std::vector<std::uint32_t> one_rule() {
  std::vector<std::uint32_t> units(768, 0x80000000U);
  units[0] = 256U << 10;
  units[256 ^ 'A'] = (((256U ^ 'A') ^ 513U) << 10) | (1U << 8) | 'A';
  units[513] = 0x80000000U;  // value 0
  return units;
}

TEST(SentencePieceCharsmap, AcceptsOnlyTablesThatStayInside) {
  using std::string_view_literals::operator""sv;
  EXPECT_TRUE(Charsmap::parse(charsmap(one_rule(), "b\0"sv)));
  EXPECT_FALSE(Charsmap::parse(""));
  EXPECT_FALSE(Charsmap::parse("abcd"));
  EXPECT_FALSE(Charsmap::parse(charsmap(one_rule(), "b")));         // text without end
  EXPECT_FALSE(Charsmap::parse(charsmap(one_rule(), "\xFF\0"sv)));  // not UTF-8
  EXPECT_FALSE(Charsmap::parse(charsmap(one_rule(), std::string(300, 'x') + '\0')));
  auto units = one_rule();
  units[513] = 0x80000000U | 5;  // a text behind the end
  EXPECT_FALSE(Charsmap::parse(charsmap(units, "b\0"sv)));
  units = one_rule();
  units[0] = 768U << 10;  // children behind the end
  EXPECT_FALSE(Charsmap::parse(charsmap(units, "b\0"sv)));
  units = one_rule();
  units[256 ^ 'A'] = (((256U ^ 'A') ^ 0x1FFF00U) << 10) | 'A';  // grandchildren behind the end
  EXPECT_FALSE(Charsmap::parse(charsmap(units, "b\0"sv)));
  units = one_rule();
  units[256 ^ 'A'] = (((256U ^ 'A') ^ 256U) << 10) | 'A';  // a circle: A leads to itself
  EXPECT_FALSE(Charsmap::parse(charsmap(units, "b\0"sv)));
  units.resize(300);  // the last children's places are missing
  EXPECT_FALSE(Charsmap::parse(charsmap(units, "b\0"sv)));
}

TEST(SentencePieceCharsmap, RefusesPathsWithMoreRulesThanTheLibraryHolds) {
  using std::string_view_literals::operator""sv;
  // "A", "AA", ... each with a rule: a path that meets `rules` rules.
  const auto chain = [](std::uint32_t rules) {
    std::vector<std::uint32_t> units(256 * (rules + 2), 0x80000000U);
    const auto base = [](std::uint32_t depth) { return 256 * (depth + 1); };
    units[0] = base(0) << 10;
    for (std::uint32_t depth = 0; depth < rules; ++depth) {
      const std::uint32_t unit = base(depth) ^ 'A';
      const std::uint32_t offset = unit ^ base(depth + 1);
      units[unit] = (offset << 10) | (1U << 8) | 'A';
      units[base(depth + 1)] = 0x80000000U;
    }
    units.resize(256 * (rules + 2), 0x80000000U);
    return charsmap(units, "b\0"sv);
  };
  EXPECT_TRUE(Charsmap::parse(chain(32)));
  EXPECT_FALSE(Charsmap::parse(chain(33)));
}

TEST(SentencePieceCharsmap, StandardTableIsSafeAndDamageIsFound) {
  std::ifstream file(std::string(TRIPHASE_TEST_SOURCE_DIR) +
                         "/tests/fixtures/tokenizer/sp-unigram/tokenizer.model",
                     std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  const std::string bytes = content.str();
  const SentencePieceModel read = check_sentencepiece(bytes, "tokenizer.model");
  ASSERT_GT(read.charsmap.size(), 100'000U);
  const std::string table(read.charsmap);
  std::string cut = table;
  cut[0] = static_cast<char>(cut[0] + 4);  // the trie claims one unit of the texts
  int refused = Charsmap::parse(cut) ? 0 : 1;
  for (std::size_t at = 7; at < 4000; at += 400) {  // high bytes of offsets
    std::string damaged = table;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x7F);
    refused += Charsmap::parse(damaged) ? 0 : 1;
  }
  EXPECT_GE(refused, 1);
}

TEST(SentencePieceTokenizer, CutsSpecialTokensOutAndPutsBosInFront) {
  const auto tokenizer = load(model(letter_pieces()));
  EXPECT_EQ(tokenizer->kind(), "sentencepiece bpe");
  EXPECT_EQ(tokenizer->encode("ab</s>ab", {}), (std::vector<TokenId>{1, 3, 2, 3}));
  EXPECT_EQ(tokenizer->bos(), std::optional<TokenId>(1));
  // As text: '<', '/', 's' and '>' are unknown, and a run of unknown characters is one token.
  EXPECT_EQ(tokenizer->encode("</s>", {.add_special = false, .parse_special = false}),
            (std::vector<TokenId>{5, 0}));
  EXPECT_EQ(tokenizer->encode("", {}), (std::vector<TokenId>{1}));
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{1, 3, 2}, true), "ab");
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{1, 3, 2}, false), "<s> ab</s>");
  EXPECT_EQ(tokenizer->token_bytes(3), " ab");
}

TEST(SentencePieceTokenizer, ConfigTurnsBosOffEosOnAndLegacyOff) {
  const std::string bytes = model(letter_pieces());
  EXPECT_EQ(load(bytes, 100, R"({"add_bos_token":false})")->encode("ab", {}),
            (std::vector<TokenId>{3}));
  EXPECT_EQ(load(bytes, 100, R"({"add_eos_token":true})")->encode("ab", {}),
            (std::vector<TokenId>{1, 3, 2}));
  EXPECT_EQ(load(bytes, 100, R"({"legacy":false})")->encode("ab</s>ab", {}),
            (std::vector<TokenId>{1, 3, 2, 4}));
  // An added token behind the pieces.
  const auto padded =
      load(bytes, 100, R"({"added_tokens_decoder":{"10":{"content":"<pad>","special":true}}})");
  EXPECT_EQ(padded->encode("ab<pad>", {}), (std::vector<TokenId>{1, 3, 10}));
  EXPECT_EQ(padded->vocab_size(), 11);
}

}  // namespace
}  // namespace triphase
