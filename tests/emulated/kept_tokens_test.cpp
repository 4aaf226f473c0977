// Kept tokens on the emulator, and on a GPU, beside their definition by sorting.

#include "kernels/cuda/kept_tokens.h"

#include "tests/emulated/emulated_test.h"
#include "tests/support/drawn_weights.h"
#include "tests/support/plain_kept_lists.h"

namespace triphase::cuda {
namespace {

constexpr std::int64_t kLists = 2;
constexpr std::int64_t kLayers = 2;

struct Row : KeptRowLists {
  Row(std::int64_t prompt_tokens, std::int64_t most_tokens)
      : KeptRowLists(kLists, kLayers, most_tokens), prompt(prompt_tokens) {}
  std::int64_t prompt;
};

// Sums with ties, and what is no number.
float some_weight(std::mt19937& random) {
  switch (random() % 12) {
    case 0:
      return std::nanf("");
    case 1:
      return -0.0F;
    case 2:
      return std::numeric_limits<float>::infinity();
    default:
      return static_cast<float>(random() % 40) / 32.0F;
  }
}

void keep(std::vector<Row>& rows, const std::vector<KeptRow>& choices, const std::string& what) {
  std::int64_t capacity = 0;
  for (const KeptRow& choice : choices) capacity = std::max(capacity, tokens_left(choice));
  const std::size_t all = kLayers * rows.size() * kLists;
  std::vector<std::int32_t> lists(all * static_cast<std::size_t>(capacity), -1);
  std::vector<std::int32_t> counts(all, -1);
  keep_heaviest(choices.data(), static_cast<std::int64_t>(rows.size()), kLists, kLayers,
                lists.data(), capacity, counts.data(), nullptr);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const KeptRow& choice = choices[i];
    for (PlainKeptList& plain : rows[i].plain) {
      plain.keep_heaviest(choice.added, choice.context, choice.local, choice.total);
    }
    ASSERT_EQ(rows[i].count(), tokens_left(choice));
    ASSERT_NO_FATAL_FAILURE(rows[i].expect_as_defined(what + " row " + std::to_string(i)));
    for (std::size_t list = 0; list < rows[i].plain.size(); ++list) {
      const std::size_t at = (list / kLists * rows.size() + i) * kLists + list % kLists;
      ASSERT_EQ(counts[at], rows[i].count());
      const auto first = lists.begin() + static_cast<std::ptrdiff_t>(at) * capacity;
      ASSERT_EQ(std::vector<std::int32_t>(first, first + counts[at]), rows[i].plain[list].tokens);
      ASSERT_TRUE(std::all_of(first + counts[at], first + capacity,
                              [](std::int32_t token) { return token == -1; }));
    }
  }
}

void add(std::vector<Row>& rows, std::mt19937& random) {
  std::int64_t capacity = 3;
  for (const Row& row : rows) capacity = std::max(capacity, row.count());
  std::vector<float> weights(rows.size() * static_cast<std::size_t>(kLists * capacity));
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    for (float& weight : weights) weight = draw_weight(random);
    const DrawnScores scores(weights, capacity);
    std::vector<KeptWeights> added;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      // In another order than they were attended.
      const std::size_t from = rows.size() - 1 - i;
      added.push_back({rows[i].first_layer(), rows[i].count(), static_cast<std::int64_t>(from)});
      for (std::size_t list = 0; list < kLists; ++list) {
        rows[i].plain[layer * kLists + list].add(std::span(weights).subspan(
            (from * kLists + list) * static_cast<std::size_t>(capacity)));
      }
    }
    add_kept_weights(added.data(), std::ssize(rows), kLists,
                     {.values = scores.values.data(),
                      .softmax = scores.softmax.data(),
                      .capacity = capacity,
                      .heads = static_cast<int>(kDrawnHeads)},
                     capacity, static_cast<std::int64_t>(layer), false, nullptr);
  }
  for (const Row& row : rows) ASSERT_NO_FATAL_FAILURE(row.expect_as_defined("added"));
}

// Prompts around the chunks of a compaction, and steps that shrink lists, let them grow, and choose
// twice.
TEST(EmulatedKeptTokens, AreThoseOfTheDefinition) {
  std::mt19937 random(1);
  std::vector<Row> rows;
  for (const std::int64_t prompt : {1, 2, 31, 257, 1023, 1024, 1025, 2500}) {
    rows.emplace_back(prompt, prompt + 20);
    std::vector<KeptTokens> views;
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      views.push_back(in_layer(rows.back().first_layer(), layer));
    }
    keep_all(views.data(), kLayers, kLists, prompt, nullptr);
    for (PlainKeptList& plain : rows.back().plain) plain.keep_all(prompt);
    ASSERT_NO_FATAL_FAILURE(rows.back().expect_as_defined("all"));
    // The prompt's sums.
    for (std::size_t list = 0; list < rows.back().plain.size(); ++list) {
      for (std::int64_t t = 0; t < prompt; ++t) {
        const auto at = static_cast<std::size_t>(t);
        rows.back().sums[list * static_cast<std::size_t>(rows.back().room) + at] =
            rows.back().plain[list].sums[at] = some_weight(random);
      }
    }
  }
  std::vector<std::int64_t> contexts;
  for (const Row& row : rows) contexts.push_back(row.prompt);
  for (std::int64_t step = 0; step < 7; ++step) {
    const std::int64_t added = step == 3 ? 0 : step == 5 ? 4 : 1;
    std::vector<KeptRow> choices;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      contexts[i] += added;
      const std::int64_t length = rows[i].count() + added;
      const std::int64_t total = step == 6 ? 0 : step == 1 ? length + 5 : length - length / 8;
      choices.push_back({.kept = rows[i].first_layer(),
                         .count = rows[i].count(),
                         .added = added,
                         .context = contexts[i],
                         .local = step % 3 == 0   ? 1
                                  : step % 3 == 1 ? total / 4
                                                  : 0,
                         .total = total});
    }
    ASSERT_NO_FATAL_FAILURE(keep(rows, choices, "step " + std::to_string(step)));
    ASSERT_NO_FATAL_FAILURE(add(rows, random));
  }
}

TEST(EmulatedKeptTokens, ViewsOfACallAreFilledTogether) {
  std::vector<Row> rows;
  std::vector<KeptTokens> views;
  for (std::int64_t i = 0; i < 3; ++i) rows.emplace_back(300, 300 + i);
  for (Row& row : rows) {
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      views.push_back(in_layer(row.first_layer(), layer));
    }
  }
  keep_all(views.data(), 3 * kLayers, kLists, 300, nullptr);
  for (Row& row : rows) {
    for (PlainKeptList& plain : row.plain) plain.keep_all(300);
    ASSERT_NO_FATAL_FAILURE(row.expect_as_defined("all"));
  }
}

}  // namespace
}  // namespace triphase::cuda
