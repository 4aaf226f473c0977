#pragma once

// Numbers that a method keeps in the device's memory. Move-only; the device must outlive them. Work
// on them is queued on the stream that a call names.

#include <cstdint>
#include <span>
#include <utility>

#include "base/device.h"

namespace triphase {

template <class T>
class DeviceNumbers {
 public:
  DeviceNumbers() = default;
  DeviceNumbers(DeviceNumbers&& other) noexcept { *this = std::move(other); }
  DeviceNumbers& operator=(DeviceNumbers&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(room_, other.room_);
    return *this;
  }
  ~DeviceNumbers() {
    if (data_ != nullptr) device_->release(data_, bytes_of(room_));
  }

  // What was there stays; what is new is undefined.
  void resize(std::int64_t count, Device& device, Stream& stream);
  void assign(std::span<const T> values, Device& device, Stream& stream);

  // Bytes that growing to so many numbers takes at most.
  [[nodiscard]] static std::uint64_t most_bytes(std::int64_t count) {
    return bytes_of(count + count / kSlack);
  }

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_of(room_); }

 private:
  static constexpr std::int64_t kSlack = 8;
  static std::size_t bytes_of(std::int64_t count) {
    return static_cast<std::size_t>(count) * sizeof(T);
  }

  Device* device_ = nullptr;
  T* data_ = nullptr;
  std::int64_t size_ = 0;
  std::int64_t room_ = 0;
};

using DeviceFloats = DeviceNumbers<float>;

}  // namespace triphase
