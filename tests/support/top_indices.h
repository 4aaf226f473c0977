#pragma once

// The rule by which tokens are chosen by score, in its plainest form.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace triphase {

// The indices of the `count` highest scores, ascending; of equal scores the smaller index wins and
// NaN comes last.
[[nodiscard]] inline std::vector<std::int32_t> top_indices(std::span<const float> scores,
                                                           std::int64_t count) {
  std::vector<std::int32_t> indices(scores.size());
  std::iota(indices.begin(), indices.end(), 0);
  std::ranges::stable_sort(indices, [&](std::int32_t a, std::int32_t b) {
    const float first = scores[static_cast<std::size_t>(a)];
    const float second = scores[static_cast<std::size_t>(b)];
    return std::isnan(second) ? !std::isnan(first) : first > second;
  });
  indices.resize(static_cast<std::size_t>(count));
  std::ranges::sort(indices);
  return indices;
}

// The same, with the last `newest` indices among them in any case.
[[nodiscard]] inline std::vector<std::int32_t> top_and_newest_indices(std::span<const float> scores,
                                                                      std::int64_t count,
                                                                      std::int64_t newest) {
  const auto older = static_cast<std::int64_t>(scores.size()) - newest;
  std::vector<std::int32_t> indices =
      top_indices(scores.first(static_cast<std::size_t>(older)), count - newest);
  for (std::int64_t i = 0; i < newest; ++i) {
    indices.push_back(static_cast<std::int32_t>(older + i));
  }
  return indices;
}

}  // namespace triphase
