#pragma once

// The header of a safetensors file: which tensors it holds, their types, shapes and bytes. Reads
// and validates everything before anybody uses an offset; never touches tensor data. The result is
// compact (hundreds of thousands of tensors stay cheap), immutable and safe to share.
// Format: 8 bytes little-endian N, N bytes of JSON, tensor data.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "models/files/file_reader.h"

namespace triphase {

inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;  // the reference's own limit
inline constexpr std::size_t kMaxTensors = 1'000'000;
inline constexpr std::size_t kMaxTensorName = 256;  // bytes
inline constexpr std::size_t kMaxTensorRank = 8;

// One of the format's element types; `dtype` only for those a DType exists for.
struct SafetensorsType {
  std::string_view name;
  std::uint32_t bits = 0;
  std::optional<DType> dtype;
};

struct TensorRecord {
  std::string_view name;  // valid as long as the header
  const SafetensorsType* type = nullptr;
  std::span<const std::uint64_t> shape;
  std::uint64_t begin = 0;  // bytes from the start of the file
  std::uint64_t bytes = 0;
};

class SafetensorsHeader {
 public:
  [[nodiscard]] std::size_t size() const { return tensors_.size(); }
  [[nodiscard]] TensorRecord operator[](std::size_t index) const;  // in file order of the header
  [[nodiscard]] std::optional<TensorRecord> find(std::string_view name) const;
  // Hash of the header's text, for fingerprints.
  [[nodiscard]] std::uint64_t text_hash() const { return text_hash_; }
  [[nodiscard]] std::uint64_t trailing_bytes() const { return trailing_bytes_; }

 private:
  friend class SafetensorsParser;

  struct Tensor {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint32_t name_offset = 0;  // into names_; the header is below 2^32 bytes
    std::uint32_t shape_offset = 0;
    std::uint16_t name_bytes = 0;
    std::uint8_t type = 0;
    std::uint8_t rank = 0;
  };

  [[nodiscard]] std::string_view name_of(const Tensor& tensor) const {
    return std::string_view(names_).substr(tensor.name_offset, tensor.name_bytes);
  }

  std::vector<Tensor> tensors_;
  std::string names_;
  std::vector<std::uint64_t> shapes_;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> by_hash_;  // (hash of name, index), sorted
  std::uint64_t data_begin_ = 0;
  std::uint64_t text_hash_ = 0;
  std::uint64_t trailing_bytes_ = 0;
};

// Length N of the JSON part from the first bytes of a file (`start`: its first 512 bytes, or all of
// a shorter file). Throws E-ST-LENGTH, E-ST-LFS or E-ST-FORMAT naming what the file is instead.
[[nodiscard]] std::uint64_t safetensors_header_length(std::span<const std::byte> start,
                                                      std::uint64_t file_bytes,
                                                      std::string_view file);

// Parses the JSON part. `file_bytes` is the size of the whole file. Throws E-ST-* naming file and
// tensor.
[[nodiscard]] SafetensorsHeader parse_safetensors_header(std::string_view text,
                                                         std::uint64_t file_bytes,
                                                         std::string_view file,
                                                         bool allow_trailing_bytes);

[[nodiscard]] SafetensorsHeader read_safetensors_header(const FileReader& file,
                                                        bool allow_trailing_bytes);

}  // namespace triphase
