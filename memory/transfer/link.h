#pragma once

// What crosses the link between host and device memory, and how fast an emulated link is. Values.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kv_records.h"

namespace triphase {

// Paces a lane: a transfer of `bytes` in `records` pieces takes at least
// bytes / bytes_per_second + records * seconds_per_record.
struct EmulatedLink {
  double bytes_per_second = 0.0;
  double seconds_per_record = 0.0;
};

// One contiguous copy.
struct BytePiece {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

// What a link is charged for a transfer: bytes, and pieces that are contiguous on the host.
struct TransferSize {
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;
};
// Bytes of runs of tokens, none of which may cross a page.
[[nodiscard]] TransferSize transfer_size(const KvGeometry& geometry,
                                         std::span<const TokenRun> runs);
[[nodiscard]] TransferSize transfer_size(Lane lane, std::span<const BytePiece> pieces);

}  // namespace triphase
