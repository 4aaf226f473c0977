#include "runtime/compare/svg.h"

#include <gtest/gtest.h>

#include "base/format_bytes.h"

namespace triphase::svg {
namespace {

TEST(Svg, EscapesWhatWouldEndATextOrAnAttribute) {
  EXPECT_EQ(escaped("a<b>&\"c'\x01\x7f\xc3\xa9\xff"),
            "a&lt;b&gt;&amp;&quot;c&#39;\\x01\\x7f\xc3\xa9\\xff");
  EXPECT_EQ(text(1.0, 2.25, "end", "<x>", " class=\"soft\""),
            "<text x=\"1.0\" y=\"2.2\" text-anchor=\"end\" class=\"soft\">&lt;x&gt;</text>\n");
}

TEST(Svg, StepsAreTheNextOfOneTwoFive) {
  EXPECT_DOUBLE_EQ(round_step(0.3), 0.5);
  EXPECT_DOUBLE_EQ(round_step(1.0), 1.0);
  EXPECT_DOUBLE_EQ(round_step(1.01), 2.0);
  EXPECT_DOUBLE_EQ(round_step(5.5), 10.0);
  EXPECT_DOUBLE_EQ(round_step(1000.0), 1000.0);
  EXPECT_DOUBLE_EQ(round_step(2.1e-7), 5e-7);
}

TEST(Svg, AxesCountInTheLargestUnitThatFits) {
  EXPECT_STREQ(byte_unit(0.0).name, "bytes");
  EXPECT_STREQ(byte_unit(1023.0).name, "bytes");
  EXPECT_STREQ(byte_unit(1024.0).name, "KiB");
  EXPECT_STREQ(byte_unit(3.5e9).name, "GiB");
  EXPECT_DOUBLE_EQ(byte_unit(3.5e9).bytes, 1024.0 * 1024.0 * 1024.0);
  EXPECT_STREQ(byte_unit(1e30).name, "EiB");
}

}  // namespace
}  // namespace triphase::svg
