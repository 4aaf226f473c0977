#pragma once

// Matrices in 4-bit groups held against the rows that they were made of.

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/group_quant.h"

namespace triphase {

// A row of `groups` holds what packing these values gives.
inline void expect_packed_row(const GroupMatrix& groups, std::int64_t row,
                              const std::vector<float>& values) {
  std::vector<GroupRange> ranges(static_cast<std::size_t>(groups.groups()));
  std::vector<std::uint8_t> codes(groups.code_row_bytes());
  pack_groups(values, kGroupValues, ranges.data(), codes.data());
  ASSERT_EQ(
      std::memcmp(groups.ranges() + row * groups.groups(), ranges.data(), groups.range_row_bytes()),
      0)
      << row;
  ASSERT_EQ(std::memcmp(groups.codes() + row * static_cast<std::int64_t>(codes.size()),
                        codes.data(), codes.size()),
            0)
      << row;
}

}  // namespace triphase
