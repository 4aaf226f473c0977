#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/sizing/attention_workspace.h"
#include "kernels/sizing/expert_workspace.h"

namespace triphase {
namespace {

TEST(AttentionWorkspace, GrowsWithEveryField) {
  const AttentionShape base{.heads = 12,
                            .kv_heads = 4,
                            .head_dim = 64,
                            .max_query_rows = 8,
                            .max_context = 1000,
                            .threads = 2};
  const std::uint64_t bytes = attention_workspace_bytes(base);
  EXPECT_GT(bytes, 0U);
  const auto with = [&](auto change) {
    AttentionShape shape = base;
    change(shape);
    return attention_workspace_bytes(shape);
  };
  EXPECT_GE(with([](AttentionShape& s) { s.head_dim = 80; }), bytes);
  EXPECT_GE(with([](AttentionShape& s) { s.max_query_rows = 9; }), bytes);
  EXPECT_GE(with([](AttentionShape& s) { s.max_context = 1001; }), bytes);
  EXPECT_GT(with([](AttentionShape& s) { s.threads = 3; }), bytes);
  for (std::int64_t rows = 1; rows < 100; ++rows) {
    EXPECT_LE(with([&](AttentionShape& s) { s.max_query_rows = rows; }),
              with([&](AttentionShape& s) { s.max_query_rows = rows + 1; }));
  }
}

TEST(AttentionWorkspace, RefusesHeadsThatDoNotDivide) {
  EXPECT_THROW((void)attention_workspace_bytes({.heads = 5, .kv_heads = 2}), Error);
  EXPECT_THROW((void)attention_workspace_bytes({.heads = 4, .kv_heads = 0}), Error);
}

// Plans are made for the largest call: a smaller one must not need more.
TEST(ExpertWorkspace, GrowsWithRows) {
  std::int64_t before = 0;
  for (std::int64_t rows = 1; rows < 600; ++rows) {
    const ExpertShape shape{.rows = rows, .hidden = 1, .experts = 128, .per_row = 8, .ffn = 1};
    const std::int64_t bytes = expert_layout(shape).bytes;
    EXPECT_GE(bytes, before) << rows;
    before = bytes;
    EXPECT_LE(expert_tiles(shape, expert_tile_rows(shape)), expert_tiles(shape, kFewExpertRows));
  }
}

}  // namespace
}  // namespace triphase
