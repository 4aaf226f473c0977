#include "models/files/weight_index.h"

#include "tests/unit/models/error_matcher.h"

namespace triphase {
namespace {

Error error_of(const std::string& text) {
  return thrown_by([&] { (void)parse_weight_index(text, "model.safetensors.index.json"); });
}

std::string shard(const std::string& name) { return R"({"weight_map":{"t":")" + name + "\"}}"; }

TEST(WeightIndex, ListsShardsOnce) {
  const WeightIndex index = parse_weight_index(
      R"({"metadata":{"total_size":8},"weight_map":{"b":"2.safetensors","a":"1.safetensors",)"
      R"("c":"1.safetensors"}})",
      "i");
  EXPECT_EQ(index.shards, (std::vector<std::string>{"1.safetensors", "2.safetensors"}));
  ASSERT_EQ(index.tensors.size(), 3U);
  EXPECT_EQ(index.tensors[0], (std::pair<std::string, std::uint32_t>{"a", 0}));
  EXPECT_EQ(index.tensors[1], (std::pair<std::string, std::uint32_t>{"b", 1}));
}

TEST(WeightIndex, ShardNamesAreOnePathComponent) {
  for (const std::string name : {"../x.safetensors", "/etc/x.safetensors", "a/x.safetensors",
                                 "a\\\\x.safetensors", "..", ".", "", "x.bin", ".safetensors",
                                 "x.safetensors\\u0000", "\\u0000.safetensors", "x.safetensors/"}) {
    expect_error(error_of(shard(name)), "E-ST-INDEX", "weight_map: t");
  }
  expect_error(error_of(shard(std::string(300, 'x') + ".safetensors")), "E-ST-INDEX", "file name");
  expect_error(error_of(R"({"weight_map":{"t":1}})"), "E-ST-INDEX", "t: 1");
}

TEST(WeightIndex, MalformedFilesAreRefused) {
  expect_error(error_of(""), "E-ST-INDEX", "JSON");
  expect_error(error_of("[]"), "E-ST-INDEX", "array of 0");
  expect_error(error_of("{}"), "E-ST-INDEX", "missing");
  expect_error(error_of(R"({"weight_map":[]})"), "E-ST-INDEX", "array of 0");
  expect_error(error_of(R"({"weight_map":{}})"), "E-ST-INDEX", "empty");
  expect_error(error_of(R"({"weight_map":{"a":"1.safetensors","a":"2.safetensors"}})"),
               "E-ST-INDEX", "duplicate key");
  expect_error(error_of(std::string(5'000'000, '[')), "E-ST-INDEX", "deeper than");
  expect_error(error_of("{\"weight_map\":{\"" + std::string(257, 'n') + "\":\"x.safetensors\"}}"),
               "E-ST-INDEX", "257 bytes");
}

TEST(WeightIndex, TooManyShardsAreRefused) {
  std::string text = R"({"weight_map":{)";
  for (int i = 0; i < 20'000; ++i) {
    const std::string number = std::to_string(i);
    text += (i == 0 ? "\"" : ",\"") + number + "\":\"" + number + ".safetensors\"";
  }
  expect_error(error_of(text + "}}"), "E-ST-INDEX", "more than 4096 shards");
}

}  // namespace
}  // namespace triphase
