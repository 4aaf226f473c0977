#pragma once

// Which tensors a config needs: their names in a checkpoint, their shapes, and where they lie in
// the fused matrices of LayerWeights. Loader, random weights, size estimates and the test model all
// derive from this list. Pure.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "models/config/model_config.h"

namespace triphase {

// A part of ModelWeights (layer < 0) or of one LayerWeights.
enum class WeightSlot : std::uint8_t {
  kEmbedding,
  kPositions,
  kProjectIn,
  kProjectOut,
  kFinalNorm,
  kFinalNormBias,
  kLmHead,
  kAttentionNorm,
  kAttentionNormBias,
  kQkv,
  kQkvBias,
  kQueryNorm,
  kKeyNorm,
  kSinks,
  kAttentionOut,
  kAttentionOutBias,
  kAttentionOutputNorm,
  kMlpNorm,
  kMlpNormBias,
  kRouter,
  kRouterBias,
  kUp,  // with experts: of all of them, one after the other; kDown and biases too
  kUpBias,
  kDown,
  kDownBias,
  kMlpOutputNorm,
};

// How the rows of a tensor lie in the slot.
enum class RowOrder : std::uint8_t {
  kPlain,
  kInterleavedQkv,     // each KV head's query heads, its k, its v: GPT-NeoX, Falcon
  kRotaryNeighbours,   // rotated channels 2c and 2c + 1 of a head become c and c + rotary_dim / 2
  kInterleavedGateUp,  // of each stacked matrix: gate, up, gate, ... become all gates, all ups
};

struct TensorPart {
  std::string name;            // without the prefix of the checkpoint
  bool prefixed = true;        // the output head carries no prefix
  std::string other_name;      // a second spelling, empty if none; prefixed as the first
  std::int64_t rows = 0;       // of this tensor
  std::int64_t first_row = 0;  // within the slot
  RowOrder order = RowOrder::kPlain;
  bool transposed = false;  // the tensor is [cols, rows]: GPT-2
  // The tensor has one dimension more in front: so many matrices or vectors, which share `rows`.
  std::int64_t stacked = 0;
  // Instead of the tensor, NAME_blocks [.., rows, cols / 32, 16] and NAME_scales [.., rows,
  // cols / 32] may be there (weights/mxfp4.h), whether it is transposed or not.
  bool may_be_mxfp4 = false;
  std::string_view rows_from{};  // the config fields that make the expected shape, for messages
  std::string_view cols_from{};
  std::string_view stacked_from{};

  [[nodiscard]] std::int64_t rows_of_each() const { return stacked == 0 ? rows : rows / stacked; }
};

struct WeightEntry {
  WeightSlot slot{};
  std::int64_t layer = -1;
  bool vector = false;  // norms and biases: kept in F32; cols is 1
  std::int64_t rows = 0;
  std::int64_t cols = 1;
  float factor = 1.0F;            // of vectors: what the tensor's values are multiplied by
  std::vector<TensorPart> parts;  // empty: no tensor in the file, the slot is filled with ones

  [[nodiscard]] bool is_norm_weight() const {
    switch (slot) {
      case WeightSlot::kAttentionNorm:
      case WeightSlot::kMlpNorm:
      case WeightSlot::kFinalNorm:
      case WeightSlot::kQueryNorm:
      case WeightSlot::kKeyNorm:
      case WeightSlot::kAttentionOutputNorm:
      case WeightSlot::kMlpOutputNorm:
        return true;
      default:
        return false;
    }
  }
};

// In the order of a forward pass. A tied output head has no entry of its own.
[[nodiscard]] std::vector<WeightEntry> weight_manifest(const ModelConfig& config);

// Prefixes under which checkpoints of this family store their tensors, most common first: whole
// language models and base models alone.
[[nodiscard]] std::span<const std::string_view> tensor_prefixes(TensorNaming naming);

// Name of the embedding table without prefix: the tensor that tells which prefix is in use.
[[nodiscard]] std::string embedding_tensor(TensorNaming naming);

// Tensors that checkpoints carry and nobody needs (inverse frequencies, causal masks): passed over
// in silence. `name` with its prefix.
[[nodiscard]] bool harmless_extra_tensor(std::string_view name);

// The tensor belongs to a quantized checkpoint (GPTQ, AWQ, bitsandbytes, FP8).
[[nodiscard]] bool quantized_tensor(std::string_view name);

// Parameters of the whole model; a tied head counts once.
[[nodiscard]] std::uint64_t parameter_count(const ModelConfig& config);

// Alignment in bytes of every slot in device memory.
inline constexpr std::uint64_t kWeightAlignment = 64;
// What a slot of `bytes` takes.
[[nodiscard]] constexpr std::uint64_t aligned_bytes(std::uint64_t bytes) {
  return (bytes + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment;
}

// Bytes of all slots with matrices of `dtype` and vectors in F32, each slot aligned. Throws
// E-CFG-LIMIT when the sum does not fit 64 bits.
[[nodiscard]] std::uint64_t manifest_bytes(std::span<const WeightEntry> manifest, DType dtype);

}  // namespace triphase
