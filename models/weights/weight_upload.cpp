#include "models/weights/weight_upload.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/error.h"
#include "models/config/tensor_manifest.h"

namespace triphase {

WeightUpload::WeightUpload(Device& device)
    : device_(&device), stream_(device.make_stream()), sides_(device.runs_at_once() ? 1 : 2) {
  for (Side& side : sides_) {
    side.buffer = HostBuffer(device, kBufferBytes);
    side.sent = device.make_event();
  }
}

WeightUpload::~WeightUpload() {
  try {
    finish();
  } catch (const std::exception&) {
    // Whoever wanted the weights was told by finish(), or has another error to tell.
  }
}

std::byte* WeightUpload::room(std::size_t bytes) {
  TRIPHASE_CHECK(bytes <= kBufferBytes, "weights larger than the staging buffer");
  if (bytes > kBufferBytes - used_) {
    sides_[current_].sent->record(*stream_);
    current_ = (current_ + 1) % sides_.size();
    // The host may run ahead by what the other buffer holds, and no further.
    sides_[current_].sent->synchronize();
    used_ = 0;
  }
  std::byte* begin = sides_[current_].buffer.data() + used_;
  used_ = std::min<std::size_t>(kBufferBytes, used_ + aligned_bytes(bytes));
  return begin;
}

void WeightUpload::put(std::byte* slot, const std::byte* from, std::size_t bytes, bool on_host) {
  if (on_host) {
    std::memcpy(slot, from, bytes);
  } else {
    device_->copy(slot, from, bytes, *stream_);
  }
}

void WeightUpload::put_constant(std::byte* slot, std::int64_t count, float value, bool on_host) {
  const auto floats = static_cast<std::size_t>(count);
  std::byte* from = room(floats * sizeof(float));
  std::fill_n(reinterpret_cast<float*>(from), floats, value);
  put(slot, from, floats * sizeof(float), on_host);
}

void WeightUpload::finish() { stream_->synchronize(); }

}  // namespace triphase
