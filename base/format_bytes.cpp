#include "base/format_bytes.h"

#include <fmt/format.h>

namespace triphase {

namespace {

constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  auto value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1023.95 && unit < 6) {
    value /= 1024.0;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

ByteUnit byte_unit(double most) {
  ByteUnit found{kUnits[0], 1.0};
  for (int unit = 1; unit <= 6 && most >= found.bytes * 1024.0; ++unit) {
    found = {kUnits[unit], found.bytes * 1024.0};
  }
  return found;
}

}  // namespace triphase
