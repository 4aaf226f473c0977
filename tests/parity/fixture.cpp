#include "tests/parity/fixture.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <stdexcept>

#include "models/files/file_reader.h"
#include "models/files/safetensors.h"

namespace triphase::parity {
namespace {

class ExpectedFile {
 public:
  explicit ExpectedFile(const std::string& directory)
      : reader_(FileReader::open(DirectoryHandle(directory), "expected.safetensors")),
        header_(read_safetensors_header(reader_, false)) {}

  [[nodiscard]] bool has(const std::string& name) const { return header_.find(name).has_value(); }

  // The tensor's values; `rank` dimensions are expected.
  template <class T>
  [[nodiscard]] std::vector<T> values(const std::string& name, DType dtype,
                                      std::size_t rank = 1) const {
    const std::optional<TensorRecord> tensor = header_.find(name);
    if (!tensor || tensor->type->dtype != dtype || tensor->shape.size() != rank ||
        dtype_bytes(dtype) != sizeof(T)) {
      throw std::runtime_error("expected.safetensors: no such tensor of that type: " + name);
    }
    std::vector<T> values(tensor->bytes / sizeof(T));
    reader_.read(tensor->begin, std::as_writable_bytes(std::span(values)));
    return values;
  }

 private:
  FileReader reader_;
  SafetensorsHeader header_;
};

}  // namespace

std::string fixtures_folder() {
  const char* root = std::getenv("TRIPHASE_SOURCE_DIR");
  return std::string(root != nullptr ? root : TRIPHASE_TEST_SOURCE_DIR) + "/tests/fixtures/parity";
}

std::vector<std::string> fixture_names() {
  std::vector<std::string> names;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures_folder(), missing)) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

Fixture read_fixture(const std::string& name) {
  Fixture fixture;
  fixture.name = name;
  fixture.directory = fixtures_folder() + "/" + name;
  const ExpectedFile file(fixture.directory);
  for (int index = 0;; ++index) {
    const std::string prefix = "prompt." + std::to_string(index) + ".";
    if (!file.has(prefix + "tokens")) break;
    ExpectedLogits prompt;
    prompt.tokens = file.values<TokenId>(prefix + "tokens", DType::kI32);
    prompt.positions = file.values<std::int32_t>(prefix + "positions", DType::kI32);
    prompt.logits = file.values<double>(prefix + "logits", DType::kF64, 2);
    prompt.vocab = prompt.logits.size() / prompt.positions.size();
    fixture.prompts.push_back(std::move(prompt));
  }
  for (int index = 0;; ++index) {
    const std::string prefix = "greedy." + std::to_string(index) + ".";
    if (!file.has(prefix + "tokens")) break;
    fixture.greedy.push_back({file.values<TokenId>(prefix + "prompt", DType::kI32),
                              file.values<TokenId>(prefix + "tokens", DType::kI32),
                              file.values<double>(prefix + "leads", DType::kF64)});
  }
  if (fixture.prompts.empty() || fixture.greedy.empty()) {
    throw std::runtime_error(name + ": expected.safetensors holds nothing to compare with");
  }
  return fixture;
}

}  // namespace triphase::parity
