#include "models/attention/device_floats.h"

#include "kernels/sparse_ops.h"

namespace triphase {

template <class T>
DeviceNumbers<T>::DeviceNumbers(std::int64_t count, Device& device)
    : block_(device, bytes_of(count)) {}

template <class T>
DeviceNumbers<T>::DeviceNumbers(std::span<const T> values, Device& device, Stream& stream)
    : DeviceNumbers(std::ssize(values), device) {
  device.copy(data(), values.data(), values.size_bytes(), stream);
  stream.synchronize();
}

template class DeviceNumbers<float>;
template class DeviceNumbers<std::int32_t>;
template class DeviceNumbers<ClusterCounts>;

}  // namespace triphase
