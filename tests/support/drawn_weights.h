#pragma once

// Softmax weights of tokens and scores that sum to them exactly (AttendedScores of kernels/ops.h):
// under each of a list's query heads a token has a score of 0 or -infinity, so that its weight is
// the sum of some heads' shares, in the heads' order.

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace triphase {

// The last one is more than a weight can be.
inline constexpr std::array<float, 8> kDrawnShares = {
    1.0F / 77.0F, 2.0F / 77.0F, 4.0F / 77.0F, 8.0F / 77.0F, 16.0F / 77.0F, 0.25F, 0.5F, 1e9F};
inline constexpr auto kDrawnHeads = static_cast<std::int64_t>(kDrawnShares.size());  // of a list

inline float drawn_weight(std::uint32_t heads) {
  float sum = 0.0F;
  for (std::size_t head = 0; head < kDrawnShares.size(); ++head) {
    if ((heads >> head & 1U) != 0) sum += kDrawnShares[head];
  }
  return sum;
}

// Ties, zeros, and what is no weight.
inline float draw_weight(std::mt19937& random) {
  const std::uint32_t kind = random() % 16;
  if (kind == 0) return std::numeric_limits<float>::quiet_NaN();
  if (kind == 1) return drawn_weight(128);
  return kind < 4 ? 0.0F : drawn_weight(random() % (kind < 8 ? 4 : 128));
}

// Sums of weights to be compared: NaN, which equals nothing, as -infinity.
inline std::vector<float> comparable(std::span<const float> sums) {
  std::vector<float> result(sums.begin(), sums.end());
  for (float& sum : result) {
    if (std::isnan(sum)) sum = -std::numeric_limits<float>::infinity();
  }
  return result;
}

// Scores of drawn weights [list][capacity]. Of others they are NaN.
struct DrawnScores {
  DrawnScores(std::span<const float> weights, std::int64_t capacity) {
    std::map<float, std::uint32_t> heads_of;
    for (std::uint32_t heads = 256; heads-- > 0;) heads_of[drawn_weight(heads)] = heads;
    const auto lists = static_cast<std::int64_t>(weights.size()) / capacity;
    for (std::int64_t list = 0; list < lists; ++list) {
      const auto own = weights.subspan(static_cast<std::size_t>(list * capacity),
                                       static_cast<std::size_t>(capacity));
      for (std::size_t head = 0; head < kDrawnShares.size(); ++head) {
        softmax.insert(softmax.end(), {0.0F, kDrawnShares[head]});
        for (const float weight : own) {
          const auto found = std::isnan(weight) ? heads_of.end() : heads_of.find(weight);
          const bool counts = found != heads_of.end() && (found->second >> head & 1U) != 0;
          values.push_back(found == heads_of.end() ? std::numeric_limits<float>::quiet_NaN()
                           : counts                ? 0.0F
                                                   : -std::numeric_limits<float>::infinity());
        }
      }
    }
  }
  [[nodiscard]] AttendedScores view() { return {values.data(), softmax.data()}; }

  std::vector<float> values;
  std::vector<float> softmax;
};

}  // namespace triphase
