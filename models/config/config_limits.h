#pragma once

// Largest sizes a config may ask for. The product of any two fits 64 bits with room to spare;
// larger products go through checked_math.h.

#include <cstdint>

namespace triphase {

inline constexpr std::int64_t kMaxLayers = 1024;
inline constexpr std::int64_t kMaxHidden = 131072;
inline constexpr std::int64_t kMaxVocab = std::int64_t{1} << 22;
inline constexpr std::int64_t kMaxPositions = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxFfn = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxExperts = 1024;
inline constexpr std::int64_t kMaxHeads = 65536;
inline constexpr std::int64_t kMaxHeadDim = 4096;

}  // namespace triphase
