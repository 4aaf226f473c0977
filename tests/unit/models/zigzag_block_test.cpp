// How a step's rows are divided into GPU batches.

#include "models/zigzag_block.h"

#include <gtest/gtest.h>

#include <vector>

namespace triphase {
namespace {

std::vector<BatchSegment> segments_of(const std::vector<std::int64_t>& counts) {
  std::vector<BatchSegment> segments;
  std::int64_t row = 0;
  for (const std::int64_t count : counts) {
    segments.push_back({.sequence = SequenceId(static_cast<std::int64_t>(segments.size())),
                        .first_row = row,
                        .count = count});
    row += count;
  }
  return segments;
}

std::vector<std::pair<std::int64_t, std::int64_t>> batches_of(const ZigzagBlock& block) {
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const ZigzagBlock::Rows& rows : block.batches()) ranges.emplace_back(rows.first, rows.count);
  return ranges;
}

using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

TEST(ZigzagBlock, DividesTheStepBySequences) {
  ZigzagBlock block;
  const auto segments = segments_of({1, 5, 2, 1, 1});
  block.begin(segments);
  EXPECT_EQ(batches_of(block), (Ranges{{0, 10}}));
  block.set_batch(2);
  block.begin(segments);
  EXPECT_EQ(batches_of(block), (Ranges{{0, 6}, {6, 3}, {9, 1}}));
  block.set_batch(1);
  block.begin(segments);
  EXPECT_EQ(batches_of(block), (Ranges{{0, 1}, {1, 5}, {6, 2}, {8, 1}, {9, 1}}));
  block.set_batch(9);
  block.begin(segments);
  EXPECT_EQ(batches_of(block), (Ranges{{0, 10}}));
}

}  // namespace
}  // namespace triphase
