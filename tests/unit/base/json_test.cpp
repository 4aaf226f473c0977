#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/json_writer.h"

namespace triphase {
namespace {

std::optional<Json> parse(std::string_view text) {
  JsonProblem problem;
  return parse_json(text, problem);
}

TEST(Json, ReadsATree) {
  const auto value =
      parse(R"( {"a": [1, -2, 3.5, true, null, "x\u00e9"], "b": {"c": 18446744073709551615}} )");
  ASSERT_TRUE(value);
  const JsonArray& a = *value->find("a")->array();
  EXPECT_EQ(a[0].integer(), 1);
  EXPECT_EQ(a[1].integer(), -2);
  EXPECT_EQ(a[2].number(), 3.5);
  EXPECT_FALSE(a[2].integer().has_value());
  EXPECT_EQ(a[3].boolean(), true);
  EXPECT_TRUE(a[4].is_null());
  EXPECT_EQ(*a[5].string(), "x\xC3\xA9");
  EXPECT_FALSE(value->find("b")->find("c")->integer().has_value()) << "does not fit int64";
  EXPECT_EQ(value->find("missing"), nullptr);
  EXPECT_EQ(a[0].find("x"), nullptr);
}

TEST(Json, WholeNumbersMayHaveAPoint) {
  const auto value = parse("[7, 8.0, -3e2, 8.5, 1e300, 1000000000000000019884624838656, \"1\"]");
  ASSERT_TRUE(value);
  std::vector<std::optional<std::int64_t>> numbers;
  for (const Json& one : *value->array()) numbers.push_back(one.whole_number());
  EXPECT_EQ(numbers, (std::vector<std::optional<std::int64_t>>{7, 8, -300, {}, {}, {}, {}}));
}

TEST(Json, IntegersBeyond64BitsKeepTheirDigits) {
  const std::string digits = "1000000000000000019884624838656";
  const auto value = parse("[" + digits + ", -18446744073709551616]");
  ASSERT_TRUE(value);
  const Json& first = (*value->array())[0];
  EXPECT_TRUE(first.is_integer());
  EXPECT_FALSE(first.integer().has_value());
  EXPECT_EQ(first.number(), 1e30);
  EXPECT_EQ(first.describe(), digits);
  std::string written;
  JsonWriter(written, JsonWriter::Layout::kCompact).value(*value);
  EXPECT_EQ(written, "[" + digits + ",-18446744073709551616]");
  EXPECT_FALSE(parse(std::string(400, '9'))) << "no finite number";
}

TEST(Json, NumbersThatAreNoIntegersDoNotLookLikeOne) {
  const auto value = parse("[16.0, 16, 1e300, 0.5]");
  ASSERT_TRUE(value);
  std::string described;
  for (const Json& number : *value->array()) described += number.describe() + " ";
  EXPECT_EQ(described, "16.0 16 1e+300 0.5 ");
}

TEST(Json, SkipsABom) { EXPECT_TRUE(parse("\xEF\xBB\xBF{}")); }

TEST(Json, RefusesWhatNlohmannAccepts) {
  EXPECT_FALSE(parse(R"({"a":1,"a":2})")) << "duplicate key";
  EXPECT_FALSE(parse("\"\xff\"")) << "invalid UTF-8";
  using namespace std::string_literals;
  EXPECT_FALSE(parse("{}\0"s)) << "NUL is no white space";
  EXPECT_FALSE(parse("{\"a\":1}\0junk"s));
}

TEST(Json, RefusesMalformedText) {
  for (const char* text : {"", "{", "[1,]", "nul", "NaN", "Infinity", "1e999", "{\"a\" 1}", "[] x",
                           "\"\\ud800\"", "'a'", "{1:2}"}) {
    EXPECT_FALSE(parse(text)) << text;
  }
}

TEST(Json, LimitsDepthAndCount) {
  EXPECT_TRUE(parse(std::string(64, '[') + std::string(64, ']')));
  EXPECT_FALSE(parse(std::string(65, '[') + std::string(65, ']')));
  EXPECT_FALSE(parse(std::string(5'000'000, '[')));
  JsonProblem problem;
  EXPECT_FALSE(parse_json("[1,2,3]", problem, {.max_depth = 64, .max_values = 3}));
}

TEST(Json, ProblemsNameTheByte) {
  JsonProblem problem;
  EXPECT_FALSE(parse_json("{\"a\": nope}", problem));
  EXPECT_GE(problem.byte, 7u);
  EXPECT_LE(problem.byte, 9u);
  EXPECT_FALSE(parse_json("[\"ab\xff\"]", problem));
  EXPECT_EQ(problem.byte, 5u);
  EXPECT_FALSE(parse_json(std::string_view("\xEF\xBB\xBF{}\0x", 7), problem));
  EXPECT_EQ(problem.byte, 6u);
  EXPECT_EQ(problem.found, "a NUL byte");
  // Escapes that JSON's grammar allows.
  for (const char* half :
       {R"({"a":"x\ud800y"})", R"({"a":"x\udc00"})", R"({"a":"\ud800\ud800"})"}) {
    EXPECT_FALSE(parse_json(half, problem)) << half;
    EXPECT_EQ(problem.found, "half of a surrogate pair") << half;
    EXPECT_EQ(problem.expected, "whole characters") << half;
    EXPECT_GE(problem.byte, 9u) << half;
  }
  EXPECT_FALSE(parse_json(R"(["surrogate)", problem));
  EXPECT_TRUE(problem.expected.starts_with("valid JSON")) << problem.expected;
  EXPECT_EQ(*parse_json(R"("\ud83d\ude00")", problem)->string(), "\xF0\x9F\x98\x80");
}

TEST(JsonQuote, EscapesAndRepairs) {
  EXPECT_EQ(json_quote("a\"\\\n\t\x01"), "\"a\\\"\\\\\\n\\t\\u0001\"");
  EXPECT_EQ(json_quote("\xC3\xA9\xff"), "\"\xC3\xA9\xEF\xBF\xBD\"");
}

std::string written(JsonWriter::Layout layout) {
  std::string out;
  JsonWriter json(out, layout);
  json.begin_object().members({{"a", 1}, {"b", "x\n"}, {"c", std::optional<double>()}});
  json.key("d").array(std::vector<double>{0.5, NAN}).key("e").begin_object().end();
  json.key("f").begin_array(layout).object({{"g", true}, {"h", JsonText{"1.50"}}}).end();
  json.key("i").begin_array(layout).end().end();
  return out;
}

TEST(JsonWriter, LayoutsDifferInBlanksAlone) {
  using enum JsonWriter::Layout;
  EXPECT_EQ(written(kCompact),
            R"({"a":1,"b":"x\n","c":null,"d":[0.5,null],"e":{},"f":[{"g":true,"h":1.50}],"i":[]})");
  EXPECT_EQ(written(kSpaced), R"({"a": 1, "b": "x\n", "c": null, "d": [0.5, null], "e": {}, )"
                              R"("f": [{"g": true, "h": 1.50}], "i": []})");
  EXPECT_EQ(written(kLines), R"({
  "a": 1,
  "b": "x\n",
  "c": null,
  "d": [0.5, null],
  "e": {},
  "f": [
    {"g": true, "h": 1.50}
  ],
  "i": []
})");
  EXPECT_EQ(written(kRows), R"({
  "a": 1,
  "b": "x\n",
  "c": null,
  "d": [0.5, null],
  "e": {},
  "f": [
    {"g": true, "h": 1.50}],
  "i": []})");
}

TEST(JsonWriter, WritesAParsedTreeAgain) {
  const std::string text =
      R"({"a":[1,-2,0.1,48.0,-0.0,18446744073709551615,true,null],"b":{"c":"d"}})";
  std::string out;
  JsonWriter(out, JsonWriter::Layout::kCompact).value(*parse(text));
  EXPECT_EQ(out, text);
}

TEST(JsonNumber, ReadsBackAndHasNoNan) {
  for (const double value : {0.1, 1.0 / 3.0, 1e300, -5e-324, 12345678.0}) {
    EXPECT_EQ(parse(json_number(value))->number(), value);
  }
  EXPECT_EQ(json_number(NAN), "null");
  EXPECT_EQ(json_number(std::numeric_limits<double>::infinity()), "null");
}

}  // namespace
}  // namespace triphase
