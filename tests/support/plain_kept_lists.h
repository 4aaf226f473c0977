#pragma once

// What KeptTokens and the operations on them mean (kernels/kept_tokens.h, kernels/sparse_ops.h):
// one list, by sorting.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace triphase {

struct PlainKeptList {
  std::vector<std::int32_t> tokens;
  std::vector<float> sums;

  void keep_all(std::int64_t count) {
    tokens.clear();
    for (std::int64_t t = 0; t < count; ++t) tokens.push_back(static_cast<std::int32_t>(t));
    sums.assign(static_cast<std::size_t>(count), 0.0F);
  }

  // Tokens up to `context` join; the last `local` stay, and of the others the heaviest.
  void keep_heaviest(std::int64_t added, std::int64_t context, std::int64_t local,
                     std::int64_t total) {
    for (std::int64_t t = context - added; t < context; ++t) {
      tokens.push_back(static_cast<std::int32_t>(t));
      sums.push_back(0.0F);
    }
    const auto size = static_cast<std::int64_t>(tokens.size());
    const std::int64_t newest = std::min(local, size);
    std::vector<std::size_t> places(static_cast<std::size_t>(size - newest));
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = i;
    std::ranges::stable_sort(places, [&](std::size_t a, std::size_t b) {
      if (std::isnan(sums[a]) || std::isnan(sums[b])) {
        return !std::isnan(sums[a]) && std::isnan(sums[b]);
      }
      return sums[a] > sums[b];
    });
    places.resize(
        static_cast<std::size_t>(std::clamp<std::int64_t>(total - newest, 0, size - newest)));
    std::ranges::sort(places);
    for (std::int64_t i = size - newest; i < size; ++i) {
      places.push_back(static_cast<std::size_t>(i));
    }
    PlainKeptList left;
    for (const std::size_t place : places) {
      left.tokens.push_back(tokens[place]);
      left.sums.push_back(sums[place]);
    }
    *this = left;
  }

  void add(std::span<const float> weights) {
    for (std::size_t i = 0; i < tokens.size(); ++i) sums[i] += weights[i];
  }
};

}  // namespace triphase
