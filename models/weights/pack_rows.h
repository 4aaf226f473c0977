#pragma once

// Rows of a matrix, as they are read or made, on their way to a home in 4-bit groups
// (base/group_matrix.h). Not thread safe.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/group_matrix.h"
#include "base/thread_pool.h"

namespace triphase {

class PackedRows {
 public:
  // Whole rows of `cols` elements of `dtype` (F32, F16 or BF16). Returns how many groups hold what
  // is no F16 number, and so read as NaN.
  std::uint64_t pack(ThreadPool& pool, DType dtype, std::span<const std::byte> rows,
                     std::int64_t cols);

  // Of the rows of the last call, in the order of GroupMatrix.
  [[nodiscard]] std::span<const std::byte> ranges() const {
    return std::as_bytes(std::span(ranges_));
  }
  [[nodiscard]] std::span<const std::byte> codes() const {
    return std::as_bytes(std::span(codes_));
  }

 private:
  std::vector<GroupRange> ranges_;
  std::vector<std::uint8_t> codes_;
};

}  // namespace triphase
