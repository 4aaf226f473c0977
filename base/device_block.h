#pragma once

// Memory of a device for as long as this lives. Move-only; the device must outlive it.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/device.h"

namespace triphase {

class DeviceBlock {
 public:
  DeviceBlock() = default;
  DeviceBlock(Device& device, std::size_t bytes)
      : data_(static_cast<std::byte*>(device.allocate(bytes)), GiveBack{&device, bytes}) {}

  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::size_t bytes() const {
    return data_ == nullptr ? 0 : data_.get_deleter().bytes;
  }
  // What lies `offset` bytes behind its begin.
  template <class T>
  [[nodiscard]] T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(data() + offset);
  }

 private:
  struct GiveBack {
    Device* device;
    std::size_t bytes;
    void operator()(std::byte* data) const noexcept { device->release(data, bytes); }
  };
  std::unique_ptr<std::byte, GiveBack> data_{nullptr, GiveBack{nullptr, 0}};
};

}  // namespace triphase
