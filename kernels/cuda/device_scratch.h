#pragma once

// A block of device memory that grows to the largest request so far. Its content is undefined after
// a request; work that still uses the old block is waited for before it goes.

#include <cstddef>

#include "base/device_block.h"

namespace triphase::cuda {

class DeviceScratch {
 public:
  explicit DeviceScratch(Device& device) : device_(&device) {}

  [[nodiscard]] std::byte* at_least(std::size_t bytes, Stream& stream) {
    if (bytes > block_.bytes()) {
      stream.synchronize();
      block_ = {};
      block_ = DeviceBlock(*device_, bytes);
    }
    return block_.data();
  }

  [[nodiscard]] std::size_t bytes() const { return block_.bytes(); }

 private:
  Device* device_;
  DeviceBlock block_;
};

}  // namespace triphase::cuda
