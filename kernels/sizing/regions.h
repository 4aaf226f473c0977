#pragma once

// Regions of a block of memory that lie one behind the other, each at a multiple of the alignment.

#include <cstdint>

#include "base/rounding.h"

namespace triphase {

class Regions {
 public:
  explicit Regions(std::int64_t alignment) : alignment_(alignment) {}

  // Where a region of so many bytes begins.
  [[nodiscard]] std::int64_t take(std::int64_t bytes) {
    const std::int64_t at = bytes_;
    bytes_ += round_up(bytes, alignment_);
    return at;
  }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t alignment_;
  std::int64_t bytes_ = 0;
};

}  // namespace triphase
