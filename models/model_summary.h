#pragma once

// What `triphase inspect` tells about a model, as plain values: architecture, sizes, tensors,
// tokenizer files, warnings. Reads headers only.

#include <cstdint>
#include <string>
#include <vector>

#include "models/files/model_directory.h"

namespace triphase {

struct DtypeShare {
  std::string name;  // as the format spells it: "BF16"
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};

struct KvCost {
  DType dtype = DType::kF16;
  std::uint64_t bytes_per_token = 0;  // K and V, all layers
  std::uint64_t full_context = 0;     // of the longest context
  // Of that, what its last token reads: layers with windows read no more than these.
  std::uint64_t within_windows = 0;
};

struct TensorSummary {
  std::string name;  // escaped
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t bytes = 0;
  std::string file;
};

struct ModelSummary {
  std::string model_type;
  std::string architecture;
  ModelConfig config;
  std::uint64_t parameters = 0;       // that the model computes with; a tied head counts once
  std::uint64_t weight_bytes = 0;     // device bytes once loaded; 0 without weight files
  DType weights_dtype = DType::kF16;  // of most of the matrices' bytes, else the config's
  std::uint64_t tensor_count = 0;
  std::uint64_t file_bytes = 0;  // of all weight files
  std::vector<std::string> weight_files;
  std::vector<DtypeShare> dtypes;  // largest first
  std::vector<KvCost> kv;          // F32, F16, I8 with scales
  std::vector<std::string> tokenizer_files;
  std::vector<TensorSummary> tensors;  // in file order
  Notes notes;
};

// Also checks that the files hold every tensor the config needs (throws E-ST-* like load_weights
// would, before any weight is read).
[[nodiscard]] ModelSummary summarise_model(const ModelDirectory& model);

// The summary of a shape without files.
[[nodiscard]] ModelSummary summarise_shape(const ModelConfig& config);

}  // namespace triphase
