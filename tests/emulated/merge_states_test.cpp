// merge_states and token_weights on hand-made states, against float64.

#include "kernels/cuda/merge_states.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/emulated/emulator.h"

namespace triphase::cuda {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Random states of `per_row` sources; state i of row r is empty when (r + i) % empty_every == 0,
// and holds NaN then.
struct States {
  std::vector<float> states, max_sum;

  States(int rows, int per_row, int group, int dim, int empty_every, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < per_row; ++i) {
        const bool empty = (row + i) % empty_every == 0;
        for (int g = 0; g < group; ++g) {
          // What stands in an empty state beside its sum means nothing.
          const float nothing = i % 3 == 0 ? 1e30F : i % 3 == 1 ? kNaN : -INFINITY;
          max_sum.push_back(empty ? nothing : 20.0F * normal(random));
          max_sum.push_back(empty ? 0.0F : 1.0F + std::abs(normal(random)));
          for (int c = 0; c < dim; ++c) states.push_back(empty ? kNaN : normal(random));
        }
      }
    }
  }
};

TEST(MergeStates, ExtraStatesReallocationAndEmptyRows) {
  const int sequences = 3;
  const int kv_heads = 2;
  const int group = 3;
  const int heads = kv_heads * group;
  const int rows = sequences * kv_heads;
  for (const int dim : {5, 64, 128}) {
    for (const int empty_every : {1, 2, 100}) {
      for (const bool reallocate : {false, true}) {
        const States first(rows, 2, group, dim, empty_every, 3);
        const States second(rows, 1, group, dim, empty_every, 4);
        std::vector<float> alpha(static_cast<std::size_t>(sequences * heads));
        std::vector<float> v_sum(static_cast<std::size_t>(rows * dim));
        const std::vector<std::int32_t> lengths = {7, 100, 1};
        for (std::size_t i = 0; i < alpha.size(); ++i) alpha[i] = 0.1F * static_cast<float>(i % 10);
        for (std::size_t i = 0; i < v_sum.size(); ++i) v_sum[i] = static_cast<float>(i % 13) - 6.0F;
        std::vector<float> out(static_cast<std::size_t>(sequences * heads * dim), kNaN);
        std::vector<float> lse(static_cast<std::size_t>(sequences * heads), kNaN);
        MergeStatesArgs args;
        args.sequences = sequences;
        args.heads = heads;
        args.kv_heads = kv_heads;
        args.head_dim = dim;
        args.extra[0] = {first.states.data(), first.max_sum.data(), 2};
        args.extra[1] = {second.states.data(), second.max_sum.data(), 1};
        args.out = out.data();
        args.out_stride = heads * dim;
        args.lse = lse.data();
        if (reallocate) {
          args.alpha = alpha.data();
          args.v_sum = v_sum.data();
          args.lengths = lengths.data();
        }
        merge_states(args, nullptr);
        for (int row = 0; row < rows; ++row) {
          for (int g = 0; g < group; ++g) {
            double maximum = -INFINITY;
            struct Part {
              double max, sum;
              const float* state;
            };
            std::vector<Part> parts;
            const auto add = [&](const States& from, int per_row, int i) {
              const auto at = static_cast<std::size_t>((row * per_row + i) * group + g);
              parts.push_back({from.max_sum[2 * at], from.max_sum[2 * at + 1],
                               from.states.data() + at * static_cast<std::size_t>(dim)});
              if (parts.back().sum != 0) maximum = std::max(maximum, parts.back().max);
            };
            add(first, 2, 0);
            add(first, 2, 1);
            add(second, 1, 0);
            double sum = 0;
            for (const Part& part : parts) {
              if (part.sum != 0) sum += std::exp2(part.max - maximum) * part.sum;
            }
            const auto query =
                static_cast<std::size_t>(row / kv_heads * heads + row % kv_heads * group + g);
            if (sum == 0) {
              EXPECT_EQ(lse[query], -INFINITY);
            } else {
              EXPECT_NEAR(lse[query], std::log(2.0) * (maximum + std::log2(sum)), 1e-4);
            }
            for (int c = 0; c < dim; ++c) {
              double value = 0;
              double magnitude = 1e-3;
              for (const Part& part : parts) {
                if (part.sum == 0) continue;
                const double term =
                    std::exp2(part.max - maximum) / sum * static_cast<double>(part.state[c]);
                value += term;
                magnitude += std::abs(term);
              }
              if (reallocate) {
                const double a = alpha[query];
                const double mean =
                    static_cast<double>(v_sum[static_cast<std::size_t>(row * dim + c)]) /
                    lengths[static_cast<std::size_t>(row / kv_heads)];
                value = a * value + (1 - a) * mean;
                magnitude += std::abs(mean);
              }
              ASSERT_LE(
                  std::abs(
                      out[query * static_cast<std::size_t>(dim) + static_cast<std::size_t>(c)] -
                      value),
                  1e-5 * magnitude);
            }
          }
        }
      }
    }
  }
}

TEST(MergeStates, TopKWeightsKeepTheFullNormalizer) {
  // One state with max 0 and sum 2 in log2 units; over all tokens the sum was 8: a quarter remains.
  const std::vector<float> states = {4.0F, -2.0F};
  const std::vector<float> max_sum = {0.0F, 2.0F};
  const std::vector<float> full = {std::log(8.0F)};
  std::vector<float> out(2, kNaN);
  MergeStatesArgs args;
  args.sequences = args.heads = args.kv_heads = 1;
  args.head_dim = 2;
  args.extra[0] = {states.data(), max_sum.data(), 1};
  args.normalizer_lse = full.data();
  args.out = out.data();
  args.out_stride = 2;
  merge_states(args, nullptr);
  EXPECT_NEAR(out[0], 0.5, 1e-6);
  EXPECT_NEAR(out[1], -0.25, 1e-6);
}

TEST(TokenWeights, SumOverHeadsOfTheList) {
  const int sequences = 2;
  const int kv_heads = 2;
  const int group = 2;
  const int capacity = 300;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> logits(static_cast<std::size_t>(sequences * kv_heads * group * capacity));
  for (float& x : logits) x = normal(random);
  std::vector<float> lse(static_cast<std::size_t>(sequences * kv_heads * group));
  for (float& x : lse) x = 3.0F + normal(random);
  for (const bool shared : {true, false}) {
    const int lists = shared ? sequences : sequences * kv_heads;
    std::vector<std::int32_t> counts;
    for (int i = 0; i < lists; ++i) counts.push_back(i == 0 ? 300 : 100 * i - 99);
    const int stride = shared ? capacity : capacity + 9;
    std::vector<float> weights(static_cast<std::size_t>(lists * stride), kNaN);
    token_weights({.sequences = sequences,
                   .heads = kv_heads * group,
                   .kv_heads = kv_heads,
                   .logits = logits.data(),
                   .lse = lse.data(),
                   .list_counts = counts.data(),
                   .list_rows = lists,
                   .capacity = capacity,
                   .weights = weights.data(),
                   .weights_stride = stride},
                  nullptr);
    const int heads_of_list = shared ? kv_heads * group : group;
    for (int list = 0; list < lists; ++list) {
      for (int t = 0; t < stride; ++t) {
        const float weight = weights[static_cast<std::size_t>(list * stride + t)];
        if (t >= counts[static_cast<std::size_t>(list)]) {
          ASSERT_TRUE(std::isnan(weight));
          continue;
        }
        double expected = 0;
        for (int h = 0; h < heads_of_list; ++h) {
          const auto head = static_cast<std::size_t>(list * heads_of_list + h);
          expected +=
              std::exp(static_cast<double>(logits[head * capacity + static_cast<std::size_t>(t)]) -
                       static_cast<double>(lse[head]));
        }
        ASSERT_NEAR(weight, expected, 1e-5 * expected);
      }
    }
  }
}

}  // namespace
}  // namespace triphase::cuda
