#pragma once

// Numbers that a method keeps in the device's memory. Move-only; the device must outlive them. Work
// on them is queued on the stream that a call names.

#include <cstdint>
#include <span>
#include <utility>

#include "base/device.h"

namespace triphase {

class DeviceFloats {
 public:
  DeviceFloats() = default;
  DeviceFloats(DeviceFloats&& other) noexcept { *this = std::move(other); }
  DeviceFloats& operator=(DeviceFloats&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(room_, other.room_);
    return *this;
  }
  ~DeviceFloats() {
    if (data_ != nullptr) device_->release(data_, bytes_of(room_));
  }

  // What was there stays; what is new is undefined.
  void resize(std::int64_t count, Device& device, Stream& stream);
  void assign(std::span<const float> values, Device& device, Stream& stream);

  // Bytes that growing to so many numbers takes at most.
  [[nodiscard]] static std::uint64_t most_bytes(std::int64_t count) {
    return bytes_of(count + count / kSlack);
  }

  [[nodiscard]] float* data() const { return data_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_of(room_); }

 private:
  static constexpr std::int64_t kSlack = 8;
  static std::size_t bytes_of(std::int64_t count) {
    return static_cast<std::size_t>(count) * sizeof(float);
  }

  Device* device_ = nullptr;
  float* data_ = nullptr;
  std::int64_t size_ = 0;
  std::int64_t room_ = 0;
};

}  // namespace triphase
