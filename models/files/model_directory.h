#pragma once

// A Hugging Face model directory: its config, generation config and weight headers, validated
// together. Reads no weights, but for a head that config.json ties (settle_by_files), and no
// tokenizer. Owns what it opened.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "models/config/model_config.h"
#include "models/files/file_reader.h"
#include "models/files/weight_files.h"

namespace triphase {

// Of config.json and generation_config.json.
inline constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{16} << 20;
inline constexpr FileErrors kConfigErrors{ErrorRole::kModel, "E-CFG-FILE"};

struct ModelDirectoryOptions {
  bool weights = true;  // false: config only (random weights)
  bool allow_trailing_bytes = false;
};

struct ModelDirectory {
  ModelConfig config;
  std::unique_ptr<WeightFiles> files;     // null without weights
  std::optional<Json> generation_config;  // null when there is no such file
  std::string config_text;                // for fingerprints
  std::string generation_config_text;     // likewise
  std::vector<std::string> names;         // of the directory's entries, sorted
  Notes notes;
};

// Throws ErrorRole::kModel: E-CFG-* or E-ST-*.
[[nodiscard]] ModelDirectory open_model_directory(const std::string& path,
                                                  const ModelDirectoryOptions& options = {});

}  // namespace triphase
