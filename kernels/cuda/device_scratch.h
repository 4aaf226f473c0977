#pragma once

// A block of device memory that grows to the largest request so far. Its content is undefined after
// a request; work that still uses the old block is waited for before it goes.

#include <cstddef>

#include "base/device.h"

namespace triphase::cuda {

class DeviceScratch {
 public:
  explicit DeviceScratch(Device& device) : device_(&device) {}
  ~DeviceScratch() { release(); }
  DeviceScratch(const DeviceScratch&) = delete;
  DeviceScratch& operator=(const DeviceScratch&) = delete;

  [[nodiscard]] std::byte* at_least(std::size_t bytes, Stream& stream) {
    if (bytes > bytes_) {
      stream.synchronize();
      release();
      data_ = static_cast<std::byte*>(device_->allocate(bytes));
      bytes_ = bytes;
    }
    return data_;
  }

  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  void release() noexcept {
    if (data_ != nullptr) device_->release(data_, bytes_);
    data_ = nullptr;
    bytes_ = 0;
  }

  Device* device_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace triphase::cuda
