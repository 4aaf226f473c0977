#pragma once

// Sizes as people read them, in messages and reports. Pure.

#include <cstdint>
#include <string>

namespace triphase {

// "21.4 GiB", "17 bytes": binary units, one decimal.
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);

}  // namespace triphase
