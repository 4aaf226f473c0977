#include "kernels/cuda/experts.h"

#include <algorithm>
#include <numeric>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/gemm_rows.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/sizing/expert_workspace.h"
#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

// Which experts rows go through, as std::vectors.
struct Choices {
  Choices(std::int64_t row_count, std::int64_t each, std::int64_t expert_count)
      : shape{row_count, 0, expert_count, each, 0},
        experts(static_cast<std::size_t>(shape.choices()), -7),
        shares(poisoned(shape.choices())) {}
  // Random ones, of [first, first + count) alone.
  Choices& fill(std::mt19937& random, std::int32_t first, std::int32_t count) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(count));
    for (std::size_t row = 0; row < static_cast<std::size_t>(shape.rows); ++row) {
      std::iota(all.begin(), all.end(), first);
      std::shuffle(all.begin(), all.end(), random);
      const auto each = static_cast<std::size_t>(shape.per_row);
      std::copy_n(all.begin(), each, experts.begin() + static_cast<std::ptrdiff_t>(row * each));
    }
    return *this;
  }
  ExpertShape shape;
  std::vector<std::int32_t> experts;
  std::vector<float> shares;
};

TEST(EmulatedExperts, TheCpusAreChosen) {
  ThreadPool pool(1);
  std::mt19937 random(1);
  for (const auto& [rows, each, experts] :
       {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 1, 1},
        {9, 2, 8},
        {5, 8, 128},
        {3, 40, 1000},
        {2, 3, 1024},
        {4, 33, 33}}) {
    const std::int64_t stride = experts + 3;
    std::vector<float> logits = random_floats(random, rows * stride, 3.0F);
    // Ties.
    for (float& logit : logits) logit = std::round(4.0F * logit) / 4.0F;
    if (rows > 3) {
      for (std::int64_t column = 0; column < experts; ++column) {
        logits[static_cast<std::size_t>(stride + column)] = 0.5F;
        logits[static_cast<std::size_t>(2 * stride + column)] = column % 2 == 0 ? 0.0F : -0.0F;
        logits[static_cast<std::size_t>(3 * stride + column)] =
            column == 1 ? 1.0F : -std::numeric_limits<float>::infinity();
      }
    }
    for (const bool over_chosen : {true, false}) {
      Choices ours(rows, each, experts);
      Choices theirs(rows, each, experts);
      const ConstMatrix view{logits.data(), DType::kF32, rows, experts, stride};
      choose_experts(view, each, over_chosen, ours.experts.data(), ours.shares.data(), nullptr);
      cpu::choose_experts(pool, view, over_chosen, theirs.experts, theirs.shares);
      EXPECT_EQ(ours.experts, theirs.experts) << experts << " experts";
      for (std::size_t i = 0; i < ours.shares.size(); ++i) {
        ASSERT_NEAR(ours.shares[i], theirs.shares[i], 1e-5F * theirs.shares[i]) << experts;
      }
    }
  }
}

TEST(EmulatedExperts, NanIsChosenFirst) {
  ThreadPool pool(1);
  std::vector<float> logits(40, 1.0F);
  logits[35] = logits[39] = std::nanf("");
  logits[2] = std::numeric_limits<float>::infinity();
  Choices ours(1, 4, 40);
  choose_experts({logits.data(), DType::kF32, 1, 40, 40}, 4, true, ours.experts.data(),
                 ours.shares.data(), nullptr);
  Choices theirs(1, 4, 40);
  cpu::choose_experts(pool, {logits.data(), DType::kF32, 1, 40, 40}, true, theirs.experts,
                      theirs.shares);
  EXPECT_EQ(ours.experts, theirs.experts);
  EXPECT_EQ(ours.experts, (std::vector<std::int32_t>{35, 39, 2, 0}));
  for (const float share : ours.shares) EXPECT_TRUE(std::isnan(share));
}

struct Groups {
  explicit Groups(const Choices& choices, std::int64_t tile_row_count)
      : places(choices.experts.size(), -7),
        rows(choices.experts.size(), -7),
        tiles(static_cast<std::size_t>(expert_tiles(choices.shape, tile_row_count)),
              {-7, -7, -7, -7}),
        tile_rows(tile_row_count) {
    group_rows({.experts = choices.experts.data(),
                .rows = choices.shape.rows,
                .per_row = choices.shape.per_row,
                .expert_count = choices.shape.experts,
                .places = places.data(),
                .place_rows = rows.data(),
                .tiles = tiles.data(),
                .tile_count = static_cast<std::int64_t>(tiles.size()),
                .tile_rows = tile_row_count},
               nullptr);
  }
  std::vector<std::int32_t> places;
  std::vector<std::int32_t> rows;
  std::vector<RowTile> tiles;
  std::int64_t tile_rows;
};

// Where all rows choose alike, where experts have none or one, and where tiles end within one.
TEST(EmulatedExperts, RowsLieByExpertInTheirOwnOrder) {
  std::mt19937 random(2);
  const std::vector<Choices> all = {
      Choices(1, 1, 1).fill(random, 0, 1),        Choices(70, 1, 5).fill(random, 3, 1),
      Choices(2, 8, 128).fill(random, 0, 128),    Choices(100, 8, 128).fill(random, 60, 20),
      Choices(40, 2, 1024).fill(random, 0, 1024), Choices(33, 40, 300).fill(random, 200, 100),
      Choices(300, 2, 8).fill(random, 0, 8)};
  for (const Choices& choices : all) {
    for (const std::int64_t tile_rows : {std::int64_t{3}, kFewExpertRows, kManyExpertRows}) {
      const Groups ours(choices, tile_rows);
      std::vector<std::int32_t> places(choices.experts.size());
      std::vector<std::int32_t> rows(choices.experts.size());
      std::vector<std::int32_t> begins(static_cast<std::size_t>(choices.shape.experts) + 1);
      cpu::group_by_expert(choices.experts, choices.shape.rows, places, rows, begins);
      EXPECT_EQ(ours.places, places);
      EXPECT_EQ(ours.rows, rows);
      auto tile = ours.tiles.begin();
      for (std::int32_t expert = 0; expert < choices.shape.experts; ++expert) {
        const std::int32_t end = begins[static_cast<std::size_t>(expert) + 1];
        const auto most = static_cast<std::int32_t>(tile_rows);
        for (std::int32_t at = begins[static_cast<std::size_t>(expert)]; at < end; at += most) {
          ASSERT_NE(tile, ours.tiles.end());
          EXPECT_EQ(tile->group, expert);
          EXPECT_EQ(tile->first, at);
          EXPECT_EQ(tile->end, std::min(at + most, end));
          ++tile;
        }
      }
      for (; tile != ours.tiles.end(); ++tile) EXPECT_EQ(tile->end, 0);
    }
  }
}

// y in float64: of each place its row of x, or itself, times its expert's weights.
reference::Values products_of(const Choices& choices, const Groups& groups, const ConstMatrix& x,
                              const ConstMatrix& w, bool of_rows, bool gated,
                              Activation activation) {
  reference::Values all;
  std::vector<std::int32_t> expert_of(groups.places.size());
  for (std::size_t i = 0; i < groups.places.size(); ++i) {
    expert_of[static_cast<std::size_t>(groups.places[i])] = choices.experts[i];
  }
  const std::int64_t lines = w.rows / choices.shape.experts;
  for (std::size_t place = 0; place < expert_of.size(); ++place) {
    ConstMatrix row = x;
    row.rows = 1;
    row.data =
        static_cast<const std::byte*>(x.data) +
        static_cast<std::size_t>(of_rows ? groups.rows[place] : static_cast<std::int32_t>(place)) *
            static_cast<std::size_t>(x.row_stride) * dtype_bytes(x.dtype);
    ConstMatrix own = w;
    own.rows = lines;
    own.data =
        static_cast<const std::byte*>(w.data) +
        static_cast<std::size_t>(expert_of[place] * lines * w.row_stride) * dtype_bytes(w.dtype);
    const reference::Values sums = reference::linear(row, own, nullptr, {});
    const auto cols = static_cast<std::size_t>(gated ? lines / 2 : lines);
    for (std::size_t col = 0; col < cols; ++col) {
      if (!gated) {
        all.value.push_back(sums.value[col]);
        all.magnitude.push_back(sums.magnitude[col]);
        continue;
      }
      const double gate = reference::activation(activation, sums.value[col]);
      all.value.push_back(gate * sums.value[cols + col]);
      // An activation's slope is below 1.2; its own rounding counts as more terms.
      all.magnitude.push_back(1.2 * sums.magnitude[col] * std::abs(sums.value[cols + col]) +
                              std::abs(gate) * sums.magnitude[cols + col] +
                              20.0 * std::abs(all.value.back()));
    }
  }
  return all;
}

TEST(EmulatedExperts, ProductsOfGroupsMatchFloat64) {
  std::mt19937 random(3);
  for (const DType dtype : kStoredTypes) {
    for (const auto& [cols, depth, gated] :
         {std::tuple<std::int64_t, std::int64_t, bool>{66, 40, true},
          {130, 72, false},
          {64, 32, true},
          {20, 13, true}}) {  // no whole vectors: on CUDA cores
      // Experts without rows, with one, and with more than a tile.
      Choices choices = Choices(90, 2, 6).fill(random, 1, 2);
      choices.experts[7] = 5;
      const std::int64_t lines = gated ? 2 * cols : cols;
      const Activation activation = cols == 64 ? Activation::kGeluTanh : Activation::kSilu;
      const TestMatrix w =
          TestMatrix(choices.shape.experts * lines, depth, 0, dtype).randomize(random, 0.2F);
      for (const bool of_rows : {true, false}) {
        const TestMatrix x =
            TestMatrix(of_rows ? choices.shape.rows : choices.shape.choices(), depth)
                .randomize(random);
        const TestMatrix rounded = x.as(depth % 8 == 0 ? dtype : DType::kF32);
        std::vector<TestMatrix> results;
        for (const std::int64_t tile_rows : {kFewExpertRows, kManyExpertRows}) {
          const Groups groups(choices, tile_rows);
          TestMatrix& y = results.emplace_back(choices.shape.choices(), cols, 3);
          gemm_groups(x.view(), w.view(),
                      {.count = choices.shape.experts,
                       .tiles = groups.tiles.data(),
                       .tile_count = static_cast<std::int64_t>(groups.tiles.size()),
                       .tile_rows = tile_rows,
                       .x_rows = of_rows ? groups.rows.data() : nullptr,
                       .gated = gated,
                       .activation = activation},
                      y.view(), nullptr);
          expect_close(
              y, products_of(choices, groups, rounded.view(), w.view(), of_rows, gated, activation),
              tolerance::dot(depth), std::string(dtype_name(dtype)) + " " + std::to_string(cols));
        }
        for (std::int64_t row = 0; row < results[0].rows(); ++row) {
          ASSERT_TRUE(same_bits(results[0].row(row), results[1].row(row)))
              << "a row's bits depend on the tile it lies in";
        }
      }
    }
  }
}

TEST(EmulatedExperts, RowsAreSummedByShares) {
  std::mt19937 random(4);
  for (const auto& [rows, terms, cols] :
       {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 1, 1}, {5, 8, 257}, {3, 2, 64}}) {
    for (const bool accumulate : {false, true}) {
      const TestMatrix x = TestMatrix(rows * terms, cols, 2).randomize(random);
      const std::vector<float> factors = random_floats(random, rows * terms);
      std::vector<std::int32_t> places(static_cast<std::size_t>(rows * terms));
      std::iota(places.begin(), places.end(), 0);
      std::shuffle(places.begin(), places.end(), random);
      TestMatrix y(rows, cols);
      if (accumulate) y.randomize(random);
      reference::Values expected;
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t col = 0; col < cols; ++col) {
          double sum = accumulate ? y.at(row, col) : 0.0;
          double magnitude = std::abs(sum);
          for (std::int64_t i = row * terms; i < (row + 1) * terms; ++i) {
            const auto term = static_cast<std::size_t>(i);
            const double product = static_cast<double>(factors[term]) * x.at(places[term], col);
            sum += product;
            magnitude += std::abs(product);
          }
          expected.value.push_back(sum);
          expected.magnitude.push_back(magnitude);
        }
      }
      sum_rows(x.view(), places.data(), factors.data(), terms, accumulate, y.view(), nullptr);
      expect_close(y, expected, tolerance::dot(terms), "sums");
    }
  }
}

}  // namespace
}  // namespace triphase::cuda
