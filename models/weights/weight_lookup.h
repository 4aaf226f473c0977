#pragma once

// Matches the manifest of a config with the tensors of a checkpoint: names under whatever prefix
// is in use, types, shapes. Everything is checked before any weight is read or any memory taken.

#include <optional>
#include <span>
#include <vector>

#include "models/config/tensor_manifest.h"
#include "models/files/weight_files.h"

namespace triphase {

struct FoundTensor : FileTensor {
  std::optional<FileTensor> scales;  // there: the tensor holds MXFP4 blocks (mxfp4.h), read as BF16
};

struct WeightLookup {
  std::vector<std::vector<FoundTensor>> tensors;  // as manifest[i].parts
  std::vector<DType> dtypes;  // of manifest[i]'s matrix: the parts' own, or F32 when they differ
  std::uint64_t bytes = 0;    // to read
};

// Throws E-ST-QUANT, E-ST-MISSING, E-ST-DTYPE or E-ST-SHAPE (M11, M25 to M27 of the error list).
// Notes tensors nobody asked for and a torch_dtype that the files contradict.
[[nodiscard]] WeightLookup find_weights(const WeightFiles& files, const ModelConfig& config,
                                        std::span<const WeightEntry> manifest, Notes& notes);

// Everything load_weights checks before it reads a weight, for commands that must refuse a model
// before they start anything. Also sets config.embedding.scale from the type in the files.
void check_weight_tensors(const WeightFiles& files, const ModelConfig& config);

// Sets what the files decide: the type that a scaled embedding's factor is rounded to, and that an
// output head is not tied where they hold one with numbers of its own, as in transformers 5. Reads
// a head in the files of a tied model, up to where it differs.
void settle_by_files(const WeightFiles& files, ModelConfig& config, Notes& notes);

}  // namespace triphase
