#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/sizing/attention_workspace.h"

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

}  // namespace
}  // namespace triphase
