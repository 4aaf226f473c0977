#pragma once

// The numbers of random weights, which a CPU and a GPU make alike: element i of a matrix is a
// function of (key, i), whichever thread makes it. Only the last product of each is rounded, once,
// so that no compiler's contraction changes a bit.

#include <cstdint>
#include <functional>

#include "base/device.h"
#include "base/dtype.h"
#include "kernels/both_sides.h"

namespace triphase {

// Queues on `stream` what fills `y`, matrices without gaps between their rows, with the numbers
// under `key`. Of a device whose memory the host does not write.
using RandomFill =
    std::function<void(std::uint64_t key, float half_width, Matrix y, Stream& stream)>;

namespace random_values {

// One step of the splitmix64 generator at counter x: a bijection with good avalanche.
TRIPHASE_BOTH std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

// Elements of 2 or 4 bytes that one step gives; word w gives elements [w * per_word, ...).
template <class T>
inline constexpr int kPerWord = 8 / static_cast<int>(sizeof(T));

// Element `part` of those that `word` gives, in [-half_width, half_width].
TRIPHASE_BOTH float of_32_bits(std::uint64_t word, int part, float half_width) {
  const auto bits = static_cast<std::int32_t>(static_cast<std::uint32_t>(word >> (32 * part)));
  return half_width * (static_cast<float>(bits) * 0x1p-31F);
}
TRIPHASE_BOTH unsigned draw_of_16_bits(std::uint64_t word, int part) {
  return static_cast<unsigned>(word >> (16 * part)) & 0xFFFFU;
}
TRIPHASE_BOTH float of_16_bits(unsigned draw, float half_width) {
  return half_width * ((static_cast<float>(draw) + 0.5F) * 0x1p-15F - 1.0F);
}

}  // namespace random_values
}  // namespace triphase
