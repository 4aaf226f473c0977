#pragma once

// Where a matrix in 4-bit groups lies in memory: shapes and bytes. What its bits mean is
// kernels/group_quant.h's.

#include <cstddef>
#include <cstdint>

namespace triphase {

// Values of a group, as in FlexGen.
inline constexpr std::int64_t kGroupValues = 64;

// The least value of a group and the step from one code to the next; F16 bits.
struct GroupRange {
  std::uint16_t minimum = 0;
  std::uint16_t step = 0;
};

// [rows, cols], without gaps. Groups follow each other along a row, and none is part of two rows:
// the last one of a row may be shorter. First the ranges of all groups, [rows][groups()]; then the
// codes, [rows][code_row_bytes()], the value 2i of a row in the low half of byte i and 2i + 1 in
// the high one.
struct GroupMatrix {
  const std::byte* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;

  [[nodiscard]] bool empty() const { return data == nullptr; }
  [[nodiscard]] std::int64_t groups() const { return (cols + kGroupValues - 1) / kGroupValues; }
  [[nodiscard]] std::uint64_t range_row_bytes() const {
    return static_cast<std::uint64_t>(groups()) * sizeof(GroupRange);
  }
  [[nodiscard]] std::uint64_t code_row_bytes() const {
    return static_cast<std::uint64_t>(cols + 1) / 2;
  }
  [[nodiscard]] std::uint64_t row_bytes() const { return range_row_bytes() + code_row_bytes(); }
  [[nodiscard]] std::uint64_t codes_offset() const {
    return static_cast<std::uint64_t>(rows) * range_row_bytes();
  }
  [[nodiscard]] const GroupRange* ranges() const {
    return reinterpret_cast<const GroupRange*>(data);
  }
  [[nodiscard]] const std::uint8_t* codes() const {
    return reinterpret_cast<const std::uint8_t*>(data + codes_offset());
  }
};

}  // namespace triphase
