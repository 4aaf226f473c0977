#pragma once

// Groups of values as 4-bit codes with a minimum and a step in F16, after FlexGen's compression:
// step = (largest - least) / 15, code = round((x - minimum) / step) within 0..15, with minimum and
// step as they are stored; a code reads as the F16 nearest to minimum + step * code (F32, ties to
// even). Equal values have step 0 and read as the F16 nearest to them: exactly what they were,
// where they were F16. A group that holds NaN, infinity or what F16 cannot hold (65520 and more in
// size) reads as NaN throughout. Pure; layouts of whole matrices: base/group_matrix.h.

#include <cstdint>
#include <span>

#include "base/group_matrix.h"

namespace triphase {

// Groups of `group` values each, the last one of what is left. `group` is even, unless there is one
// group; `ranges` has one for each, `codes` (values.size() + 1) / 2 bytes, of which a last half
// that no value needs is 0.
void pack_groups(std::span<const float> values, std::int64_t group, GroupRange* ranges,
                 std::uint8_t* codes);

// What a code reads as; F16 bits.
[[nodiscard]] std::uint16_t group_value(GroupRange range, int code);

// The reverse of pack_groups, into F16 bits: `out.size()` values.
void dequantize_groups(const GroupRange* ranges, const std::uint8_t* codes, std::int64_t group,
                       std::span<std::uint16_t> out);

// No value of a group with these extremes reads as anything further than this from what it was:
// half a step, or what rounding minimum and step to F16 takes from the ends of the range where that
// is more, and F16's rounding of what is read.
[[nodiscard]] double group_error_bound(double least, double largest);

}  // namespace triphase
