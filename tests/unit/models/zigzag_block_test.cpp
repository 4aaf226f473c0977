// How a step's rows are divided into GPU batches, and that hidden states which leave the device
// come back as they left it.

#include "models/zigzag_block.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "memory/host_device.h"
#include "memory/transfer/host_transfer_engine.h"
#include "runtime/backend.h"

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
  block.begin(segments, {});
  EXPECT_EQ(batches_of(block), (Ranges{{0, 10}}));
  block.set_batch(2);
  block.begin(segments, {});
  EXPECT_EQ(batches_of(block), (Ranges{{0, 6}, {6, 3}, {9, 1}}));
  block.set_batch(1);
  block.begin(segments, {});
  EXPECT_EQ(batches_of(block), (Ranges{{0, 1}, {1, 5}, {6, 2}, {8, 1}, {9, 1}}));
  block.set_batch(9);
  block.begin(segments, {});
  EXPECT_EQ(batches_of(block), (Ranges{{0, 10}}));
}

class HiddenStatesOnHost : public testing::TestWithParam<bool> {};

// Whatever is on the device while a batch is on the host is lost: what comes back was there.
TEST_P(HiddenStatesOnHost, ComeBackAsTheyLeft) {
  constexpr std::int64_t kWidth = 24;
  const auto backend = Backend::open("cpu", 1);
  MemoryPool host(backend->device(), MemoryTier::kHost, std::uint64_t{1} << 20);
  HostTransferEngine transfers(std::nullopt);
  ZigzagBlock block;
  block.set_batch(2);
  block.set_prefetch(GetParam());
  block.keep_on_host(20, kWidth, transfers, host);
  EXPECT_EQ(host.use(MemoryTag::kActivations).peak, ZigzagBlock::host_bytes(20, kWidth));

  std::uint64_t moved = 0;
  for (const std::vector<std::int64_t>& counts :
       {std::vector<std::int64_t>{1, 5, 2, 1, 1}, std::vector<std::int64_t>{3}}) {
    const auto segments = segments_of(counts);
    const std::int64_t rows = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    std::vector<float> x(static_cast<std::size_t>(rows * kWidth));
    std::iota(x.begin(), x.end(), 1.0F);
    block.begin(segments, {x.data(), DType::kF32, rows, kWidth, kWidth});
    const std::vector<ZigzagBlock::Rows> batches(block.batches().begin(), block.batches().end());
    for (int layer = 0; layer < 3; ++layer) {
      for (std::size_t i = 0; i < batches.size(); ++i) {
        block.enter(i);
        for (std::int64_t at = batches[i].first * kWidth;
             at < (batches[i].first + batches[i].count) * kWidth; ++at) {
          ASSERT_EQ(x[static_cast<std::size_t>(at)], static_cast<float>(at + 1 + layer));
          x[static_cast<std::size_t>(at)] += 1.0F;
        }
      }
      if (layer == 2) break;
      for (std::size_t i = 0; i < batches.size(); ++i) {
        block.leave(i, backend->stream());
        moved += static_cast<std::uint64_t>(batches[i].count * kWidth) * sizeof(float);
      }
      transfers.drain();
      std::ranges::fill(x, -1.0F);
    }
  }
  EXPECT_EQ(block.moved_bytes(), moved);
  EXPECT_EQ(transfers.stats(Lane::kToHost).bytes, moved);
  EXPECT_EQ(transfers.stats(Lane::kToDevice).bytes, moved);
}

INSTANTIATE_TEST_SUITE_P(Prefetch, HiddenStatesOnHost, testing::Bool());

}  // namespace
}  // namespace triphase
