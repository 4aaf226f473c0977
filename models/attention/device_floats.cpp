#include "models/attention/device_floats.h"

#include <algorithm>

#include "kernels/sparse_ops.h"

namespace triphase {

template <class T>
void DeviceNumbers<T>::resize(std::int64_t count, Device& device, Stream& stream) {
  if (count > room_) {
    // An eighth as much again, so that a growing sequence seldom moves.
    const std::int64_t room = std::max(count, room_ + room_ / kSlack);
    DeviceNumbers larger;
    larger.data_ = static_cast<T*>(device.allocate(bytes_of(room)));
    larger.device_ = &device;
    larger.room_ = room;
    if (size_ > 0) device.copy(larger.data_, data_, bytes_of(size_), stream);
    if (data_ != nullptr) stream.synchronize();  // the old numbers go now
    *this = std::move(larger);
  }
  size_ = count;
}

template <class T>
void DeviceNumbers<T>::assign(std::span<const T> values, Device& device, Stream& stream) {
  resize(std::ssize(values), device, stream);
  if (values.empty()) return;
  device.copy(data_, values.data(), values.size_bytes(), stream);
  stream.synchronize();  // `values` may go
}

template class DeviceNumbers<float>;
template class DeviceNumbers<std::int32_t>;
template class DeviceNumbers<ClusterCounts>;

}  // namespace triphase
