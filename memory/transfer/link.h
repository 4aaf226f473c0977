#pragma once

// What crosses the link between host and device memory, and how fast an emulated link is. Values.

#include <cstddef>

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

}  // namespace triphase
