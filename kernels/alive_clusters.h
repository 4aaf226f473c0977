#pragma once

// Two levels of clusters (Squeezed Attention): thresholds are calibrated by the rule that jobs
// choose by.

#include <cstdint>
#include <span>

namespace triphase {

// alive [fine cluster] becomes 1 where the coarse cluster parents[fine cluster] scores at least
// `threshold`, else 0. Returns how many are alive.
[[nodiscard]] inline std::int64_t find_alive_clusters(std::span<const float> coarse_scores,
                                                      double threshold,
                                                      std::span<const std::int32_t> parents,
                                                      std::span<std::uint8_t> alive) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < parents.size(); ++i) {
    const auto parent = static_cast<std::size_t>(parents[i]);
    alive[i] = static_cast<double>(coarse_scores[parent]) >= threshold ? 1 : 0;
    count += alive[i];
  }
  return count;
}

}  // namespace triphase
