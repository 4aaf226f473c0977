#pragma once

#include <chrono>

namespace triphase {

// Seconds since some moment, by the clock that never falls.
[[nodiscard]] inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace triphase
