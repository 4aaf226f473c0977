#pragma once

// Arrays on their way from the device to the host's ordinary memory, through a block of pinned
// memory: a copy to pageable memory is not asynchronous, and a driver may write it at another time
// than the stream says. Larger arrays go in pieces. One stream at a time.

#include <cstddef>
#include <span>

#include "base/device_block.h"

namespace triphase::cuda {

struct HostTransfer {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;
};

class HostStaging {
 public:
  // Both devices must outlive this; `host` gives the pinned memory.
  HostStaging(Device& device, Device& host) : device_(&device), block_(host, kBytes) {}

  // What work queued on `stream` has written; waits for it.
  void to_host(std::span<const HostTransfer> transfers, Stream& stream);

 private:
  static constexpr std::size_t kBytes = std::size_t{1} << 20;

  Device* device_;
  DeviceBlock block_;
};

}  // namespace triphase::cuda
