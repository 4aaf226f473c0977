#pragma once

// Choosing tokens by score, and the sets that need no scores. Pure; ties go to the smallest index
// and results ascend, so that every backend chooses alike. Thresholds are calibrated by the rule
// that jobs choose by.

#include <cstdint>
#include <span>
#include <vector>

namespace triphase {

// Indices [begin, end).
struct IndexRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Appends to `to`, ascending, every index of the `forced` ranges and the `count` highest-scored of
// the others among [0, scores.size()). Ranges ascend and do not overlap. NaN counts as the lowest
// score. `scratch` is working memory, kept between calls.
void choose_top(std::span<const float> scores, std::int64_t count,
                std::span<const IndexRange> forced, std::vector<std::uint32_t>& scratch,
                std::vector<std::int32_t>& to);

// Appends [range.begin, range.end).
void choose_range(IndexRange range, std::vector<std::int32_t>& to);

// Two levels of clusters (Squeezed Attention): alive [fine cluster] becomes 1 where the coarse
// cluster parents[fine cluster] scores at least `threshold`, else 0. Returns how many are alive.
std::int64_t find_alive_clusters(std::span<const float> coarse_scores, double threshold,
                                 std::span<const std::int32_t> parents,
                                 std::span<std::uint8_t> alive);

}  // namespace triphase
