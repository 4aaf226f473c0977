#pragma once

// From one row per token to one row per channel: how K^T is made, on either side of the link.

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace triphase {

// to[c * to_stride + t] = from[t * from_stride + c] for t < tokens, c < channels. Strides count
// elements.
template <class Bits>
void transpose_tokens(const Bits* from, std::int64_t from_stride, std::int64_t tokens,
                      std::int64_t channels, Bits* to, std::int64_t to_stride) {
  constexpr std::int64_t kSide = 16;  // a square of elements stays in registers or L1
  Bits square[kSide][kSide];
  for (std::int64_t c = 0; c < channels; c += kSide) {
    const std::int64_t width = std::min(kSide, channels - c);
    for (std::int64_t t = 0; t < tokens; t += kSide) {
      const std::int64_t height = std::min(kSide, tokens - t);
      for (std::int64_t j = 0; j < height; ++j) {
        for (std::int64_t i = 0; i < width; ++i) square[i][j] = from[(t + j) * from_stride + c + i];
      }
      for (std::int64_t i = 0; i < width; ++i) {
        std::memcpy(to + (c + i) * to_stride + t, square[i],
                    static_cast<std::size_t>(height) * sizeof(Bits));
      }
    }
  }
}

}  // namespace triphase
