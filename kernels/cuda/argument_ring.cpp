#include "kernels/cuda/argument_ring.h"

#include <algorithm>
#include <utility>

#include "base/rounding.h"

namespace triphase::cuda {
namespace {

constexpr std::size_t kAlignment = 256;

}  // namespace

ArgumentRing::ArgumentRing(Device& device, Device& host, std::size_t bytes)
    : device_(&device), host_(&host), block_(allocate(bytes)), end_(bytes) {}

void ArgumentRing::at_least(std::size_t bytes, Stream& stream) {
  if (bytes <= block_.on_host.bytes()) return;
  kept_.clear();
  grow(bytes, stream);
}

void ArgumentRing::grow(std::size_t bytes, Stream& stream) {
  copy_to_device(stream);
  stream.synchronize();
  if (!kept_.empty()) outgrown_.push_back(std::move(block_));
  block_ = {};  // before there is another
  block_ = allocate(bytes);
  begin_ = next_ = copied_ = kept_end_ = 0;
  end_ = copied_events_[0] == nullptr ? bytes : bytes / kHalves;
  half_ = 0;
  forget_sent();
}

void ArgumentRing::begin_step(Stream& stream) {
  if (!outgrown_.empty()) {
    stream.synchronize();
    outgrown_.clear();
  }
  if (copied_events_[0] == nullptr) {
    for (std::unique_ptr<Event>& event : copied_events_) event = device_->make_event();
    // What was sent before any step may lie in both halves.
    if (next_ > 0) stream.synchronize();
  }
  half_ = (half_ + 1) % kHalves;
  Event& copied = *copied_events_[half_];
  if (!copied.done()) copied.synchronize();
  const std::size_t size = block_.on_host.bytes() / kHalves / kAlignment * kAlignment;
  begin_ = next_ = copied_ = kept_end_ = half_ * size;
  end_ = begin_ + size;
  kept_.clear();
  forget_sent();
  announcing_ = true;
  ++steps_;
}

void ArgumentRing::end_announcing(Stream& stream) {
  announcing_ = false;
  kept_end_ = next_;
  copy_to_device(stream);
}

void ArgumentRing::forget_sent() {
  sent_ = {};
  sent_count_ = 0;
}

void ArgumentRing::copy_to_device(Stream& stream) {
  if (next_ == copied_) return;
  device_->copy(on_device(copied_), block_.on_host.data() + copied_, next_ - copied_, stream);
  copied_ = next_;
  if (copied_events_[half_] != nullptr) copied_events_[half_]->record(stream);
}

void ArgumentRing::reserve(std::size_t bytes, std::size_t arrays, Stream& stream) {
  const std::size_t needed = bytes + arrays * kAlignment;
  if (needed <= end_ - next_) return;
  if (announcing_ || needed > end_ - kept_end_) {
    grow(kHalves * (block_.on_host.bytes() + needed), stream);
    return;
  }
  stream.synchronize();
  next_ = copied_ = kept_end_;
  forget_sent();
}

const std::byte* ArgumentRing::find(std::span<const Sent> sent, const void* data,
                                    std::size_t bytes) {
  const auto found = std::ranges::find_if(sent, [&](const Sent& one) {
    return one.bytes == bytes && std::memcmp(one.on_host, data, bytes) == 0;
  });
  return found == sent.end() ? nullptr : found->on_device;
}

ArgumentRing::Sent ArgumentRing::put(const void* data, std::size_t bytes, Stream& stream) {
  reserve(bytes, 1, stream);
  const Sent sent{on_device(next_), block_.on_host.data() + next_, bytes};
  std::memcpy(block_.on_host.data() + next_, data, bytes);
  next_ += round_up(bytes, kAlignment);
  return sent;
}

const void* ArgumentRing::send_bytes(const void* data, std::size_t bytes, Stream& stream) {
  if (announcing_) return keep_bytes(data, bytes, stream);
  if (bytes == 0) return block_.on_device.data();
  if (const std::byte* place = find(kept_, data, bytes)) return place;
  if (const std::byte* place = find(sent_, data, bytes)) return place;
  const Sent sent = put(data, bytes, stream);
  sent_[sent_count_++ % kRemembered] = sent;
  copy_to_device(stream);
  return sent.on_device;
}

const void* ArgumentRing::keep_bytes(const void* data, std::size_t bytes, Stream& stream) {
  if (bytes == 0) return block_.on_device.data();
  if (const std::byte* place = find(kept_, data, bytes)) return place;
  kept_.push_back(put(data, bytes, stream));
  const std::byte* place = kept_.back().on_device;
  if (announcing_) return place;
  kept_end_ = next_;
  copy_to_device(stream);
  return place;
}

}  // namespace triphase::cuda
