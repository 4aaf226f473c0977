#include "models/files/weight_files.h"

#include <gmock/gmock.h>

#include "tests/unit/models/checkpoint_builder.h"
#include "tests/unit/models/error_matcher.h"

namespace triphase {
namespace {

constexpr const char* kIndex = "model.safetensors.index.json";

std::string one_tensor(const std::string& name, float value) {
  return safetensors({f32_tensor(name, {1}, {value})});
}

float value_of(const WeightFiles& files, const std::string& name) {
  const auto tensor = files.find(name);
  if (!tensor) return -1.0F;
  float value = 0.0F;
  files.read(*tensor, 0, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

std::vector<std::string> names_in(const WeightFiles& files) {
  std::vector<std::string> names;
  files.for_each([&](const FileTensor& tensor) {
    names.emplace_back(tensor.record.name);
    return true;
  });
  return names;
}

TEST(WeightFiles, ReadsASingleFile) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", one_tensor("a", 3.0F));
  Notes notes;
  const WeightFiles files = WeightFiles::open(DirectoryHandle(directory.path()), false, notes);
  EXPECT_EQ(value_of(files, "a"), 3.0F);
  EXPECT_FALSE(files.find("b"));
  EXPECT_THAT(names_in(files), testing::ElementsAre("a"));
  EXPECT_TRUE(notes.empty());
  std::byte byte{};
  EXPECT_THROW(files.read(*files.find("a"), 4, {&byte, 1}), Error);
}

TEST(WeightFiles, TheIndexWinsAndOthersAreNoted) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", one_tensor("a", 1.0F));
  directory.write("consolidated.safetensors", "ignored");
  directory.write("s1.safetensors", one_tensor("a", 2.0F));
  directory.write("s2.safetensors",
                  safetensors({f32_tensor("b", {1}, {4}), f32_tensor("unlisted", {1}, {5})}));
  directory.write(kIndex, R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})");
  Notes notes;
  const WeightFiles files = WeightFiles::open(DirectoryHandle(directory.path()), false, notes);
  EXPECT_EQ(value_of(files, "a"), 2.0F);
  EXPECT_EQ(value_of(files, "b"), 4.0F);
  EXPECT_FALSE(files.find("unlisted"));
  EXPECT_THAT(names_in(files), testing::ElementsAre("a", "b"));
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_NE(notes[0].find("model.safetensors is ignored"), std::string::npos);
  EXPECT_NE(notes[1].find("consolidated.safetensors is ignored"), std::string::npos);
}

Error open_error(const TemporaryDirectory& directory) {
  Notes notes;
  return thrown_by(
      [&] { (void)WeightFiles::open(DirectoryHandle(directory.path()), false, notes); });
}

TEST(WeightFiles, IndexAndShardsMustAgree) {
  const TemporaryDirectory missing;
  missing.write("s1.safetensors", one_tensor("a", 1.0F));
  missing.write(kIndex, R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})");
  expect_error(open_error(missing), "E-ST-INDEX",
               "weight_map: b: s2.safetensors, which is not in the directory");

  const TemporaryDirectory elsewhere;
  elsewhere.write("s1.safetensors",
                  safetensors({f32_tensor("a", {1}, {1}), f32_tensor("b", {1}, {2})}));
  elsewhere.write("s2.safetensors", one_tensor("b", 1.0F));
  elsewhere.write(kIndex, R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})");
  expect_error(open_error(elsewhere), "E-ST-INDEX",
               "s1.safetensors: b: a tensor that model.safetensors.index.json gives to "
               "s2.safetensors");

  const TemporaryDirectory absent;
  absent.write("s1.safetensors", one_tensor("a", 1.0F));
  absent.write(kIndex, R"({"weight_map":{"a":"s1.safetensors","b":"s1.safetensors"}})");
  expect_error(open_error(absent), "E-ST-INDEX", "s1.safetensors, which does not hold");
}

TEST(WeightFiles, NoWeightsSaysWhatThereIs) {
  const struct {
    const char* name;
    const char* text;
  } cases[] = {
      {"pytorch_model.bin", "convert_to_safetensors.py"},
      {"pytorch_model-00001-of-00002.bin", "convert_to_safetensors.py"},
      {"model.safetensors.incomplete", "did not finish"},
      {"model-00001-of-00002.safetensors", "index.json"},
      {"adapter_model.safetensors", "adapter"},
      {"weights.gguf", "original checkpoint"},
      {"README.md", "--random-weights"},
  };
  for (const auto& each : cases) {
    const TemporaryDirectory directory;
    directory.write(each.name, "x");
    expect_error(open_error(directory), "E-ST-NONE", each.text);
  }
}

}  // namespace
}  // namespace triphase
