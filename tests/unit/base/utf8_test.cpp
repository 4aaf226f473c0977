#include "base/utf8.h"

#include <gtest/gtest.h>

namespace triphase {
namespace {

TEST(Utf8, AcceptsEveryScalarValueAndNothingElse) {
  for (char32_t point = 0; point <= 0x10FFFF; ++point) {
    std::string text;
    append_utf8(point, text);
    const bool surrogate = point >= 0xD800 && point <= 0xDFFF;
    const std::size_t length = utf8_sequence_length(text, 0);
    if (surrogate) {
      ASSERT_EQ(length, 0u);
    } else {
      ASSERT_EQ(length, text.size());
      ASSERT_EQ(decode_utf8(text, 0, length), point);
    }
  }
}

TEST(Utf8, FindsTheFirstBadByte) {
  EXPECT_EQ(first_invalid_utf8("abc"), std::string_view::npos);
  EXPECT_EQ(first_invalid_utf8("ab\x80"), 2u);
  EXPECT_EQ(first_invalid_utf8("\xC0\xAF"), 0u) << "overlong";
  EXPECT_EQ(first_invalid_utf8("a\xE2\x82"), 1u) << "cut off";
  EXPECT_EQ(first_invalid_utf8("\xF4\x90\x80\x80"), 0u) << "beyond U+10FFFF";
  EXPECT_EQ(first_invalid_utf8("\xF8\x88\x80\x80\x80"), 0u);
}

TEST(Utf8, CountsCharacters) {
  EXPECT_EQ(count_characters(""), 0);
  EXPECT_EQ(count_characters("a\u00E9\u4F60\U0001F600z"), 5);
}

TEST(Utf8, ReplacesMaximalSubparts) {
  // The example of the Unicode standard, section 3.9.
  EXPECT_EQ(replace_invalid_utf8("a\xF1\x80\x80\xE1\x80\xC2"
                                 "b\x80"
                                 "c\x80\xBF"
                                 "d"),
            "a\uFFFD\uFFFD\uFFFD"
            "b\uFFFD"
            "c\uFFFD\uFFFD"
            "d");
}

}  // namespace
}  // namespace triphase
