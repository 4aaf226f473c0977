#include "models/files/safetensors.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <limits>

#include "tests/unit/models/checkpoint_builder.h"
#include "tests/unit/models/error_matcher.h"

namespace triphase {
namespace {

SafetensorsHeader read(const std::string& content, bool allow_trailing = false) {
  const TemporaryDirectory directory;
  directory.write("x.safetensors", content);
  const DirectoryHandle handle(directory.path());
  return read_safetensors_header(FileReader::open(handle, "x.safetensors"), allow_trailing);
}

// A header text with 8 bytes of data behind it.
SafetensorsHeader read_header(const std::string& header) {
  return read(with_length(header) + std::string(8, 'x'));
}

struct BadCase {
  std::string name;
  std::string content;
  std::string code;
  std::string text;
};

void PrintTo(const BadCase& bad, std::ostream* out) { *out << bad.name; }

std::string length_only(std::uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + "{}";
}

std::string one(const std::string& fields) {
  return with_length("{\"t\":{" + fields + "}}") + std::string(8, 'x');
}

std::vector<BadCase> bad_cases() {
  const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  const std::string nested(5'000'000, '[');
  return {
      {"Empty", "", "E-ST-LENGTH", "0 bytes"},
      {"SevenBytes", "1234567", "E-ST-LENGTH", "7 bytes"},
      {"HeaderAboveLimit", length_only(100'000'001), "E-ST-LENGTH", "100000001"},
      {"HeaderWraps", length_only(~std::uint64_t{0}), "E-ST-LENGTH", "18446744073709551615"},
      {"HeaderLengthPlusEightWraps", length_only(~std::uint64_t{0} - 7), "E-ST-LENGTH", "at most"},
      {"HeaderBeyondFile", length_only(500), "E-ST-LENGTH", "500, and 2 bytes follow"},
      {"LfsPointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
       "E-ST-LFS", "git lfs pull"},
      {"Html", "<!DOCTYPE html><html><body>404</body></html>", "E-ST-FORMAT", "web page"},
      {"Zip", std::string("PK\x03\x04\x00\x00\x08\x08\x00\x00", 10), "E-ST-FORMAT", "zip"},
      {"Pickle", std::string("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a", 11), "E-ST-FORMAT",
       "pickle"},
      {"Gguf", std::string("GGUF\x03\x00\x00\x00\x23\x01\x00\x00", 12), "E-ST-FORMAT", "GGUF"},
      {"JsonText", "{\"error\":\"Repository not found\"}", "E-ST-FORMAT", "JSON"},
      {"InvalidUtf8", with_length("{\"\xff\":1}"), "E-ST-JSON", "byte"},
      {"NotJson", with_length("{\"t\":}"), "E-ST-JSON", "byte 14"},
      {"TrailingGarbage", with_length("{} x"), "E-ST-JSON", "byte"},
      {"Nul", with_length(std::string("{}\0 x", 5)), "E-ST-JSON", "a NUL byte"},
      {"ByteOrderMark", with_length("\xEF\xBB\xBF{}"), "E-ST-JSON", "expected \"{\""},
      {"LeadingSpace", with_length(" {}"), "E-ST-JSON", "byte 9"},
      {"EmptyHeader", with_length("") + "{", "E-ST-JSON", "no header"},
      {"Array", with_length("[]"), "E-ST-JSON", "expected \"{\""},
      {"TensorIsNumber", with_length("{\"t\":1}"), "E-ST-HEADER", "t: 1"},
      {"TensorIsArray", with_length("{\"t\":[]}"), "E-ST-HEADER", "t: an array"},
      {"Duplicate", with_length("{\"t\":{" + good + "},\"t\":{" + good + "}}") + "12345678",
       "E-ST-DUPLICATE", "t: given twice"},
      {"DuplicateByEscape",
       with_length("{\"t\":{" + good + "},\"\\u0074\":{" + good + "}}") + "12345678",
       "E-ST-DUPLICATE", "t: given twice"},
      {"DuplicateField", one(good + ",\"shape\":[2]"), "E-ST-DUPLICATE", "t: shape"},
      {"UnknownDtype", one(R"("dtype":"F12","shape":[2],"data_offsets":[0,8])"), "E-ST-DTYPE",
       "\"F12\""},
      {"DtypeNumber", one(R"("dtype":32,"shape":[2],"data_offsets":[0,8])"), "E-ST-HEADER", "32"},
      {"ProductOverflows",
       one(R"("dtype":"F32","shape":[2,18446744073709551614],"data_offsets":[0,8])"), "E-ST-SHAPE",
       "64 bits"},
      {"BitsOverflow", one(R"("dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,8])"),
       "E-ST-SHAPE", "64 bits"},
      {"Above64Bits", one(R"("dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8])"),
       "E-ST-HEADER", "18446744073709551616"},
      {"Negative", one(R"("dtype":"F32","shape":[-1],"data_offsets":[0,8])"), "E-ST-HEADER", "-1"},
      {"Float", one(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,8])"), "E-ST-HEADER", "1.0"},
      {"Exponent", one(R"("dtype":"F32","shape":[1e3],"data_offsets":[0,8])"), "E-ST-HEADER",
       "1e3"},
      {"StringDimension", one(R"("dtype":"F32","shape":["2"],"data_offsets":[0,8])"), "E-ST-HEADER",
       "shape"},
      {"NestedShape", one(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"), "E-ST-HEADER",
       "an array"},
      {"NullShape", one(R"("dtype":"F32","shape":null,"data_offsets":[0,8])"), "E-ST-HEADER",
       "null"},
      {"RankNine", one(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8])"),
       "E-ST-LIMIT", "more than 8"},
      {"OneOffset", one(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), "E-ST-OFFSETS",
       "1 numbers"},
      {"ThreeOffsets", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,9])"), "E-ST-OFFSETS",
       "more than 2"},
      {"BeginAfterEnd", one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), "E-ST-OFFSETS",
       "[8, 0]"},
      {"WrongBytes", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), "E-ST-OFFSETS",
       "8 bytes, from dtype and shape"},
      {"Truncated", one(R"("dtype":"F32","shape":[3],"data_offsets":[0,12])"), "E-ST-TRUNCATED",
       "lacks 4 bytes"},
      {"FarBeyondEnd",
       one(R"("dtype":"U8","shape":[18446744073709551],"data_offsets":[0,18446744073709551])"),
       "E-ST-TRUNCATED", "t: data ends"},
      {"Overlap",
       with_length(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                   R"("b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})") +
           "12345678",
       "E-ST-OFFSETS", "b: data_offsets: begins at 2, expected 4"},
      {"Hole",
       with_length(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                   R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})") +
           "123",
       "E-ST-OFFSETS", "begins at 2, expected 1"},
      {"BytesAfterLast", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), "E-ST-OFFSETS",
       "--allow-trailing-bytes"},
      {"MissingField", one(R"("dtype":"F32","shape":[2])"), "E-ST-HEADER", "data_offsets: missing"},
      {"MetadataNumber", with_length("{\"__metadata__\":{\"a\":1}}"), "E-ST-HEADER", "a string"},
      {"MetadataNested", with_length("{\"__metadata__\":{\"a\":{}}}"), "E-ST-HEADER", "an object"},
      {"MetadataTwice", with_length("{\"__metadata__\":{},\"__metadata__\":{}}"), "E-ST-DUPLICATE",
       "__metadata__"},
      {"Nested", with_length("{\"t\":" + nested), "E-ST-HEADER", "an array"},
      {"NestedInUnknownField", with_length("{\"t\":{\"x\":" + nested), "E-ST-JSON", "deeper than"},
      {"LongName", with_length("{\"" + std::string(257, 'n') + "\":1}"), "E-ST-LIMIT",
       "a name of 257 bytes"},
      {"HugeNumber", one(R"("dtype":"F32","shape":[1e999],"data_offsets":[0,8])"), "E-ST-JSON",
       "byte"},
      {"PartialByte", one(R"("dtype":"F4","shape":[15],"data_offsets":[0,8])"), "E-ST-SHAPE",
       "whole bytes"},
  };
}

class BadSafetensors : public testing::TestWithParam<BadCase> {};

TEST_P(BadSafetensors, IsRefusedByName) {
  const Error error = thrown_by([&] { (void)read(GetParam().content); });
  expect_error(error, GetParam().code, GetParam().text);
  EXPECT_EQ(exit_code(error.role()), 3);
  EXPECT_LT(error.message().size(), 2000U);
  EXPECT_NE(error.message().find("x.safetensors"), std::string::npos) << error.message();
}

INSTANTIATE_TEST_SUITE_P(All, BadSafetensors, testing::ValuesIn(bad_cases()),
                         [](const auto& tested) { return tested.param.name; });

TEST(Safetensors, FindsTensorsByName) {
  const SafetensorsHeader header =
      read(safetensors({f32_tensor("a", {2, 1}, {1, 2}), f32_tensor("b.c", {1}, {3})}));
  ASSERT_EQ(header.size(), 2U);
  const auto b = header.find("b.c");
  ASSERT_TRUE(b);
  EXPECT_EQ(b->bytes, 4U);
  EXPECT_THAT(b->shape, testing::ElementsAre(1));
  EXPECT_EQ(b->type->dtype, DType::kF32);
  const auto a = header.find("a");
  ASSERT_TRUE(a);
  EXPECT_THAT(a->shape, testing::ElementsAre(2, 1));
  EXPECT_EQ(b->begin, a->begin + 8);
  EXPECT_FALSE(header.find("b"));
  EXPECT_FALSE(header.find(""));
}

TEST(Safetensors, AcceptsWhatTheFormatAllows) {
  // Scalars, empty tensors, trailing white space, metadata, unknown fields, any known type.
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
      R"("e":{"dtype":"BF16","shape":[7,0],"data_offsets":[4,4],"note":{"x":[1,{}]}},)"
      R"("f":{"shape":[8],"data_offsets":[4,8],"dtype":"F4"}} )"
      "\n\t ";
  const SafetensorsHeader read_back = read(with_length(header) + "12345678");
  EXPECT_TRUE(read_back.find("s")->shape.empty());
  EXPECT_EQ(read_back.find("s")->bytes, 4U);
  EXPECT_THAT(read_back.find("e")->shape, testing::ElementsAre(7, 0));
  EXPECT_EQ(read_back.find("e")->bytes, 0U);
  EXPECT_EQ(read_back.find("f")->type->bits, 4U);
  EXPECT_EQ(read(with_length("{}")).size(), 0U);
}

TEST(Safetensors, AHeaderWhoseLengthLooksLikeAPickleIsRead) {
  // Length 0x0280 begins with the bytes of a pickle; such files are fine.
  const std::string header = "{}" + std::string(0x0280 - 2, ' ');
  EXPECT_EQ(read(with_length(header)).size(), 0U);
}

TEST(Safetensors, TrailingBytesUnderTheOption) {
  const std::string file = safetensors({f32_tensor("a", {1}, {1})}) + "tail";
  EXPECT_EQ(read(file, true).trailing_bytes(), 4U);
  EXPECT_THROW((void)read(file, false), Error);
}

TEST(Safetensors, ErrorsEscapeTensorNames) {
  const Error error =
      thrown_by([] { (void)read_header("{\"a\\u001b[31m\\n\":{\"dtype\":\"F12\"}}"); });
  EXPECT_NE(error.message().find("a\\x1b[31m"), std::string::npos) << error.message();
  for (const char c : error.message()) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
}

TEST(Safetensors, OverlappingTensorsByTheHundredThousandAreRefused) {
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i) {
    header += (i == 0 ? "\"" : ",\"") + std::to_string(i) +
              R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  }
  expect_error(thrown_by([&] { (void)read_header(header + "}"); }), "E-ST-OFFSETS",
               "begins at 0, expected 8");
}

// Processor time of reading a header of so many tensors: the machine may be busy.
double seconds_to_read(int tensors) {
  std::string header = "{";
  for (int i = 0; i < tensors; ++i) {
    header += (i == 0 ? "\"model.layers." : ",\"model.layers.") + std::to_string(i) +
              R"(.weight":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(i) + "," +
              std::to_string(i + 1) + "]}";
  }
  header += "}";
  const std::uint64_t begin = 8 + header.size();
  const auto count = static_cast<std::uint64_t>(tensors);
  const std::clock_t start = std::clock();
  const SafetensorsHeader read_back = parse_safetensors_header(header, begin + count, "x", false);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_EQ(read_back.size(), count);
  EXPECT_EQ(read_back.find("model.layers." + std::to_string(tensors - 1) + ".weight")->begin,
            begin + count - 1);
  return seconds;
}

TEST(Safetensors, ManyTensorsTakeLinearTime) {
  // 17 times the tensors; quadratic would be 289 times the time.
  double times = 0.0;
  for (int attempt = 0; attempt < 3; ++attempt) {
    times = seconds_to_read(850'000) / std::max(seconds_to_read(50'000), 0.002);
    if (times < 70.0) break;
  }
  EXPECT_LT(times, 70.0);
}

TEST(Safetensors, MoreThanAMillionTensorsAreRefused) {
  std::string header = "{";
  for (int i = 0; i <= 1'000'000; ++i) {
    header += (i == 0 ? "\"" : ",\"") + std::to_string(i) +
              R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  expect_error(thrown_by([&] {
                 (void)parse_safetensors_header(header + "}", header.size() + 100, "x", false);
               }),
               "E-ST-LIMIT", "more than 1000000 tensors");
}

TEST(FileReader, RefusesWhatIsNoRegularFile) {
  const TemporaryDirectory directory;
  ASSERT_EQ(::mkfifo((directory.path() + "/fifo").c_str(), 0600), 0);
  std::filesystem::create_directory(directory.path() + "/folder");
  std::filesystem::create_symlink("/dev/zero", directory.path() + "/device");
  const DirectoryHandle handle(directory.path());
  const auto open = [&](const char* name) {
    return thrown_by([&] { (void)FileReader::open(handle, name); });
  };
  expect_error(open("fifo"), "E-ST-FILE", "pipe");
  expect_error(open("folder"), "E-ST-FILE", "directory");
  expect_error(open("device"), "E-ST-FILE", "device");
  expect_error(open("absent"), "E-ST-FILE", "No such file");
  expect_error(thrown_by([&] { DirectoryHandle none(directory.path() + "/none"); }), "E-CFG-DIR",
               "No such file");
  expect_error(thrown_by([&] { DirectoryHandle none(directory.path() + "/fifo"); }), "E-CFG-DIR",
               "not a directory");
}

TEST(FileReader, FollowsLinksAndReportsShortenedFiles) {
  const TemporaryDirectory directory;
  directory.write("blob", std::string(100, 'x'));
  std::filesystem::create_symlink("blob", directory.path() + "/link");
  const DirectoryHandle handle(directory.path());
  const FileReader file = FileReader::open(handle, "link");
  EXPECT_EQ(file.size(), 100U);
  std::filesystem::resize_file(directory.path() + "/blob", 50);
  std::vector<std::byte> bytes(20);
  file.read(30, bytes);
  const Error error = thrown_by([&] { file.read(40, bytes); });
  expect_error(error, "E-IO-READ", "byte 50");
  EXPECT_EQ(exit_code(error.role()), 6);
}

}  // namespace
}  // namespace triphase
