#pragma once

// The memory behind ModelWeights: one block of the device and, for streamed layers, one of the
// host, which together hold every slot of the manifest, each aligned to kWeightAlignment; a layer's
// slots are one range. Used by load_weights and random_weights; not for others.

#include <cstddef>
#include <span>
#include <vector>

#include "base/device_block.h"
#include "models/config/tensor_manifest.h"
#include "models/weights/weights.h"

namespace triphase {

class WeightBlock final : public ModelWeights {
 public:
  // Allocates the blocks and points every matrix and vector into it; contents are unset.
  // `dtypes[i]` is the type of manifest[i]'s matrix (vectors are F32). Throws E-MEM-ALLOC.
  WeightBlock(const ModelConfig& config, std::span<const WeightEntry> manifest,
              std::span<const DType> dtypes, const WeightHomes& homes);

  // Memory of manifest[i].
  [[nodiscard]] std::byte* slot(std::size_t index) const { return slots_[index]; }
  // Whether it is the host's, which the host itself writes.
  [[nodiscard]] bool on_host(std::size_t index) const {
    return host_bytes > 0 && slots_[index] >= host_block_.data() &&
           slots_[index] < host_block_.data() + host_bytes;
  }

 private:
  void place(const WeightEntry& entry, DType dtype, const std::byte* data);

  WeightHomes homes_;
  DeviceBlock block_;
  DeviceBlock host_block_;
  std::vector<std::byte*> slots_;
};

// Bytes of manifest entry `entry` with matrices of `dtype`; the sizes were checked by
// manifest_bytes.
[[nodiscard]] std::uint64_t entry_bytes(const WeightEntry& entry, DType dtype);

}  // namespace triphase
