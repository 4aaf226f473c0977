#include "base/error.h"

#include <gtest/gtest.h>

namespace triphase {
namespace {

TEST(Error, BuildsTheOneLine) {
  const Error error = Error(ErrorRole::kModel, "E-CFG-ROPE", "rope_scaling.rope_type")
                          .file("config.json")
                          .found("\"longrope\"")
                          .expected("default, linear")
                          .hint("do this");
  EXPECT_EQ(error.message(),
            "config.json: rope_scaling.rope_type: \"longrope\", expected default, linear; hint: do "
            "this [E-CFG-ROPE]");
  EXPECT_EQ(exit_code(error.role()), 3);
}

TEST(Error, NamesLineAndByte) {
  const Error error =
      Error(ErrorRole::kInput, "E-IN-UTF8", "prompt").file("p.jsonl").line(17).byte(42).found("x");
  EXPECT_EQ(error.message(), "p.jsonl:17:42: prompt: x [E-IN-UTF8]");
}

TEST(Error, UntrustedTextStaysOneCleanLine) {
  const Error error =
      Error(ErrorRole::kInput, "E-IN-X", "id\n\x1b[31m").found("a\r\n\xff\xc2\x9b!");
  EXPECT_EQ(error.message(), "id\\n\\x1b[31m: a\\r\\n\\xff\\xc2\\x9b! [E-IN-X]");
}

TEST(EscapeUntrusted, CutsLongText) {
  EXPECT_EQ(escape_untrusted(std::string(200, 'a')), std::string(80, 'a') + "...");
  EXPECT_EQ(escape_untrusted("gr\xC3\xBC\xC3\x9F"), "gr\xC3\xBC\xC3\x9F");
  EXPECT_EQ(escape_untrusted(std::string("a\0b", 3)), "a\\x00b");
}

TEST(Check, ThrowsAnInternalError) {
  try {
    TRIPHASE_CHECK(1 + 1 == 3, "arithmetic");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(exit_code(error.role()), 70);
    EXPECT_NE(error.message().find("arithmetic"), std::string::npos);
  }
}

}  // namespace
}  // namespace triphase
