#pragma once

// What KeptTokens and the operations on them mean (kernels/kept_tokens.h, kernels/sparse_ops.h):
// one list, by sorting.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kernels/kept_tokens.h"

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

// One row's lists, layer after layer, as operations keep them and by definition.
struct KeptRowLists {
  KeptRowLists(std::int64_t row_lists, std::int64_t layers, std::int64_t row_room)
      : lists(row_lists),
        room(row_room),
        tokens(static_cast<std::size_t>(layers * lists * room), -1),
        sums(tokens.size(), std::numeric_limits<float>::quiet_NaN()),
        plain(static_cast<std::size_t>(layers * lists)) {}
  [[nodiscard]] KeptTokens first_layer() {
    return {.tokens = tokens.data(),
            .sums = sums.data(),
            .lists = lists,
            .room = room,
            .layer_bytes = lists * room * std::int64_t{sizeof(float)}};
  }
  [[nodiscard]] std::int64_t count() const {
    return static_cast<std::int64_t>(plain.front().tokens.size());
  }
  void expect_as_defined(const std::string& what) const {
    for (std::size_t list = 0; list < plain.size(); ++list) {
      const auto first = static_cast<std::ptrdiff_t>(list) * room;
      ASSERT_EQ(std::vector<std::int32_t>(tokens.begin() + first, tokens.begin() + first + count()),
                plain[list].tokens)
          << what << " list " << list;
      for (std::size_t i = 0; i < plain[list].sums.size(); ++i) {
        const float expected = plain[list].sums[i];
        const float sum = sums[static_cast<std::size_t>(first) + i];
        ASSERT_TRUE(std::isnan(expected) ? std::isnan(sum) : sum == expected)
            << what << " list " << list << " place " << i;
      }
    }
  }

  std::int64_t lists, room;
  std::vector<std::int32_t> tokens;
  std::vector<float> sums;
  std::vector<PlainKeptList> plain;
};

}  // namespace triphase
