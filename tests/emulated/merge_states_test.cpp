// merge_states on hand-made states, against float64.

#include "kernels/cuda/merge_states.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

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

// `per_row` results of each row from the plan, and one of its partial block.
void expect_merged(int per_row, bool partial, int dim, int empty_every, bool long_rows) {
  const int sequences = 3;
  const int kv_heads = 2;
  const int group = 3;
  const int heads = kv_heads * group;
  const int rows = sequences * kv_heads;
  const States first(rows, per_row, group, dim, empty_every, 3);
  const States second(rows, 1, group, dim, empty_every, 4);
  std::vector<float> states = first.states;
  std::vector<float> max_sum = first.max_sum;
  states.insert(states.end(), second.states.begin(), second.states.end());
  max_sum.insert(max_sum.end(), second.max_sum.begin(), second.max_sum.end());
  // Result number: part + row.
  std::vector<RowParts> row_parts;
  for (int row = 0; row < rows; ++row) row_parts.push_back({row * (per_row - 1), per_row});
  std::vector<float> out(static_cast<std::size_t>(sequences * heads * dim), kNaN);
  std::vector<float> softmax(static_cast<std::size_t>(2 * sequences * heads), kNaN);
  MergeStatesArgs args;
  args.sequences = sequences;
  args.heads = heads;
  args.kv_heads = kv_heads;
  args.head_dim = dim;
  args.states = states.data();
  args.max_sum = max_sum.data();
  args.plan.row_parts = row_parts.data();
  args.plan.part_count = rows * (per_row - 1);
  args.plan.rows = rows;
  args.partial_results = partial;
  args.long_rows = long_rows;
  args.out = {out.data(), DType::kF32, sequences, heads * dim, heads * dim};
  args.softmax = softmax.data();
  const std::vector<float> sinks = {9.0F, -3.0F, 0.0F, 30.0F, -200.0F, 20.0F};
  if (dim == 64) args.sinks = sinks.data();
  merge_states(args, nullptr);
  for (int row = 0; row < rows; ++row) {
    for (int g = 0; g < group; ++g) {
      double maximum = -INFINITY;
      struct Part {
        double max, sum;
        const float* state;
      };
      std::vector<Part> parts;
      const auto add = [&](const States& from, int of_row, int i) {
        const auto at = static_cast<std::size_t>((row * of_row + i) * group + g);
        parts.push_back({from.max_sum[2 * at], from.max_sum[2 * at + 1],
                         from.states.data() + at * static_cast<std::size_t>(dim)});
        if (parts.back().sum != 0) maximum = std::max(maximum, parts.back().max);
      };
      for (int i = 0; i < per_row; ++i) add(first, per_row, i);
      if (partial) add(second, 1, 0);
      double sum = 0;
      for (const Part& part : parts) {
        if (part.sum != 0) sum += std::exp2(part.max - maximum) * part.sum;
      }
      const auto query =
          static_cast<std::size_t>(row / kv_heads * heads + row % kv_heads * group + g);
      if (dim == 64 && sum != 0) {
        const double sink = sinks[query % static_cast<std::size_t>(heads)] / std::log(2.0);
        const double top = std::max(maximum, sink);
        sum = sum * std::exp2(maximum - top) + std::exp2(sink - top);
        maximum = top;
      }
      const double largest = softmax[2 * query];
      const double share = softmax[2 * query + 1];
      if (sum == 0) {
        EXPECT_EQ(share, 0.0);
      } else {
        EXPECT_NEAR(largest - std::log2(share), maximum + std::log2(sum), 1e-4);
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
        const auto at = query * static_cast<std::size_t>(dim) + static_cast<std::size_t>(c);
        ASSERT_LE(std::abs(out[at] - value), 1e-5 * magnitude);
      }
    }
  }
}

TEST(MergeStates, WhatPartsLeftAndEmptyRows) {
  for (const int dim : {8, 64, 128, 152, 256}) {
    for (const int empty_every : {1, 2, 100}) {
      for (const int per_row : {1, 2, 3, 40, 130}) {
        for (const bool partial : {false, true}) {
          for (const bool long_rows : {false, true}) {
            SCOPED_TRACE(std::to_string(dim) + " channels, " + std::to_string(per_row) + " parts" +
                         (partial ? " and a partial block" : "") + (long_rows ? ", long" : ""));
            expect_merged(per_row, partial, dim, empty_every, long_rows);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace triphase::cuda
