#include "memory/transfer/gather_runs.h"

#include <gtest/gtest.h>

#include <random>

namespace triphase {
namespace {

// Which cells the runs cover, each at most once, and in how many pieces of the host's memory.
struct Covered {
  std::vector<std::uint8_t> cells;
  std::int64_t pieces = 0;
};

Covered cover(const KvGeometry& geometry, const WantedTokens& wanted,
              const std::vector<TokenRun>& runs) {
  const auto parts = static_cast<std::int64_t>(wanted.cells.size()) / geometry.page_tokens;
  const auto heads = geometry.kv_heads / parts;
  Covered covered{std::vector<std::uint8_t>(wanted.cells.size()), 0};
  std::int64_t end = -1;
  for (const TokenRun& run : runs) {
    EXPECT_GT(run.count, 0);
    EXPECT_EQ(run.slot / geometry.page_tokens, (run.slot + run.count - 1) / geometry.page_tokens);
    EXPECT_EQ(run.head_begin % heads, 0);
    EXPECT_TRUE(run.count == 1 || run.head_count == geometry.kv_heads) << "no single piece";
    if (geometry.host_begin(run) != end) ++covered.pieces;
    end = geometry.host_end(run);
    for (std::int64_t token = 0; token < run.count; ++token) {
      for (std::int64_t head = run.head_begin; head < run.head_begin + run.head_count;
           head += heads) {
        const std::int64_t cell = (run.record - wanted.record + token) * parts + head / heads;
        EXPECT_EQ(covered.cells.at(static_cast<std::size_t>(cell))++, 0);
        const std::int32_t slot =
            wanted.slots.empty() ? -1 : wanted.slots[static_cast<std::size_t>(cell)];
        EXPECT_EQ(run.slot + token, slot < 0 ? wanted.slot + cell / parts : slot);
      }
    }
  }
  return covered;
}

TEST(GatherRuns, CoverWhatIsWantedAndOnlyShortGaps) {
  std::mt19937 random(3);
  for (int round = 0; round < 400; ++round) {
    const std::int64_t tokens = 1 + static_cast<std::int64_t>(random() % 40);
    const std::int64_t heads = 1 + static_cast<std::int64_t>(random() % 5);
    const std::int64_t parts = random() % 2 == 0 ? 1 : heads;
    const KvGeometry geometry{.page_tokens = tokens, .kv_heads = heads, .head_bytes = 6};
    std::vector<std::uint8_t> cells(static_cast<std::size_t>(tokens * parts));
    const unsigned share = 1 + random() % 9;
    for (std::uint8_t& cell : cells) cell = random() % 10 < share ? 1 : 0;
    const std::int64_t longest = static_cast<std::int64_t>(random() % 4);
    const std::int64_t cell_bytes = geometry.record_bytes() / parts;
    // Half the time some tokens go elsewhere, often several to neighbouring slots.
    std::vector<std::int32_t> slots;
    if (random() % 2 == 0) slots.assign(cells.size(), -1);
    for (std::size_t cell = 0; cell < slots.size(); ++cell) {
      if (cells[cell] != 0 && random() % 3 != 0) {
        slots[cell] = static_cast<std::int32_t>(11 * tokens + 5) +
                      static_cast<std::int32_t>(cell) / static_cast<std::int32_t>(parts);
      }
    }
    const WantedTokens wanted{
        .slot = 3 * tokens, .record = 7 * tokens, .cells = cells, .slots = slots};
    std::vector<TokenRun> runs;
    gather_runs(geometry, wanted, longest * cell_bytes + cell_bytes - 1, runs);
    const Covered covered = cover(geometry, wanted, runs);

    std::int64_t pieces = 0;
    std::int64_t last = -1;  // wanted cell before this one
    std::vector<std::uint8_t> expected = cells;
    for (std::int64_t cell = 0; cell < tokens * parts; ++cell) {
      if (cells[static_cast<std::size_t>(cell)] == 0) continue;
      if (last < 0 || cell - last - 1 > longest) {
        ++pieces;
      } else {
        for (std::int64_t gap = last + 1; gap < cell; ++gap) {
          expected[static_cast<std::size_t>(gap)] = 1;
        }
      }
      last = cell;
    }
    EXPECT_EQ(covered.cells, expected);
    EXPECT_EQ(covered.pieces, pieces);
  }
}

}  // namespace
}  // namespace triphase
