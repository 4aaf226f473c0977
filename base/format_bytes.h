#pragma once

// Sizes as people read them, in messages and reports. Pure.

#include <cstdint>
#include <string>

namespace triphase {

// "21.4 GiB", "17 bytes": binary units, one decimal.
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);

// The largest unit in which `most` bytes are at least 1, for the axis of a chart.
struct ByteUnit {
  const char* name;  // "MiB"
  double bytes;      // of one
};
[[nodiscard]] ByteUnit byte_unit(double most);

}  // namespace triphase
