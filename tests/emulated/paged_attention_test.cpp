#include "kernels/cuda/paged_attention.h"

#include "kernels/sizing/cuda_workspace.h"
#include "tests/emulated/paged_attention_fixture.h"

namespace triphase::cuda {
namespace {

using Case = PagedCase;

PagedResult run(const Case& c, const PagedCache& cache, const std::vector<float>& q) {
  return run_paged(
      c, cache, q,
      [&](std::int64_t count) { return paged_query_blocks(count, c.heads / c.kv_heads); },
      [&](PagedAttention& call, std::int64_t blocks) {
        std::vector<float> partials =
            poisoned(paged_attention_floats(blocks, c.kv_heads, c.head_dim, cache.max_length));
        call.partials = partials.data();
        paged_attention(call, blocks, cache.max_length, nullptr);
      });
}

void expect_matches(const Case& c, std::uint32_t seed) {
  expect_matches_float64(c, seed, 1e-4, &run);
}

TEST(EmulatedPagedAttention, GroupsAndTypesOverRaggedDecodeRows) {
  std::uint32_t seed = 1;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8}) {
    for (const std::int64_t group : {1, 2, 3, 5, 8}) {
      const Case c{dtype, 2 * group, 2, 16, 32, 0, {1, 31, 33, 65}, {1, 1, 1, 1}};
      expect_matches(c, seed++);
    }
  }
}

TEST(EmulatedPagedAttention, PrefillChunksAreCausal) {
  expect_matches({DType::kF16, 4, 2, 20, 16, 0, {37, 16, 70}, {37, 5, 20}}, 50);
  expect_matches({DType::kF32, 3, 1, 12, 64, 0, {64}, {33}}, 51);
}

TEST(EmulatedPagedAttention, WindowsAndWideHeads) {
  expect_matches({DType::kF16, 2, 2, 132, 16, 10, {70}, {12}}, 60);
  expect_matches({DType::kBF16, 2, 1, 256, 32, 0, {40}, {2}}, 61);
}

TEST(EmulatedPagedAttention, SplitsMergeOverLongContexts) {
  expect_matches({DType::kF16, 1, 1, 8, 128, 0, {4500, 2048, 2049}, {1, 1, 2}}, 70);
  expect_matches({DType::kF16, 1, 1, 8, 128, 300, {4500}, {1}}, 71);
}

TEST(EmulatedPagedAttention, SinksJoinTheSoftmax) {
  expect_matches({DType::kF32, 10, 2, 12, 16, 0, {37, 16, 70}, {37, 5, 20}, true}, 72);
  expect_matches({DType::kF16, 5, 1, 8, 128, 300, {4500}, {1}, true}, 73);
  expect_matches({DType::kInt8, 4, 1, 16, 32, 0, {90, 64}, {20, 32}, true}, 74);
}

TEST(EmulatedPagedAttention, SoftCaps) {
  expect_matches(capped({DType::kF32, 10, 2, 12, 16, 0, {37, 16, 70}, {37, 5, 20}, true}, 1.5F),
                 75);
  expect_matches(capped({DType::kInt8, 4, 1, 16, 32, 30, {90, 64}, {20, 32}}, 1.0F), 76);
}

// A sequence's bits are the same alone, in a batch, and however prefill was cut.
TEST(EmulatedPagedAttention, BitsDoNotDependOnNeighboursOrChunks) {
  std::mt19937 random(80);
  const Case both{DType::kF16, 4, 2, 16, 32, 0, {50, 90}, {9, 7}};
  const PagedCache cache(random, both.dtype, both.lengths, 32, 2, 16);
  const std::vector<float> q = random_floats(random, 16 * 64);
  const PagedResult together = run(both, cache, q);
  Case last = both;
  last.lengths = {50, 90};
  last.queries = {0, 1};
  const std::vector<float> last_q(q.end() - 64, q.end());
  const emulated::Order order(9);
  const PagedResult alone = run(last, cache, last_q);
  EXPECT_EQ(std::memcmp(alone.out.data(), together.out.data() + 15 * 64, 64 * sizeof(float)), 0);
}

TEST(EmulatedPagedAttention, Int8ReadsItsOwnBlockUnquantized) {
  // Contexts that end exactly at a block's end: the block is still the query's own.
  expect_matches({DType::kInt8, 2, 1, 16, 32, 0, {64, 32}, {1, 1}}, 90);
  expect_matches({DType::kInt8, 2, 1, 16, 32, 0, {90, 64}, {20, 32}}, 91);
}

}  // namespace
}  // namespace triphase::cuda
