#include "kernels/cuda/resolve.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

struct Case {
  int rows;
  int lists;
  int page_tokens;
  int host_blocks;
  int hot_rows;
  bool own_block_apart;
  // Of the host's blocks that have hidden states and no K and V; they come behind the others.
  int input_blocks = 0;

  [[nodiscard]] int all_blocks() const { return host_blocks + input_blocks; }
};

using Recomputed = std::tuple<int, int, int, int>;  // as RecomputedToken

// The rules, one list and one token after the other.
class Model {
 public:
  struct Result {
    std::vector<std::int32_t> slots;
    std::vector<std::int32_t> missing_slots, missing_records, missing_heads;
    std::vector<Recomputed> recomputed;
  };

  explicit Model(const Case& sizes) : sizes_(sizes), lists_(static_cast<std::size_t>(sizes.lists)) {
    for (List& list : lists_) {
      list.owners.assign(static_cast<std::size_t>(sizes.hot_rows), -1);
      list.stamps.assign(static_cast<std::size_t>(sizes.hot_rows), 0);
    }
  }

  Result resolve(const ResolveArgs& args) {
    Result result;
    result.slots.assign(
        static_cast<std::size_t>(args.choice.rows * args.choice.lists * args.choice.capacity), -9);
    for (int list = 0; list < args.choice.lists; ++list) resolve_list(args, list, result);
    return result;
  }

  void forget(int host_block) {
    for (List& list : lists_) {
      for (std::size_t row = 0; row < list.owners.size(); ++row) {
        if (list.owners[row] < 0 || list.owners[row] / sizes_.page_tokens != host_block) continue;
        list.map.erase(list.owners[row]);
        list.owners[row] = -1;
        list.stamps[row] = 0;
      }
    }
  }

  std::int64_t chosen = 0;
  std::int64_t hits = 0;
  std::int64_t brought = 0;
  std::int64_t recomputed = 0;

 private:
  // What is missing, with its places in the lists, and what else names a hidden state.
  struct Missing {
    std::vector<std::size_t> places;
    int position = 0;
    int scale_page = 0;
  };
  struct List {
    std::map<int, int> map;  // hot row by host token
    std::vector<int> owners, stamps;
  };

  void resolve_list(const ResolveArgs& args, int list, Result& result) {
    List& own = lists_[static_cast<std::size_t>(list)];
    std::map<int, Missing> missing;  // by host token
    for (int row = 0; row < args.choice.rows; ++row) {
      const int entry = row * args.choice.lists + list;
      for (int i = 0; i < args.choice.counts[entry]; ++i) {
        const auto at = static_cast<std::size_t>(entry * args.choice.capacity + i);
        const int token = args.choice.tokens[at];
        const int block = token / args.tables.page_tokens;
        const int offset = token % args.tables.page_tokens;
        const int page = args.tables.pages[row * args.tables.max_blocks + block];
        if (args.tables.own_block_apart &&
            block == (args.tables.lengths[row] - 1) / args.tables.page_tokens) {
          result.slots[at] = offset;
        } else if (page >= 0) {
          result.slots[at] = (page + args.tables.layer) * args.tables.page_tokens + offset;
        } else {
          const int key = args.tables.host_blocks[row * args.tables.max_blocks + block] *
                              args.tables.page_tokens +
                          offset;
          ++chosen;
          if (const auto found = own.map.find(key); found != own.map.end()) {
            ++hits;
            hit_.insert(found->second);
            result.slots[at] = args.room.first_hot_slot + found->second;
          } else {
            Missing& token_missing = missing[key];
            token_missing.places.push_back(at);
            token_missing.position = token;
            if (args.tables.scale_pages != nullptr) {
              token_missing.scale_page =
                  args.tables.scale_pages[row * args.tables.max_blocks + block];
            }
          }
        }
      }
    }
    for (const int row : hit_) own.stamps[static_cast<std::size_t>(row)] = args.step;
    hit_.clear();
    place(args, list, own, missing, result);
  }

  void place(const ResolveArgs& args, int list, List& own, const std::map<int, Missing>& missing,
             Result& result) {
    std::vector<int> victims;
    for (int row = 0; row < args.hot.rows; ++row) {
      if (own.stamps[static_cast<std::size_t>(row)] != args.step) victims.push_back(row);
    }
    std::ranges::stable_sort(victims, {},
                             [&](int row) { return own.stamps[static_cast<std::size_t>(row)]; });
    if (victims.size() > missing.size()) victims.resize(missing.size());
    std::ranges::sort(victims);
    std::size_t rank = 0;
    for (const auto& [key, token] : missing) {
      int slot = args.room.first_spare_slot + static_cast<int>(rank - victims.size());
      if (rank < victims.size()) {
        const int row = victims[rank];
        int& owner = own.owners[static_cast<std::size_t>(row)];
        if (owner >= 0) own.map.erase(owner);
        owner = key;
        own.map[key] = row;
        own.stamps[static_cast<std::size_t>(row)] = args.step;
        slot = args.room.first_hot_slot + row;
      }
      for (const std::size_t at : token.places) result.slots[at] = slot;
      ++rank;
      if (key >= args.host.stored_tokens) {
        result.recomputed.emplace_back(slot, key - static_cast<int>(args.host.stored_tokens),
                                       token.position, token.scale_page);
        ++recomputed;
        continue;
      }
      result.missing_slots.push_back(slot);
      result.missing_records.push_back(static_cast<int>(args.host.first_record) + key);
      result.missing_heads.push_back(list);
      ++brought;
    }
  }

  Case sizes_;
  std::vector<List> lists_;
  std::set<int> hit_;
};

// A step's tables and lists: rows share some of the host's blocks.
struct Step {
  static constexpr int kBlocks = 5;
  static constexpr int kPages = 7;

  Step(std::mt19937& random, const Case& sizes) {
    const auto below = [&](int end) {
      return std::uniform_int_distribution<int>(0, end - 1)(random);
    };
    const int longest = kBlocks * sizes.page_tokens;
    for (int row = 0; row < sizes.rows; ++row) {
      lengths.push_back(1 + below(longest));
      const int own = (lengths.back() - 1) / sizes.page_tokens;
      for (int block = 0; block < kBlocks; ++block) {
        const bool on_device = block == own || below(4) == 0;
        pages.push_back(on_device ? below(kPages) : -1);
        scale_pages.push_back(below(1000));
        // A block with hidden states has one place in every context, and one page of scales.
        const int inputs = sizes.input_blocks / kBlocks;
        if (on_device || inputs == 0 || below(2) == 0) {
          host_blocks.push_back(on_device ? -1 : below(sizes.host_blocks));
        } else {
          const int input = below(inputs) * kBlocks + block;
          host_blocks.push_back(sizes.host_blocks + input);
          scale_pages.back() = 1000 + input;
        }
      }
    }
    capacity = longest;
    for (int list = 0; list < sizes.rows * sizes.lists; ++list) {
      const int length = lengths[static_cast<std::size_t>(list / sizes.lists)];
      const int share = 1 + below(4);
      int count = 0;
      std::vector<std::int32_t> row(static_cast<std::size_t>(capacity), 1 << 28);  // poison
      for (int token = 0; token < length; ++token) {
        if (below(share) == 0) row[static_cast<std::size_t>(count++)] = token;
      }
      tokens.insert(tokens.end(), row.begin(), row.end());
      counts.push_back(count);
    }
  }

  std::vector<std::int32_t> pages, host_blocks, scale_pages, lengths, tokens, counts;
  int capacity = 0;
};

// Memory of the calls, exact in size.
struct Memory {
  explicit Memory(const Case& sizes) {
    const auto lists = static_cast<std::size_t>(sizes.lists);
    const auto words = static_cast<std::size_t>(sizes.all_blocks() * sizes.page_tokens / 32);
    const auto hot = static_cast<std::size_t>(sizes.hot_rows);
    map.assign(lists * words * 32, 7);
    owners.assign(lists * hot, 7);
    stamps.assign(lists * hot, 0);
    claims.assign(lists * words, 0);
    hits.assign(lists * ((hot + 31) / 32), 0);
    seen.assign(lists * words, 0xDEADU);
    ranks.assign(lists * words, -7);
    victims.assign(lists * hot, -7);
    found.assign(lists, {});
    totals.assign(lists * 4, 0);
    fill_words(map.data(), static_cast<std::int64_t>(map.size()), -1, nullptr);
    if (hot > 0) fill_words(owners.data(), static_cast<std::int64_t>(owners.size()), -1, nullptr);
  }

  std::vector<std::int32_t> map, owners, stamps, ranks, victims;
  std::vector<unsigned> claims, hits, seen;
  std::vector<FoundTokens> found;
  std::vector<std::int64_t> totals;
};

struct Results {
  std::vector<std::int32_t> slots, missing_slots, missing_records, missing_heads, missing_widths;
  std::int32_t missing_count = -1;
  std::vector<RecomputedToken> recomputed;
  std::int32_t recomputed_count = -1;
};

ResolveArgs arguments(const Case& sizes, const Step& step, Memory& memory, Results& results,
                      int number) {
  const std::size_t all = step.tokens.size();
  for (auto* array : {&results.slots, &results.missing_slots, &results.missing_records,
                      &results.missing_heads, &results.missing_widths}) {
    array->assign(all, -9);
  }
  ResolveArgs args;
  args.choice.tokens = step.tokens.data();
  args.choice.counts = step.counts.data();
  args.choice.rows = sizes.rows;
  args.choice.lists = sizes.lists;
  args.choice.capacity = step.capacity;
  args.tables.pages = step.pages.data();
  args.tables.host_blocks = step.host_blocks.data();
  args.tables.lengths = step.lengths.data();
  args.tables.max_blocks = Step::kBlocks;
  args.tables.page_tokens = sizes.page_tokens;
  args.tables.own_block_apart = sizes.own_block_apart;
  args.tables.layer = 2;
  if (sizes.hot_rows > 0) {
    args.hot = {memory.map.data(), memory.owners.data(), memory.stamps.data(), sizes.hot_rows};
    args.scratch.hits = memory.hits.data();
    args.scratch.victims = memory.victims.data();
  }
  args.host.tokens = sizes.all_blocks() * sizes.page_tokens;
  args.host.stored_tokens = sizes.host_blocks * sizes.page_tokens;
  args.host.first_record = 3 * args.host.stored_tokens;
  args.room.first_hot_slot = 10'000;
  args.room.first_spare_slot = 50'000;
  args.room.spare_slots = sizes.all_blocks() * sizes.page_tokens;
  args.step = number;
  args.scratch.claims = memory.claims.data();
  args.scratch.seen = memory.seen.data();
  args.scratch.ranks = memory.ranks.data();
  args.scratch.found = memory.found.data();
  args.totals = memory.totals.data();
  args.slots = results.slots.data();
  args.missing.slots = results.missing_slots.data();
  args.missing.records = results.missing_records.data();
  if (sizes.lists > 1) {
    args.missing.heads = results.missing_heads.data();
    args.missing.widths = results.missing_widths.data();
  }
  args.missing.count = &results.missing_count;
  if (sizes.input_blocks > 0) {
    if (sizes.own_block_apart) args.tables.scale_pages = step.scale_pages.data();
    results.recomputed.assign(all, {-9, -9, -9, -9});
    args.recomputed.tokens = results.recomputed.data();
    args.recomputed.count = &results.recomputed_count;
  }
  return args;
}

std::vector<std::int32_t> first(const std::vector<std::int32_t>& values, std::int32_t count) {
  return {values.begin(), values.begin() + count};
}

void expect_recomputed(const Results& results, const Model::Result& expected) {
  ASSERT_EQ(results.recomputed_count, static_cast<int>(expected.recomputed.size()));
  for (std::size_t i = 0; i < expected.recomputed.size(); ++i) {
    const RecomputedToken& token = results.recomputed[i];
    EXPECT_EQ(Recomputed(token.slot, token.input, token.position, token.scale_page),
              expected.recomputed[i]);
  }
}

// Two calls in each step: the second one finds what the first one brought.
void expect_rules(const Case& sizes, const std::vector<int>& steps) {
  std::mt19937 random(3);
  Model model(sizes);
  Memory memory(sizes);
  for (const int number : steps) {
    for (int call = 0; call < 2; ++call) {
      const Step step(random, sizes);
      Results results;
      const ResolveArgs args = arguments(sizes, step, memory, results, number);
      const Model::Result expected = model.resolve(args);
      resolve_tokens(args, nullptr);
      ASSERT_EQ(results.slots, expected.slots) << "step " << number;
      ASSERT_EQ(results.missing_count, static_cast<int>(expected.missing_slots.size()));
      EXPECT_EQ(first(results.missing_slots, results.missing_count), expected.missing_slots);
      EXPECT_EQ(first(results.missing_records, results.missing_count), expected.missing_records);
      if (sizes.lists > 1) {
        EXPECT_EQ(first(results.missing_heads, results.missing_count), expected.missing_heads);
        EXPECT_THAT(first(results.missing_widths, results.missing_count), testing::Each(1));
      }
      if (sizes.input_blocks > 0) expect_recomputed(results, expected);
      EXPECT_THAT(memory.claims, testing::Each(0U));
      EXPECT_THAT(memory.hits, testing::Each(0U));
    }
    if (sizes.hot_rows == 0) continue;
    const std::vector<std::int32_t> changed{0, sizes.all_blocks() - 1};
    forget_host_blocks(
        changed.data(), 2, 1, sizes.lists, sizes.all_blocks() * sizes.page_tokens,
        sizes.page_tokens,
        {memory.map.data(), memory.owners.data(), memory.stamps.data(), sizes.hot_rows}, nullptr);
    for (const std::int32_t block : changed) model.forget(block);
  }
  std::int64_t chosen = 0;
  std::int64_t hits = 0;
  std::int64_t brought = 0;
  std::int64_t recomputed = 0;
  for (std::size_t list = 0; list < static_cast<std::size_t>(sizes.lists); ++list) {
    chosen += memory.totals[4 * list];
    hits += memory.totals[4 * list + 1];
    brought += memory.totals[4 * list + 2];
    recomputed += memory.totals[4 * list + 3];
  }
  EXPECT_EQ(chosen, model.chosen);
  EXPECT_EQ(hits, model.hits);
  EXPECT_EQ(brought, model.brought);
  EXPECT_EQ(recomputed, model.recomputed);
  EXPECT_EQ(recomputed > 0, sizes.input_blocks > 0);
  EXPECT_GT(chosen, 0);
  EXPECT_EQ(hits > 0, sizes.hot_rows > 0);
}

TEST(EmulatedResolve, FollowsTheRules) {
  for (const Case& sizes :
       {Case{1, 1, 32, 3, 40, false}, Case{4, 1, 32, 6, 100, false}, Case{3, 2, 32, 5, 33, true},
        Case{2, 4, 64, 4, 300, true}, Case{3, 1, 128, 4, 0, false}, Case{2, 2, 32, 8, 1100, false},
        Case{4, 1, 32, 3, 100, false, 10}, Case{3, 1, 64, 5, 300, true, 5},
        Case{4, 1, 32, 40, 0, true, 5}}) {
    expect_rules(sizes, {1, 2, 3, 4});
  }
}

// Tokens that were chosen thousands of steps ago leave in the same order.
TEST(EmulatedResolve, ALongJobKeepsTheOrder) {
  for (const Case& sizes : {Case{4, 1, 32, 6, 60, false}, Case{2, 2, 32, 8, 90, false},
                            Case{3, 1, 32, 30, 300, false}, Case{4, 1, 128, 30, 2200, false}}) {
    expect_rules(sizes, {1, 2, 3, 2500, 2501, 4547, 4548, 90'000, 90'001});
  }
}

TEST(EmulatedResolve, RefusesWhatItCannotCount) {
  const Case sizes{1, 1, 32, 3, 40, false};
  std::mt19937 random(1);
  const Step step(random, sizes);
  Memory memory(sizes);
  Results results;
  ResolveArgs args = arguments(sizes, step, memory, results, 1);
  args.host.first_record = INT32_MAX - 1;
  EXPECT_THROW(resolve_tokens(args, nullptr), Error);
  args = arguments(sizes, step, memory, results, 1);
  args.host.tokens += 32;  // hidden states, for which there is no list
  EXPECT_THROW(resolve_tokens(args, nullptr), Error);
  args = arguments(sizes, step, memory, results, 1);
  args.tables.page_tokens = 48;
  EXPECT_THROW(resolve_tokens(args, nullptr), Error);
}

}  // namespace
}  // namespace triphase::cuda
