#include "kernels/token_choice.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "base/error.h"

namespace triphase {
namespace {

constexpr int kBucketShift = 20;  // the upper 12 bits of a key are its bucket

// Order-preserving: a larger score has a larger key; NaN has 0, both zeros the same.
std::uint32_t key_of(float score) {
  if (!(score == score)) return 0;
  const auto bits = std::bit_cast<std::uint32_t>(score == 0.0F ? 0.0F : score);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

}  // namespace

void choose_top(std::span<const float> scores, std::int64_t count,
                std::span<const IndexRange> forced, std::vector<std::uint32_t>& scratch,
                std::vector<std::int32_t>& to) {
  const auto size = static_cast<std::int64_t>(scores.size());
  // The gaps between forced ranges hold the candidates.
  const auto for_gaps = [&](const auto& gap, const auto& range) {
    std::int64_t at = 0;
    for (const IndexRange& one : forced) {
      const std::int64_t end = std::min(one.end, size);
      TRIPHASE_CHECK(one.begin >= at && one.begin <= one.end, "choose_top: forced ranges");
      if (at < std::min(one.begin, size)) gap(at, std::min(one.begin, size));
      if (one.begin < end) range(one.begin, end);
      at = std::max(at, end);
    }
    if (at < size) gap(at, size);
  };
  const auto nothing = [](std::int64_t, std::int64_t) {};
  std::array<std::int64_t, std::size_t{1} << (32 - kBucketShift)> histogram{};
  std::int64_t candidates = 0;
  for_gaps(
      [&](std::int64_t begin, std::int64_t end) {
        candidates += end - begin;
        for (std::int64_t i = begin; i < end; ++i) {
          ++histogram[key_of(scores[static_cast<std::size_t>(i)]) >> kBucketShift];
        }
      },
      nothing);
  count = std::clamp<std::int64_t>(count, 0, candidates);
  // The key of the last one chosen, and how many of its equals are.
  std::uint32_t threshold = std::numeric_limits<std::uint32_t>::max();
  std::int64_t equals = 0;
  if (count > 0) {
    std::size_t bucket = histogram.size() - 1;
    std::int64_t above = 0;
    while (above + histogram[bucket] < count) above += histogram[bucket--];
    scratch.clear();
    for_gaps(
        [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            const std::uint32_t key = key_of(scores[static_cast<std::size_t>(i)]);
            if (key >> kBucketShift == bucket) scratch.push_back(key);
          }
        },
        nothing);
    const auto nth = scratch.begin() + (count - above - 1);
    std::nth_element(scratch.begin(), nth, scratch.end(), std::greater<>());
    threshold = *nth;
    const auto larger = std::count_if(scratch.begin(), scratch.end(),
                                      [&](std::uint32_t key) { return key > threshold; });
    equals = count - above - larger;
  }
  for_gaps(
      [&](std::int64_t begin, std::int64_t end) {
        if (count == 0) return;
        for (std::int64_t i = begin; i < end; ++i) {
          const std::uint32_t key = key_of(scores[static_cast<std::size_t>(i)]);
          if (key < threshold || (key == threshold && equals-- <= 0)) continue;
          to.push_back(static_cast<std::int32_t>(i));
        }
      },
      [&](std::int64_t begin, std::int64_t end) {
        choose_range({begin, end}, to);
      });
}

void choose_range(IndexRange range, std::vector<std::int32_t>& to) {
  for (std::int64_t i = range.begin; i < range.end; ++i) to.push_back(static_cast<std::int32_t>(i));
}

std::int64_t find_alive_clusters(std::span<const float> coarse_scores, double threshold,
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
