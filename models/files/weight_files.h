#pragma once

// A model directory's weights as one set of named tensors, whether in model.safetensors or in
// shards listed by model.safetensors.index.json. All headers are validated when it is opened; data
// is read later, by pread from descriptors that stay open. Reading from many threads is safe.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/config/model_config.h"
#include "models/files/file_reader.h"
#include "models/files/safetensors.h"
#include "models/files/weight_index.h"

namespace triphase {

struct FileTensor {
  TensorRecord record;
  std::uint32_t file = 0;
};

class WeightFiles {
 public:
  // Precedence: the index, then model.safetensors; what is passed over is noted. Throws E-ST-*:
  // E-ST-NONE names what the directory has instead of weights.
  static WeightFiles open(const DirectoryHandle& directory, bool allow_trailing_bytes,
                          Notes& notes);

  // The tensor of this name, or nothing. With an index only tensors it lists exist.
  [[nodiscard]] std::optional<FileTensor> find(std::string_view name) const;

  // Every tensor of the set; stops early when `visit` returns false.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (std::uint32_t file = 0; file < files_.size(); ++file) {
      const SafetensorsHeader& header = files_[file].header;
      for (std::size_t index = 0; index < header.size(); ++index) {
        const TensorRecord record = header[index];
        if (listed(record.name, file) && !visit(FileTensor{record, file})) return;
      }
    }
  }

  // Fills `out` with the tensor's bytes from `offset` within it. Throws E-IO-READ (exit 6).
  void read(const FileTensor& tensor, std::uint64_t offset, std::span<std::byte> out) const;

  [[nodiscard]] std::size_t file_count() const { return files_.size(); }
  [[nodiscard]] const std::string& file_name(std::size_t file) const {
    return files_[file].reader.name();
  }
  [[nodiscard]] std::uint64_t file_bytes(std::size_t file) const {
    return files_[file].reader.size();
  }
  void read_file(std::size_t file, std::uint64_t offset, std::span<std::byte> out) const {
    files_[file].reader.read(offset, out);
  }
  [[nodiscard]] std::uint64_t header_hash(std::size_t file) const {
    return files_[file].header.text_hash();
  }

 private:
  struct File {
    FileReader reader;
    SafetensorsHeader header;
  };

  void add(const DirectoryHandle& directory, const std::string& name, bool allow_trailing_bytes,
           Notes& notes);
  void check_index() const;
  [[nodiscard]] bool listed(std::string_view name, std::uint32_t file) const {
    return !index_ || index_->shard_of(name) == file;
  }

  std::vector<File> files_;
  std::optional<WeightIndex> index_;  // shard numbers are file numbers
};

}  // namespace triphase
