#pragma once

// The way of weights from the host into the slots of a WeightBlock. To a device that works beside
// the host they pass through two buffers of pinned memory in turn: one is filled while what is in
// the other crosses the link. A device that runs at once needs a single buffer.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/device.h"
#include "memory/memory_pool.h"

namespace triphase {

class WeightUpload {
 public:
  static constexpr std::size_t kBufferBytes = std::size_t{8} << 20;

  explicit WeightUpload(Device& device);
  ~WeightUpload();  // waits for what is under way
  WeightUpload(const WeightUpload&) = delete;
  WeightUpload& operator=(const WeightUpload&) = delete;

  // Room for `bytes`, at most kBufferBytes, aligned to 64. The caller fills it and puts what it
  // filled before it asks for more.
  [[nodiscard]] std::byte* room(std::size_t bytes);
  // Copies from that room to a slot of the device; `on_host`: to memory that the host writes.
  void put(std::byte* slot, const std::byte* from, std::size_t bytes, bool on_host);
  // Puts `count` floats of one value: norms and biases without a tensor.
  void put_constant(std::byte* slot, std::int64_t count, float value, bool on_host);
  // Returns once every slot holds what was put there. Throws what made a copy fail.
  void finish();

  // The stream of the copies.
  [[nodiscard]] Stream& stream() { return *stream_; }

 private:
  struct Side {
    HostBuffer buffer;
    std::unique_ptr<Event> sent;
  };

  Device* device_;
  std::unique_ptr<Stream> stream_;
  std::vector<Side> sides_;  // one or two
  std::size_t current_ = 0;
  std::size_t used_ = 0;  // bytes of the current one
};

}  // namespace triphase
