#pragma once

// The memory behind ModelWeights: one block of the device and, for streamed layers, one of the
// host, which together hold every slot of the manifest, each aligned to kWeightAlignment; a layer's
// slots are one range. Used by load_weights and random_weights; not for others.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

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
    return host_bytes > 0 && slots_[index] >= host_block_.get() &&
           slots_[index] < host_block_.get() + host_bytes;
  }

 private:
  void place(const WeightEntry& entry, DType dtype, const std::byte* data);

  struct GiveBack {
    Device* device;
    std::size_t bytes;
    void operator()(std::byte* data) const noexcept { device->release(data, bytes); }
  };
  using Memory = std::unique_ptr<std::byte, GiveBack>;
  [[nodiscard]] static Memory take(Device& device, std::size_t bytes) {
    return Memory(static_cast<std::byte*>(device.allocate(bytes)), {&device, bytes});
  }

  WeightHomes homes_;
  Memory block_;
  Memory host_block_;
  std::vector<std::byte*> slots_;
};

// Bytes of manifest entry `entry` with matrices of `dtype`; the sizes were checked by
// manifest_bytes.
[[nodiscard]] std::uint64_t entry_bytes(const WeightEntry& entry, DType dtype);

}  // namespace triphase
