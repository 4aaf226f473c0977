#pragma once

// Builds safetensors files, and directories that hold them, for tests. Files live in a temporary
// directory that is removed with the object.

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace triphase {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "triphase-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << content;
  }

 private:
  std::string path_;
};

inline std::string with_length(const std::string& header) {
  std::string file(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  return file + header;
}

struct BuiltTensor {
  std::string name;
  std::string dtype;
  std::vector<std::size_t> shape;
  std::string data;
};

inline BuiltTensor f32_tensor(const std::string& name, const std::vector<std::size_t>& shape,
                              const std::vector<float>& values) {
  std::string data(values.size() * sizeof(float), '\0');
  std::memcpy(data.data(), values.data(), data.size());
  return {name, "F32", shape, data};
}

// `values` are the 16-bit patterns.
inline BuiltTensor tensor16(const std::string& name, const std::string& dtype,
                            const std::vector<std::size_t>& shape,
                            const std::vector<std::uint16_t>& values) {
  std::string data(values.size() * 2, '\0');
  std::memcpy(data.data(), values.data(), data.size());
  return {name, dtype, shape, data};
}

inline std::string safetensors(const std::vector<BuiltTensor>& tensors) {
  std::string header = "{";
  std::string data;
  for (const BuiltTensor& tensor : tensors) {
    std::string shape;
    for (const std::size_t size : tensor.shape) {
      shape += (shape.empty() ? "" : ",") + std::to_string(size);
    }
    header += (header.size() > 1 ? ",\"" : "\"") + tensor.name + "\":{\"dtype\":\"" + tensor.dtype +
              "\",\"shape\":[" + shape + "],\"data_offsets\":[" + std::to_string(data.size()) +
              "," + std::to_string(data.size() + tensor.data.size()) + "]}";
    data += tensor.data;
  }
  header += "}";
  return with_length(header) + data;
}

}  // namespace triphase
