#include "kernels/cuda/prefill_attention.h"

#include "kernels/cuda/listed_rows.h"
#include "kernels/sizing/cuda_workspace.h"
#include "tests/emulated/paged_attention_fixture.h"

namespace triphase::cuda {
namespace {

using Case = PagedCase;

// Lists of a sequence, and what they have in front of all_from side by side.
struct Listed {
  Listed(const Case& c, const PagedCache& cache) : room(std::max<std::int64_t>(1, c.all_from)) {
    const std::int64_t capacity = c.lengths[0] + 3;
    tokens.assign(static_cast<std::size_t>(c.kv_heads * capacity), -1);  // nobody may read it
    for (std::int64_t head = 0; head < c.kv_heads; ++head) {
      std::int32_t count = 0;
      for (std::int32_t t = 0; t < c.lengths[0]; ++t) {
        if (c.attends(head, t)) tokens[static_cast<std::size_t>(head * capacity + count++)] = t;
      }
      counts.push_back(count);
    }
    const bool quantized = c.dtype == DType::kInt8;
    const std::int64_t elements = c.kv_heads * room * c.head_dim;
    k = poisoned(quantized ? elements : (elements + 1) / 2);
    v = k;
    listed.assign(static_cast<std::size_t>(c.kv_heads), -1);
    ListedRows rows;
    rows.cache = cache.view();
    if (quantized) {
      rows.scale_pages = cache.scale_pages.data();
      rows.partial_page = cache.partial_pages[0];
      rows.own_block = (c.lengths[0] - 1) / c.page_tokens;
    }
    rows.pages = cache.pages.data();
    rows.tokens = tokens.data();
    rows.counts = counts.data();
    rows.capacity = capacity;
    rows.all_from = c.all_from;
    copy_listed_rows(rows, k.data(), v.data(), room, listed.data(), nullptr);
  }

  std::int64_t room;
  std::vector<std::int32_t> tokens, counts, listed;
  std::vector<float> k, v;
};

GpuMachine with_warpgroups(bool warpgroups) {
  return {.shared_bytes_per_block = 227 << 10, .warpgroups = warpgroups};
}

// Whether warpgroup products serve a case, where the device has them.
bool by_warpgroups(const Case& c) {
  return has_warpgroups() && c.head_dim <= 128 && c.all_from < 0 &&
         (c.dtype != DType::kInt8 || c.page_tokens >= 64);
}

PagedResult run_splits(const Case& c, const PagedCache& cache, const std::vector<float>& q,
                       const PrefillSplits& splits, const GpuMachine& machine) {
  return run_paged(
      c, cache, q,
      [&](std::int64_t count) {
        return prefill_query_blocks(count, c.heads / c.kv_heads, prefill_rows(c.dtype, c.head_dim));
      },
      [&](PagedAttention& call, std::int64_t blocks) {
        std::vector<float> partials = poisoned(prefill_partial_floats(
            blocks, prefill_rows(c.dtype, c.head_dim), c.kv_heads, c.head_dim, splits.count));
        call.partials = partials.data();
        if (c.all_from < 0) {
          prefill_attention(call, blocks, splits, machine, nullptr);
          return;
        }
        const Listed listed(c, cache);
        call.listed = {.k = listed.k.data(),
                       .v = listed.v.data(),
                       .room = listed.room,
                       .counts = listed.listed.data(),
                       .all_from = c.all_from};
        prefill_attention(call, blocks, splits, machine, nullptr);
      });
}

PagedResult run(const Case& c, const PagedCache& cache, const std::vector<float>& q,
                std::int64_t splits, const GpuMachine& machine = with_warpgroups(false)) {
  const std::int64_t tokens = (cache.max_length + splits * 128 - 1) / (splits * 128) * 128;
  return run_splits(c, cache, q, {splits, tokens}, machine);
}

// Queries and weights are rounded to FP16 (unit 2^-11) or kept to 16 bits in two BF16 terms. With
// the fixture's fixed softmax scale, wide heads have large logits, whose errors grow alike.
double tolerance_of(const PagedCase& c) {
  const double unit = c.dtype == DType::kBF16 ? 4e-5 : 2e-3;
  return unit * std::max(1.0, static_cast<double>(c.head_dim) / 64.0);
}

void expect_matches(const Case& c, std::uint32_t seed, std::int64_t splits = 1) {
  for (const bool warpgroups : {false, true}) {
    if (warpgroups && !by_warpgroups(c)) continue;
    SCOPED_TRACE(warpgroups ? "by warpgroups" : "by warps");
    expect_matches_float64(
        c, seed, tolerance_of(c),
        [&](const Case& one, const PagedCache& cache, const std::vector<float>& q) {
          return run(one, cache, q, splits, with_warpgroups(warpgroups));
        });
  }
}

TEST(EmulatedPrefillAttention, GroupsAndTypesOverRaggedLengths) {
  std::uint32_t seed = 1;
  for (const std::int64_t group : {1, 2, 3, 4, 5, 6, 7, 8}) {
    expect_matches({DType::kF16, 2 * group, 2, 16, 32, 0, {1, 127, 128, 129}, {1, 3, 1, 33}},
                   seed++);
  }
  for (const std::int64_t group : {1, 3, 8}) {
    expect_matches({DType::kBF16, 2 * group, 2, 16, 32, 0, {1, 127, 128, 129}, {1, 3, 1, 33}},
                   seed++);
    expect_matches({DType::kInt8, 2 * group, 2, 16, 32, 0, {1, 127, 128, 129}, {1, 3, 32, 1}},
                   seed++);
  }
}

TEST(EmulatedPrefillAttention, PromptsOfManyBlocksAreCausal) {
  expect_matches({DType::kF16, 2, 1, 64, 64, 0, {129, 70}, {129, 70}}, 40);
  expect_matches({DType::kBF16, 3, 1, 24, 32, 0, {100}, {70}}, 41);
}

TEST(EmulatedPrefillAttention, WindowsAndHeadSizesThatAreNoPowersOfTwo) {
  expect_matches({DType::kF16, 2, 2, 72, 32, 10, {150}, {70}}, 50);
  expect_matches({DType::kF16, 2, 1, 8, 128, 200, {300}, {20}}, 51);
  expect_matches({DType::kBF16, 1, 1, 136, 32, 0, {70}, {40}}, 52);
  expect_matches({DType::kF16, 2, 1, 256, 32, 0, {40}, {5}}, 53);
  expect_matches({DType::kInt8, 2, 1, 120, 64, 0, {150}, {20}}, 54);
}

TEST(EmulatedPrefillAttention, SinksJoinTheSoftmax) {
  for (const std::int64_t splits : {1, 2}) {
    expect_matches({DType::kF16, 8, 2, 16, 32, 0, {1, 127, 300}, {1, 3, 33}, true}, 56, splits);
    expect_matches({DType::kBF16, 3, 1, 24, 32, 20, {200}, {70}, true}, 57, splits);
    expect_matches({DType::kInt8, 5, 1, 16, 32, 0, {300}, {12}, true}, 58, splits);
  }
}

// By warps alone, whatever the device has.
TEST(EmulatedPrefillAttention, SoftCaps) {
  for (const std::int64_t splits : {1, 2}) {
    expect_matches(capped({DType::kF16, 8, 2, 16, 32, 0, {1, 127, 300}, {1, 3, 33}}, 1.5F), 64,
                   splits);
    expect_matches(capped({DType::kBF16, 2, 1, 256, 32, 20, {100}, {40}, true}, 4.0F), 65, splits);
    expect_matches(capped({DType::kInt8, 4, 2, 72, 64, 0, {150, 64}, {20, 7}}, 2.0F), 66, splits);
  }
}

// Where a block has 99 KiB of shared memory, its tiles are shorter. Two are not served there.
TEST(EmulatedPrefillAttention, LittleSharedMemory) {
  std::uint32_t seed = 70;
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kInt8}) {
    for (const std::int64_t dim : {64, 128, 256}) {
      const std::int64_t shared = 99 * 1024;
      const bool serves = prefill_attention_shared_bytes(dtype, dim) <= shared;
      EXPECT_EQ(serves, dim < 256 || dtype == DType::kF16) << dim;
      if (!serves) continue;
      const Case c{dtype, 2, 1, dim, 32, 0, {90}, {20}};
      expect_matches_float64(
          c, seed++, tolerance_of(c),
          [&](const Case& one, const PagedCache& cache, const std::vector<float>& q) {
            return run(one, cache, q, 1, {.shared_bytes_per_block = shared});
          });
    }
  }
}

TEST(EmulatedPrefillAttention, SplitsMergeToTheSame) {
  for (const std::int64_t splits : {2, 3, 7}) {
    // Short segments beside a long one: some of their splits hold no token at all.
    expect_matches({DType::kF16, 4, 2, 16, 128, 0, {900, 5, 257}, {20, 5, 1}}, 60, splits);
    expect_matches({DType::kInt8, 2, 1, 16, 32, 0, {300}, {10}}, 61, splits);
    expect_matches({DType::kBF16, 1, 1, 16, 64, 140, {600}, {60}}, 62, splits);
  }
}

// Queries that chose together: what their lists have comes first, then the tokens behind it.
void expect_listed(Case c, std::int64_t all_from, std::uint32_t seed) {
  c.all_from = all_from;
  SCOPED_TRACE(std::string(dtype_name(c.dtype)) + " head_dim " + std::to_string(c.head_dim) +
               ", all from " + std::to_string(all_from));
  // In one piece, divided by the device, and at fixed places.
  for (const PrefillSplits& splits :
       {PrefillSplits{1, 0}, PrefillSplits{3, 0}, PrefillSplits{(c.lengths[0] + 255) / 128, 128}}) {
    expect_matches_float64(
        c, seed, tolerance_of(c),
        [&](const Case& one, const PagedCache& cache, const std::vector<float>& q) {
          return run_splits(one, cache, q, splits, with_warpgroups(false));
        });
  }
}

TEST(EmulatedPrefillAttention, ListedTokensComeBeforeTheRest) {
  std::uint32_t seed = 100;
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kInt8}) {
    for (const std::int64_t dim : {64, 128, 256}) {
      expect_listed({dtype, 4, 2, dim, 64, 0, {300}, {20}, dim == 64}, 250, seed++);
    }
    // Nothing in front, all of it from the first token on, one token, and of the queries' block.
    expect_listed({dtype, 2, 1, 16, 32, 0, {70}, {6}}, 0, seed++);
    expect_listed({dtype, 2, 2, 24, 32, 0, {70}, {6}}, 1, seed++);
    expect_listed({dtype, 3, 1, 40, 32, 0, {160}, {9}}, 150, seed++);
    expect_listed({dtype, 2, 1, 16, 128, 0, {600}, {50}}, 545, seed++);
  }
  expect_listed({DType::kF16, 4, 1, 64, 32, 0, {290}, {150}}, 130, seed++);
}

// Several tiles of 128 keys, so that keys and values come to both their places; blocks whose second
// warpgroup has no row, and prompts that begin and end anywhere.
TEST(EmulatedPrefillAttention, WarpgroupsOverManyTiles) {
  struct Kind {
    DType dtype;
    std::int64_t dim;
    std::int32_t page;
  };
  std::uint32_t seed = 200;
  for (const auto& [dtype, dim, page] :
       {Kind{DType::kF16, 64, 64}, Kind{DType::kF16, 128, 32}, Kind{DType::kBF16, 128, 64},
        Kind{DType::kInt8, 128, 64}, Kind{DType::kInt8, 64, 128}}) {
    if (dtype == DType::kInt8) {
      expect_matches({dtype, 3, 1, dim, page, 0, {300, page, 1}, {40, 1, 1}}, seed++);
      expect_matches({dtype, 8, 1, dim - 8, page, 200, {510}, {9}, true}, seed++, 2);
    } else {
      expect_matches({dtype, 2, 1, dim, page, 0, {390, 128}, {70, 1}}, seed++);
      expect_matches({dtype, 1, 1, dim - 8, page, 300, {450}, {64}, true}, seed++, 2);
    }
  }
}

// A row's bits are the same alone, in a batch, and however its prompt was cut into chunks.
TEST(EmulatedPrefillAttention, BitsDoNotDependOnNeighboursOrChunks) {
  for (const bool warpgroups : {false, true}) {
    if (warpgroups && !has_warpgroups()) continue;
    const GpuMachine machine = with_warpgroups(warpgroups);
    std::mt19937 random(80);
    const Case both{DType::kF16, 4, 2, 16, 32, 0, {50, 90}, {9, 41}};
    const PagedCache cache(random, both.dtype, both.lengths, 32, 2, 16);
    const std::vector<float> q = random_floats(random, 50 * 64);
    const PagedResult together = run(both, cache, q, 1, machine);
    Case last = both;
    last.queries = {0, 3};
    const std::vector<float> last_q(q.end() - 3 * 64, q.end());
    const emulated::Order order(9);
    const PagedResult alone = run(last, cache, last_q, 1, machine);
    EXPECT_EQ(std::memcmp(alone.out.data(), together.out.data() + 47 * 64, 3 * 64 * sizeof(float)),
              0);
    EXPECT_EQ(std::memcmp(alone.log_sums.data(), together.log_sums.data() + 47 * 4,
                          3 * 4 * sizeof(float)),
              0);
  }
}

// Channels far from zero, of which FP16 keeps hardly a code apart, and values beyond its range.
TEST(EmulatedPrefillAttention, Int8ValuesKeepWhatFp16WouldLose) {
  for (const bool warpgroups : {false, has_warpgroups()}) {
    std::mt19937 random(92);
    const Case c{DType::kInt8, 3, 1, 32, 64, 0, {270}, {14}};
    PagedCache cache(random, c.dtype, c.lengths, 64, 1, 32);
    for (std::size_t at = 0; at < cache.scales.size(); at += 32) {
      if (cache.scales[at].bits == kNoKvScale) continue;
      for (std::size_t channel = 0; channel < 4; ++channel) {
        const bool is_key = at / 32 % 2 == 0;
        cache.scales[at + channel] = is_key ? kv_scale(0.01F, -2000.0F) : kv_scale(800.0F, 100.0F);
      }
    }
    const std::vector<float> q = random_floats(random, 14 * 3 * 32);
    expect_result(c, cache, q, run(c, cache, q, 1, with_warpgroups(warpgroups)), 1e-3);
  }
}

TEST(EmulatedPrefillAttention, PartialBlocksInBf16KeepTheirRange) {
  for (const bool warpgroups : {false, has_warpgroups()}) {
    std::mt19937 random(93);
    const Case c{DType::kInt8, 2, 1, 16, 64, 0, {92}, {20}};
    PagedCache cache(random, c.dtype, c.lengths, 64, 1, 16, false, DType::kBF16);
    for (std::vector<Elements>* partial : {&cache.partial_k, &cache.partial_v}) {
      for (std::int64_t i = 0; i < 28 * 16; ++i) {
        (*partial)[0].set(i, static_cast<float>((*partial)[0].at(i)) * 2e5F);
      }
    }
    const std::vector<float> q = random_floats(random, 20 * 2 * 16, 5e-6F);
    expect_result(c, cache, q, run(c, cache, q, 1, with_warpgroups(warpgroups)), 1e-4);
  }
}

// Logits far apart and equal ones: the running maximum must carry the sums along.
TEST(EmulatedPrefillAttention, LargeLogitsDoNotOverflow) {
  std::mt19937 random(90);
  const Case c{DType::kF16, 1, 1, 16, 32, 0, {200}, {64}};
  const PagedCache cache(random, c.dtype, c.lengths, 32, 1, 16);
  std::vector<float> q = random_floats(random, 64 * 16, 300.0F);
  std::fill(q.begin(), q.begin() + 16, 0.0F);
  for (const bool warpgroups : {false, has_warpgroups()}) {
    const PagedResult result = run(c, cache, q, 1, with_warpgroups(warpgroups));
    for (const float value : result.out) ASSERT_TRUE(std::isfinite(value));
    EXPECT_NEAR(result.log_sums[0], std::log(137.0), 1e-5);  // no logit at all: 137 equal weights
  }
}

TEST(PrefillWorkspace, PartialsAreBoundedByTheMachineNotByTheContext) {
  const std::int64_t most = 132;
  for (const std::int64_t blocks : {1, 7, 33, 500}) {
    for (const std::int64_t context : {1, 511, 4096, 131072, 1 << 20}) {
      const PrefillSplits splits = prefill_splits(blocks, 8, context, most);
      ASSERT_GE(splits.count, 1);
      EXPECT_LE(splits.count == 1 ? 0 : splits.count * blocks * 8, 2 * most);
      EXPECT_GE(splits.tokens * splits.count, context);
      EXPECT_EQ(splits.tokens % 128, 0);
    }
  }
  EXPECT_EQ(prefill_splits(1, 1, 1 << 20, most).count, 2 * most);
  // Fixed splits: where they lie does not depend on the context.
  EXPECT_EQ(prefill_fixed_splits(1).count, 1);
  EXPECT_EQ(prefill_fixed_splits(2049).count, 2);
  EXPECT_EQ(prefill_fixed_splits(1).tokens, prefill_fixed_splits(1 << 20).tokens);
  EXPECT_EQ(prefill_partial_floats(500, 128, 8, 128, 1), 0);
}

}  // namespace
}  // namespace triphase::cuda
