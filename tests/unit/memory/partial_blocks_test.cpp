#include "memory/kv/partial_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "memory/host_device.h"

namespace triphase {
namespace {

constexpr std::int64_t kBlock = 16;
constexpr std::int64_t kLayers = 2;

class PartialBlocksTest : public ::testing::Test {
 protected:
  SequenceId admit(TokenId first) {
    std::vector<TokenId> prompt(kBlock);
    std::iota(prompt.begin(), prompt.end(), first);
    return store_.book().admit(prompt, 2 * kBlock, 0, {}).sequence;
  }
  // A step in which each sequence gets so many tokens, through all layers.
  void step(const std::vector<BatchSegment>& rows, bool taken_before) {
    for (const BatchSegment& row : rows) store_.book().append(row.sequence, row.count);
    blocks_.begin_step(store_, rows);
    taken_.clear();
    if (taken_before) {
      const auto taken = blocks_.take_for_step(kLayers);
      taken_.assign(taken.begin(), taken.end());
    }
    used_.clear();
    for (const LayerId layer : {LayerId(0), LayerId(1)}) {
      blocks_.begin_layer(layer);
      for (const PartialBlocks::Run& run : blocks_.runs()) used_.push_back(run.partial_page);
      blocks_.end_layer();
    }
  }

  HostDevice device_;
  MemoryPool pool_{device_, MemoryTier::kDevice, 1 << 24};
  KvStore store_{{.layers = kLayers,
                  .kv_heads = 1,
                  .head_dim = 8,
                  .block_tokens = kBlock,
                  .dtype = DType::kInt8},
                 {.device_pages = 16, .partial_pages = 8},
                 pool_,
                 nullptr,
                 nullptr};
  PartialBlocks blocks_;
  std::vector<PageId> taken_;  // for the whole step
  std::vector<PageId> used_;   // by layer and run
};

// Pages that were taken for a step are those of its runs, whatever the steps before took.
TEST_F(PartialBlocksTest, PagesTakenForAStepAreThoseOfItsRuns) {
  const SequenceId first = admit(0);
  const SequenceId second = admit(100);
  step({{.sequence = first, .count = kBlock}, {.sequence = second, .count = kBlock - 1}}, true);
  EXPECT_TRUE(taken_.empty()) << "only where every sequence has one new token";
  EXPECT_EQ(store_.partial_pages().free_pages(), 8 - kLayers) << "one block is full";
  for (std::int64_t token = 0; token < 3; ++token) {
    step({{.sequence = first, .count = 1, .first_position = kBlock + token},
          {.sequence = second, .count = 1, .first_position = kBlock - 1 + token}},
         true);
    EXPECT_TRUE(blocks_.taken_for_step());
    EXPECT_EQ(taken_, used_) << token;
  }
  // A prompt beside them: each layer takes its own page where a block begins.
  const SequenceId third = admit(200);
  step({{.sequence = third, .count = 5}}, true);
  EXPECT_FALSE(blocks_.taken_for_step());
  EXPECT_THAT(used_, testing::Each(testing::Property(&PageId::valid, true)));
  EXPECT_EQ(store_.partial_pages().free_pages(), 8 - 3 * kLayers);
}

}  // namespace
}  // namespace triphase
