#include "kernels/cuda/select_rows.h"

#include <algorithm>

#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

struct Selection {
  std::vector<std::int32_t> indices, counts;
  std::int64_t capacity;

  [[nodiscard]] std::vector<std::int32_t> row(std::int64_t r) const {
    const auto begin = indices.begin() + static_cast<std::ptrdiff_t>(r * capacity);
    return {begin, begin + counts[static_cast<std::size_t>(r)]};
  }
};

struct Rows {
  std::vector<float> scores;  // [row][stride], poisoned behind each length
  std::vector<std::int32_t> lengths;
  std::int64_t stride;
};

Rows random_rows(std::mt19937& random, std::vector<std::int32_t> lengths, bool with_ties) {
  const std::int64_t stride = *std::max_element(lengths.begin(), lengths.end()) + 3;
  Rows rows{poisoned(static_cast<std::int64_t>(lengths.size()) * stride), std::move(lengths),
            stride};
  for (std::size_t r = 0; r < rows.lengths.size(); ++r) {
    for (std::int32_t t = 0; t < rows.lengths[r]; ++t) {
      const float score = std::normal_distribution<float>()(random);
      rows.scores[r * static_cast<std::size_t>(stride) + static_cast<std::size_t>(t)] =
          with_ties ? std::round(score) * 0.25F : score;
    }
  }
  return rows;
}

SelectRows call_of(Rows& rows, Selection& out, std::int64_t local, std::int64_t capacity) {
  out.capacity = capacity;
  out.indices.assign(rows.lengths.size() * static_cast<std::size_t>(capacity), -1);
  out.counts.assign(rows.lengths.size(), -1);
  return {.scores = rows.scores.data(),
          .score_stride = rows.stride,
          .lengths = rows.lengths.data(),
          .rows = static_cast<std::int64_t>(rows.lengths.size()),
          .rows_per_sequence = 1,
          .max_length = rows.stride - 3,
          .local = local,
          .indices = out.indices.data(),
          .capacity = capacity,
          .counts = out.counts.data()};
}

// By sorting: the definition itself.
std::vector<std::int32_t> expected_top(const Rows& rows, std::size_t r, std::int64_t k,
                                       std::int64_t local) {
  const std::int64_t length = rows.lengths[r];
  const float* scores = rows.scores.data() + r * static_cast<std::size_t>(rows.stride);
  std::vector<std::int32_t> chosen;
  std::vector<std::int32_t> free;
  for (std::int32_t t = 0; t < length; ++t) {
    (t >= length - local ? chosen : free).push_back(t);
  }
  std::ranges::stable_sort(free,
                           [&](std::int32_t a, std::int32_t b) { return scores[a] > scores[b]; });
  const std::int64_t left = std::clamp<std::int64_t>(k - static_cast<std::int64_t>(chosen.size()),
                                                     0, static_cast<std::int64_t>(free.size()));
  chosen.insert(chosen.end(), free.begin(), free.begin() + left);
  std::ranges::sort(chosen);
  return chosen;
}

TEST(EmulatedSelect, TopKIsTheSortedDefinition) {
  std::mt19937 random(1);
  for (const bool ties : {false, true}) {
    Rows rows = random_rows(random, {0, 1, 2, 127, 128, 129, 1023, 1024, 1025, 2500}, ties);
    for (const auto& [k, local] : {std::pair<std::int64_t, std::int64_t>{1, 0},
                                   {128, 0},
                                   {129, 33},
                                   {100, 66},
                                   {5, 8},
                                   {0, 1},
                                   {5000, 0}}) {
      Selection out;
      select_top(call_of(rows, out, local, std::max<std::int64_t>(k, local)), k, nullptr);
      for (std::size_t r = 0; r < rows.lengths.size(); ++r) {
        ASSERT_EQ(out.row(static_cast<std::int64_t>(r)), expected_top(rows, r, k, local))
            << "row " << r << " k " << k << " ties " << ties;
      }
    }
  }
}

TEST(EmulatedSelect, ExtremeScoresKeepTheirOrder) {
  const std::vector<float> scores = {
      -0.0F,         0.0F, INFINITY, -INFINITY, 1e-45F, -1e-45F, std::numeric_limits<float>::max(),
      std::nanf(""), -3.0F};
  Rows rows{scores, {9}, 9};
  rows.stride = 9;
  const auto best = [&](std::int64_t k) {
    Selection out;
    SelectRows call = call_of(rows, out, 0, 9);
    call.max_length = 9;
    select_top(call, k, nullptr);
    return out.row(0);
  };
  EXPECT_THAT(best(2), testing::ElementsAre(2, 6));
  EXPECT_THAT(best(4), testing::ElementsAre(0, 2, 4, 6));  // -0 equals 0: the smaller index
  EXPECT_THAT(best(8), testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 8));  // NaN last of all
}

TEST(EmulatedSelect, RowsOfASequenceShareItsLength) {
  std::mt19937 random(3);
  Rows rows = random_rows(random, {40, 40, 20, 20}, false);
  const std::vector<std::int32_t> lengths = {40, 20};
  Selection out;
  SelectRows call = call_of(rows, out, 1, 8);
  call.lengths = lengths.data();
  call.rows_per_sequence = 2;
  select_top(call, 8, nullptr);
  for (std::size_t r = 0; r < 4; ++r)
    EXPECT_EQ(out.row(static_cast<std::int64_t>(r)), expected_top(rows, r, 8, 1));
}

}  // namespace
}  // namespace triphase::cuda
