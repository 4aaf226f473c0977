#pragma once

// Numbers that a method keeps in the device's memory. Move-only; the device must outlive them.

#include <cstdint>
#include <span>

#include "base/device_block.h"

namespace triphase {

template <class T>
class DeviceNumbers {
 public:
  DeviceNumbers() = default;
  // So many, undefined.
  DeviceNumbers(std::int64_t count, Device& device);
  // These; waits for the stream.
  DeviceNumbers(std::span<const T> values, Device& device, Stream& stream);

  // Bytes that so many numbers take at most: a block that is used again (PoolDevice) may be an
  // eighth larger.
  [[nodiscard]] static std::uint64_t most_bytes(std::int64_t count) {
    return bytes_of(count + count / 8);
  }

  [[nodiscard]] T* data() const { return block_.at<T>(0); }
  [[nodiscard]] std::int64_t size() const {
    return static_cast<std::int64_t>(block_.bytes() / sizeof(T));
  }
  [[nodiscard]] std::uint64_t bytes() const { return block_.bytes(); }

 private:
  static std::size_t bytes_of(std::int64_t count) {
    return static_cast<std::size_t>(count) * sizeof(T);
  }

  DeviceBlock block_;
};

using DeviceFloats = DeviceNumbers<float>;

}  // namespace triphase
