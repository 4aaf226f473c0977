#pragma once

// Ranges of the generation parameters, for prompt lines, options and generation_config.json alike.

#include <cstddef>
#include <cstdint>

namespace triphase {

inline constexpr std::int64_t kMaxTokensLimit = std::int64_t{1} << 24;  // longest context allowed
inline constexpr double kTemperatureLimit = 100.0;
inline constexpr std::int64_t kTopKLimit = std::int64_t{1} << 22;  // largest vocabulary allowed
inline constexpr double kRepetitionPenaltyMin = 0.01;
inline constexpr double kRepetitionPenaltyMax = 100.0;
inline constexpr std::int64_t kLogprobsLimit = 20;
inline constexpr std::size_t kStopStringsLimit = 64;
inline constexpr std::size_t kStopBytesLimit = 1024;
inline constexpr std::size_t kIdBytesLimit = 512;

}  // namespace triphase
