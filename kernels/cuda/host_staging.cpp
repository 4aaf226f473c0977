#include "kernels/cuda/host_staging.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace triphase::cuda {

void HostStaging::to_host(std::span<const HostTransfer> transfers, Stream& stream) {
  std::vector<HostTransfer> arriving;
  std::size_t used = 0;
  const auto hand_out = [&] {
    stream.synchronize();
    for (const HostTransfer& piece : arriving) std::memcpy(piece.to, piece.from, piece.bytes);
    arriving.clear();
    used = 0;
  };
  for (const HostTransfer& transfer : transfers) {
    for (std::size_t done = 0; done < transfer.bytes;) {
      if (used == kBytes) hand_out();
      const std::size_t piece = std::min(kBytes - used, transfer.bytes - done);
      std::byte* const through = block_.data() + used;
      device_->copy(through, static_cast<const std::byte*>(transfer.from) + done, piece, stream);
      arriving.push_back({static_cast<std::byte*>(transfer.to) + done, through, piece});
      used += piece;
      done += piece;
    }
  }
  hand_out();
}

}  // namespace triphase::cuda
