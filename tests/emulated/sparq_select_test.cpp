#include "kernels/cuda/sparq_select.h"

#include "base/ids.h"
#include "kernels/cuda/kv_channels.h"
#include "kernels/cuda/select_rows.h"
#include "kernels/ops.h"
#include "kernels/sizing/cuda_workspace.h"
#include "tests/emulated/score_fixture.h"

namespace triphase::cuda {
namespace {

struct Chosen {
  std::vector<std::int32_t> indices, counts;
  std::vector<float> alpha;
  std::int64_t capacity = 0;

  [[nodiscard]] std::vector<std::int32_t> row(std::int64_t r) const {
    const auto begin = indices.begin() + static_cast<std::ptrdiff_t>(r * capacity);
    return {begin, begin + counts[static_cast<std::size_t>(r)]};
  }
};

struct Rule {
  std::int64_t rank, k, local;
};

Chosen choose(const ScoreKeys& keys, const ScoreQueries& queries, const Rule& rule) {
  const std::int64_t rows = keys.sequences * keys.kv_heads;
  Chosen chosen;
  chosen.capacity = std::max<std::int64_t>(1, std::max(rule.k, rule.local));
  chosen.indices.assign(static_cast<std::size_t>(rows * chosen.capacity), -1);
  chosen.counts.assign(static_cast<std::size_t>(rows), -1);
  chosen.alpha = poisoned(keys.sequences * queries.heads);
  SparqSelect call;
  call.keys = keys;
  call.queries = queries;
  call.rank = rule.rank;
  call.scale.scale = 1.0F / std::sqrt(static_cast<float>(keys.head_dim));
  call.k = rule.k;
  call.local = rule.local;
  call.indices = chosen.indices.data();
  call.capacity = chosen.capacity;
  call.counts = chosen.counts.data();
  call.alpha = chosen.alpha.data();
  sparq_select(call, nullptr);
  return chosen;
}

// Transposed keys of every full page, poisoned elsewhere; `run` pages side by side.
std::vector<std::byte> channels_of(const PagedCache& cache, std::int64_t run) {
  std::vector<std::int32_t> full;
  for (std::size_t b = 0; b < cache.lengths.size(); ++b) {
    for (std::int64_t i = 0; (i + 1) * cache.page_tokens < cache.lengths[b]; ++i) {
      full.push_back(
          cache.pages[b * static_cast<std::size_t>(cache.max_pages) + static_cast<std::size_t>(i)]);
    }
  }
  const std::int64_t pages = keys_pages(cache);
  std::vector<std::byte> channels(static_cast<std::size_t>(pages) *
                                      static_cast<std::size_t>(cache.page_elements()) *
                                      dtype_bytes(cache.dtype),
                                  std::byte{0xFF});
  if (!full.empty()) {
    kv_write_channels(full.data(), full.data(), static_cast<int>(full.size()), cache.view(),
                      {.data = channels.data(), .pages = pages, .run = run}, nullptr);
  }
  return channels;
}

// The chosen tokens hold the forced ones and, of the others, none whose score is clearly below that
// of one left out.
void expect_best(const std::vector<std::int32_t>& found, const std::vector<double>& scores,
                 const Rule& rule) {
  const auto length = static_cast<std::int64_t>(scores.size());
  const auto forced = [&](std::int64_t t) { return t >= length - rule.local; };
  std::int64_t forced_count = 0;
  for (std::int64_t t = 0; t < length; ++t) forced_count += forced(t) ? 1 : 0;
  ASSERT_EQ(static_cast<std::int64_t>(found.size()),
            std::min(length, std::max(rule.k, forced_count)));
  ASSERT_TRUE(std::ranges::is_sorted(found));
  ASSERT_EQ(std::ranges::adjacent_find(found), found.end());
  std::vector<bool> is_found(scores.size(), false);
  double lowest = INFINITY;
  for (const std::int32_t t : found) {
    ASSERT_LT(t, length);
    is_found[static_cast<std::size_t>(t)] = true;
    if (!forced(t)) lowest = std::min(lowest, scores[static_cast<std::size_t>(t)]);
  }
  for (std::int64_t t = 0; t < length; ++t) {
    if (is_found[static_cast<std::size_t>(t)]) continue;
    ASSERT_FALSE(forced(t)) << "token " << t;
    ASSERT_LE(scores[static_cast<std::size_t>(t)], lowest * (1.0 + 1e-4)) << "token " << t;
  }
}

// `run`: pages of K^T side by side; 0: none is kept.
void check_cache(const PagedCache& cache, std::int64_t group, const Rule& rule, std::int64_t run,
                 std::mt19937& random) {
  const auto sequences = static_cast<std::int64_t>(cache.lengths.size());
  const std::int64_t dim = cache.head_dim;
  const std::int64_t heads = cache.kv_heads * group;
  const std::vector<float> q = random_floats(random, sequences * heads * dim);
  std::vector<std::byte> channels = channels_of(cache, std::max<std::int64_t>(run, 1));
  ScoreKeys keys = keys_of(cache);
  if (run > 0) keys.channels = {.data = channels.data(), .pages = keys_pages(cache), .run = run};
  const Chosen chosen = choose(keys, {q.data(), heads * dim, heads}, rule);
  for (std::int64_t row = 0; row < sequences * cache.kv_heads; ++row) {
    const SparqRow expected = sparq_row(cache, row / cache.kv_heads, row % cache.kv_heads,
                                        q.data() + row * group * dim, group, rule.rank);
    const std::vector<std::int32_t> found = chosen.row(row);
    expect_best(found, expected.scores, rule);
    for (std::int64_t g = 0; g < group; ++g) {
      double share = 0.0;
      for (const std::int32_t t : found) {
        share += expected.probabilities[static_cast<std::size_t>(g)][static_cast<std::size_t>(t)];
      }
      ASSERT_NEAR(chosen.alpha[static_cast<std::size_t>(row * group + g)], share, 2e-5)
          << "row " << row << " head " << g;
    }
  }
}

void check(DType dtype, std::int64_t group, std::int64_t dim, std::int64_t page_tokens,
           const Rule& rule, std::int64_t run, std::uint32_t seed) {
  std::mt19937 random(seed);
  const PagedCache cache(random, dtype, {0, 1, 127, 128, 129, 300}, page_tokens, 2, dim);
  check_cache(cache, group, rule, run, random);
}

TEST(EmulatedSparqSelect, MatchesFloat64ForGroupsTypesPagesAndOddHeads) {
  std::uint32_t seed = 1;
  for (const std::int64_t group : {1, 2, 3, 4, 5, 6, 7, 8}) {
    const std::int64_t run = group % 4 == 3 ? 0 : group % 2 == 0 ? 1 : 8;
    check(DType::kF16, group, 20, 32 << group % 3, {7, 40, 12}, run, seed++);
  }
  for (const DType dtype : {DType::kBF16, DType::kInt8}) {
    for (const std::int64_t run : {0, 1, 2, 4}) {
      check(dtype, 2, 24, 64, {8, 33, 1}, run, seed++);
      check(dtype, 1, 13, 128, {13, 128, 0}, run, seed++);  // all channels
    }
  }
}

TEST(EmulatedSparqSelect, ForcedTokensMayExceedKAndKMayExceedTheRow) {
  check(DType::kF16, 2, 16, 32, {4, 5, 30}, 4, 60);
  check(DType::kF16, 1, 16, 32, {4, 1000, 0}, 4, 61);
  check(DType::kF16, 1, 16, 32, {16, 0, 1}, 1, 62);
}

// Contexts around those whose scores leave the 48 KiB of a kernel without leave, alone or beside
// the kernel's fixed arrays.
TEST(EmulatedSparqSelect, ContextsAroundTheSharedMemoryOfAnyKernel) {
  for (const auto& [group, lengths] :
       {std::pair<std::int64_t, std::vector<std::int32_t>>{1, {9640, 9641, 12288, 12289}},
        {2, {3128, 3129, 4096, 4097}},
        {4, {1774, 1775, 2457, 2458}},
        {8, {872, 873, 1365, 1366}}}) {
    for (const std::int32_t length : lengths) {
      SCOPED_TRACE(testing::Message() << group << " query heads, " << length << " tokens");
      std::mt19937 random(static_cast<std::uint32_t>(length));
      const PagedCache cache(random, DType::kF16, {length}, 128, 1, 8);
      check_cache(cache, group, {4, 60, 20}, 2, random);
    }
  }
}

TEST(EmulatedSparqSelect, EqualScoresGoToTheSmallestTokens) {
  std::mt19937 random(70);
  const PagedCache cache(random, DType::kF16, {200}, 64, 1, 8);
  const std::vector<float> q(16, 0.0F);  // every logit is 0
  const Chosen chosen = choose(keys_of(cache), {q.data(), 16, 2}, {4, 10, 3});
  EXPECT_THAT(chosen.row(0), testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 197, 198, 199));
  EXPECT_NEAR(chosen.alpha[0], 0.05, 1e-6);
  EXPECT_NEAR(chosen.alpha[1], 0.05, 1e-6);
}

// The separate kernels choose the same tokens from the same row.
TEST(EmulatedSparqSelect, ChoosesWhatTheSeparateKernelsChoose) {
  std::mt19937 random(80);
  const std::int64_t group = 4;
  const std::int64_t dim = 32;
  const PagedCache cache(random, DType::kF16, {500, 257}, 64, 2, dim, true);
  const std::vector<float> q = random_floats(random, 2 * 2 * group * dim);
  const ScoreQueries queries{q.data(), 2 * group * dim, 2 * group};
  const ScoreKeys keys = keys_of(cache);
  const Rule rule{8, 64, 20};
  const Chosen fused = choose(keys, queries, rule);

  std::vector<std::int32_t> channels(4 * 8, -1);
  std::vector<float> factors = poisoned(4 * group);
  choose_channels(queries, 2, 2, dim, rule.rank, {1.0F / std::sqrt(static_cast<float>(dim))},
                  channels.data(), factors.data(), nullptr);
  Scored scored = make_scored(2, 2 * group, cache.max_length, 2);
  score_sparq(keys, queries, channels.data(), factors.data(), rule.rank, scored.view, nullptr);
  group_scores(scored.view, cache.lengths.data(), 2, 4, group, cache.max_length,
               GroupReduce::kProbabilitySum, scored.scores.data(), scored.totals.data(), nullptr);
  std::vector<std::int32_t> indices(4 * 64, -1);
  std::vector<std::int32_t> counts(4, -1);
  select_top({.scores = scored.scores.data(),
              .score_stride = scored.view.length_stride,
              .lengths = cache.lengths.data(),
              .rows = 4,
              .rows_per_sequence = 2,
              .max_length = cache.max_length,
              .local = rule.local,
              .indices = indices.data(),
              .capacity = 64,
              .counts = counts.data()},
             rule.k, nullptr);
  EXPECT_EQ(fused.indices, indices);
  EXPECT_EQ(fused.counts, counts);
}

TEST(SparqSelectSizing, TheLongestRowFitsAndOneMoreVectorDoesNot) {
  constexpr std::int64_t kHopper = 227 << 10;
  for (const std::int64_t group : {1, 2, 8}) {
    const std::int64_t tokens = sparq_select_tokens(group, kHopper);
    EXPECT_LE(sparq_select_shared_bytes(group, tokens) + kSparqSelectFixedBytes, kHopper);
    EXPECT_GT(sparq_select_shared_bytes(group, tokens + 4) + kSparqSelectFixedBytes, kHopper);
  }
  EXPECT_EQ(sparq_select_tokens(1, 1 << 10), 0);
}

TEST(EmulatedChannels, FullPagesAreTransposed) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kInt8}) {
    for (const auto& [dim, run] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{13, 1}, {32, 2}, {70, 4}, {24, 8}}) {
      std::mt19937 random(static_cast<std::uint32_t>(dim));
      const PagedCache cache(random, dtype, {1, 100, 64}, 32, 2, dim);
      const std::vector<std::byte> channels = channels_of(cache, run);
      const KvLayerView view{.page_tokens = 32,
                             .kv_heads = 2,
                             .head_dim = dim,
                             .kt_pages = keys_pages(cache),
                             .kt_run = run};
      const std::size_t width = dtype_bytes(dtype);
      const auto* stored = static_cast<const std::byte*>(cache.k_data());
      const std::vector<std::pair<std::size_t, std::int64_t>> closed = {
          {1, 0}, {1, 1}, {1, 2}, {2, 0}};
      std::size_t written = 0;
      for (const auto& [b, block] : closed) {
        const std::int64_t page = cache.pages[b * static_cast<std::size_t>(cache.max_pages) +
                                              static_cast<std::size_t>(block)];
        for (std::int64_t head = 0; head < 2; ++head) {
          const TransposedKPlace place = transposed_k_place(view, PageId(page), head);
          for (std::int64_t t = 0; t < 32; ++t) {
            for (std::int64_t c = 0; c < dim; ++c) {
              const auto from = static_cast<std::size_t>(cache.place(page, head, t, c));
              const auto to = static_cast<std::size_t>(place.begin + c * place.stride + t);
              ASSERT_EQ(std::memcmp(channels.data() + to * width, stored + from * width, width), 0);
              ++written;
            }
          }
        }
      }
      // Nothing else was touched.
      std::size_t poison = 0;
      for (std::size_t i = 0; i < channels.size(); i += width) {
        bool all = true;
        for (std::size_t j = 0; j < width; ++j) all = all && channels[i + j] == std::byte{0xFF};
        poison += all ? 1 : 0;
      }
      EXPECT_GE(poison, channels.size() / width - written);
    }
  }
}

}  // namespace
}  // namespace triphase::cuda
