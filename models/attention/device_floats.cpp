#include "models/attention/device_floats.h"

#include <algorithm>

namespace triphase {

void DeviceFloats::resize(std::int64_t count, Device& device, Stream& stream) {
  if (count > room_) {
    // An eighth as much again, so that a growing sequence seldom moves.
    const std::int64_t room = std::max(count, room_ + room_ / kSlack);
    DeviceFloats larger;
    larger.data_ = static_cast<float*>(device.allocate(bytes_of(room)));
    larger.device_ = &device;
    larger.room_ = room;
    if (size_ > 0) device.copy(larger.data_, data_, bytes_of(size_), stream);
    if (data_ != nullptr) stream.synchronize();  // the old numbers go now
    *this = std::move(larger);
  }
  size_ = count;
}

void DeviceFloats::assign(std::span<const float> values, Device& device, Stream& stream) {
  resize(static_cast<std::int64_t>(values.size()), device, stream);
  if (values.empty()) return;
  device.copy(data_, values.data(), values.size_bytes(), stream);
  stream.synchronize();  // `values` may go
}

}  // namespace triphase
