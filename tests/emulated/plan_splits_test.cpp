#include "kernels/cuda/plan_splits.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

std::vector<std::byte> workspace_for(const PlanSplitsArgs& args) {
  return std::vector<std::byte>(
      static_cast<std::size_t>(split_plan_bytes(args.rows, args.part_count)), std::byte{0xFF});
}

int units_of(const PlanSplitsArgs& args, int row) {
  const int count = args.counts[row / args.rows_per_count];
  const int skipped = args.window > 0 ? std::max(0, count - args.window) / args.unit_tokens : 0;
  return (count + args.unit_tokens - 1) / args.unit_tokens - skipped;
}

// Every unit of every row in exactly one part, row_parts naming those parts, results unique.
void expect_covers(const PlanSplitsArgs& args, int max_imbalance) {
  std::vector<std::byte> workspace = workspace_for(args);
  const SplitPlan plan = plan_splits(args, workspace.data(), workspace.size(), nullptr);
  std::map<std::pair<int, int>, int> part_of_unit;
  std::set<int> results;
  int longest = 0;
  int shortest = 1 << 30;
  for (int part = 0; part < plan.part_count; ++part) {
    const SplitPart walk = plan.parts[part];
    int cost = 0;
    for (int row = walk.row_begin; row <= walk.row_end && row < args.rows; ++row) {
      const int units = units_of(args, row);
      const int begin = row == walk.row_begin ? walk.unit_begin : 0;
      const int end = row == walk.row_end ? walk.unit_end : units;
      ASSERT_LE(end, units);
      if (begin >= end) continue;
      for (int unit = begin; unit < end; ++unit) {
        ASSERT_TRUE(part_of_unit.insert({{row, unit}, part}).second) << "a unit in two parts";
      }
      ASSERT_TRUE(results.insert(part + row).second) << "two results in one place";
      cost += end - begin + (begin == 0 ? args.row_overhead : 0);
    }
    longest = std::max(longest, cost);
    shortest = std::min(shortest, cost);
  }
  for (int row = 0; row < args.rows; ++row) {
    const int units = units_of(args, row);
    std::set<int> parts;
    for (int unit = 0; unit < units; ++unit) {
      const auto found = part_of_unit.find({row, unit});
      ASSERT_NE(found, part_of_unit.end()) << "row " << row << " unit " << unit << " is nowhere";
      parts.insert(found->second);
    }
    ASSERT_EQ(plan.row_parts[row].count, static_cast<int>(parts.size())) << "row " << row;
    if (!parts.empty()) {
      ASSERT_EQ(plan.row_parts[row].first, *parts.begin());
      ASSERT_EQ(plan.row_parts[row].first + plan.row_parts[row].count - 1, *parts.rbegin());
    }
  }
  EXPECT_LE(longest - shortest, max_imbalance);
}

TEST(PlanSplits, RaggedRowsAreCoveredOnce) {
  std::mt19937 random(7);
  for (const int rows : {1, 3, 64, 1500}) {
    std::vector<std::int32_t> counts(static_cast<std::size_t>(rows));
    const std::int32_t special[] = {0, 1, 31, 32, 33, 127, 128, 129, 4096};
    for (auto& count : counts) count = special[random() % 9];
    for (const int parts : {1, 2, 37, 640}) {
      for (const int overhead : {0, 2}) {
        for (const int window : {0, 1, 33, 128, 4096}) {
          expect_covers({.counts = counts.data(),
                         .rows = rows,
                         .unit_tokens = 32,
                         .window = window,
                         .row_overhead = overhead,
                         .part_count = parts},
                        1 << 30);
        }
      }
    }
  }
}

TEST(PlanSplits, EqualRowsAreSharedEvenly) {
  const std::vector<std::int32_t> counts(8, 4096);
  // 8 sequences of 4 heads: 32 rows of 128 units over 64 parts.
  expect_covers({.counts = counts.data(),
                 .rows = 32,
                 .rows_per_count = 4,
                 .unit_tokens = 32,
                 .row_overhead = 0,
                 .part_count = 64},
                0);
}

TEST(PlanSplits, FixedModeCutsByLengthAlone) {
  const std::vector<std::int32_t> counts = {0, 700, 512, 1, 0, 2048};
  PlanSplitsArgs args{.counts = counts.data(),
                      .rows = 6,
                      .unit_tokens = 512,
                      .part_count = 12,
                      .mode = SplitMode::kFixed};
  expect_covers(args, 1);
  std::vector<std::byte> workspace = workspace_for(args);
  const SplitPlan plan = plan_splits(args, workspace.data(), workspace.size(), nullptr);
  const int expected[] = {0, 2, 1, 1, 0, 4};
  for (int row = 0; row < 6; ++row) EXPECT_EQ(plan.row_parts[row].count, expected[row]);
}

}  // namespace
}  // namespace triphase::cuda
