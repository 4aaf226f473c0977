#include "kernels/cuda/argument_ring.h"

#include <algorithm>

namespace triphase::cuda {
namespace {

constexpr std::size_t kAlignment = 256;

}  // namespace

ArgumentRing::ArgumentRing(Device& device, Device& host, std::size_t bytes)
    : device_(&device), host_(&host), bytes_(bytes) {
  on_host_ = static_cast<std::byte*>(host_->allocate(bytes_));
  try {
    on_device_ = static_cast<std::byte*>(device_->allocate(bytes_));
  } catch (...) {
    host_->release(on_host_, bytes_);
    throw;
  }
}

ArgumentRing::~ArgumentRing() { release(); }

void ArgumentRing::release() noexcept {
  if (on_host_ != nullptr) host_->release(on_host_, bytes_);
  if (on_device_ != nullptr) device_->release(on_device_, bytes_);
  on_host_ = nullptr;
  on_device_ = nullptr;
}

void ArgumentRing::reserve(std::size_t bytes, std::size_t arrays, Stream& stream) {
  const std::size_t needed = bytes + arrays * kAlignment;
  if (needed <= bytes_ - next_) return;
  stream.synchronize();
  next_ = 0;
  sent_ = {};
  if (needed <= bytes_) return;
  release();
  bytes_ = 2 * needed;
  on_host_ = static_cast<std::byte*>(host_->allocate(bytes_));
  on_device_ = static_cast<std::byte*>(device_->allocate(bytes_));
}

const std::byte* ArgumentRing::find(const void* data, std::size_t bytes) const {
  for (const Sent& sent : sent_) {
    if (sent.bytes == bytes && std::memcmp(on_host_ + sent.begin, data, bytes) == 0) {
      return on_device_ + sent.begin;
    }
  }
  return nullptr;
}

const void* ArgumentRing::send_bytes(const void* data, std::size_t bytes, Stream& stream) {
  if (bytes > 0) {
    if (const std::byte* place = find(data, bytes)) return place;
  }
  reserve(bytes, 1, stream);
  const std::size_t begin = next_;
  send_to(on_device_ + begin, data, bytes, stream);
  sent_[sent_count_++ % kRemembered] = {begin, bytes};
  return on_device_ + begin;
}

void ArgumentRing::send_to(void* to, const void* data, std::size_t bytes, Stream& stream) {
  reserve(bytes, 1, stream);
  if (bytes > 0) {
    std::memcpy(on_host_ + next_, data, bytes);
    device_->copy(to, on_host_ + next_, bytes, stream);
  }
  next_ += std::max<std::size_t>(1, (bytes + kAlignment - 1) / kAlignment) * kAlignment;
}

}  // namespace triphase::cuda
