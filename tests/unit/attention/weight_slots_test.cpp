#include "models/attention/weight_slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <random>

#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/cpu/cpu_sparse_ops.h"
#include "memory/host_device.h"
#include "tests/support/drawn_weights.h"
#include "tests/support/top_indices.h"

namespace triphase {
namespace {

// Sums of weights per token over the last rows of a sequence, row by row as they come: the oracle.
class WeightHistory {
 public:
  // Exact: every row is kept. Otherwise rows are summed in buckets of an eighth of the window, and
  // the window holds up to an eighth more rows than asked for.
  explicit WeightHistory(bool exact) : exact_(exact) {}

  // The newest row: weights[i] of token tokens[i]; then drops rows beyond the last `window`.
  void add(std::span<const std::int32_t> tokens, std::span<const float> weights,
           std::int64_t window);

  // Sums of tokens [0, count).
  void scores(std::int64_t count, std::vector<float>& to) const;
  [[nodiscard]] std::int64_t rows() const { return rows_; }

 private:
  struct Bucket {
    std::int64_t rows = 0;
    // Exact: tokens of the one row and their weights. Else weights of all tokens.
    std::vector<std::int32_t> tokens;
    std::vector<std::int64_t> weights;
  };

  bool exact_;
  std::int64_t rows_ = 0;
  std::deque<Bucket> buckets_;
  std::vector<std::int64_t> sums_;
};

constexpr std::int64_t kBuckets = 8;

// NaN counts as 0; a weight is at most the number of heads. Rounded to the nearest: the product and
// the sum are exact.
std::int64_t fixed(float weight) {
  if (!(weight > 0.0F)) return 0;
  return static_cast<std::int64_t>(static_cast<double>(std::min(weight, 65536.0F)) * 0x1p32 + 0.5);
}

void WeightHistory::add(std::span<const std::int32_t> tokens, std::span<const float> weights,
                        std::int64_t window) {
  const std::int64_t bucket_rows = exact_ ? 1 : std::max<std::int64_t>(1, window / kBuckets);
  if (buckets_.empty() || buckets_.back().rows >= bucket_rows) buckets_.emplace_back();
  Bucket& newest = buckets_.back();
  const std::size_t size = tokens.empty() ? 0 : static_cast<std::size_t>(tokens.back()) + 1;
  if (sums_.size() < size) sums_.resize(size, 0);
  if (exact_) {
    newest.tokens.assign(tokens.begin(), tokens.end());
  } else if (newest.weights.size() < size) {
    newest.weights.resize(size, 0);
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto token = static_cast<std::size_t>(tokens[i]);
    const std::int64_t weight = fixed(weights[i]);
    sums_[token] += weight;
    if (exact_) {
      newest.weights.push_back(weight);
    } else {
      newest.weights[token] += weight;
    }
  }
  ++newest.rows;
  ++rows_;
  while (!buckets_.empty() && rows_ - buckets_.front().rows >= window && buckets_.size() > 1) {
    const Bucket& oldest = buckets_.front();
    for (std::size_t i = 0; i < oldest.weights.size(); ++i) {
      sums_[exact_ ? static_cast<std::size_t>(oldest.tokens[i]) : i] -= oldest.weights[i];
    }
    rows_ -= oldest.rows;
    buckets_.pop_front();
  }
}

void WeightHistory::scores(std::int64_t count, std::vector<float>& to) const {
  to.assign(static_cast<std::size_t>(count), 0.0F);
  const std::size_t known = std::min(to.size(), sums_.size());
  for (std::size_t i = 0; i < known; ++i) {
    to[i] = static_cast<float>(static_cast<double>(sums_[i]) * 0x1p-32);
  }
}

// Windows and lists as SWA's: a share of the context, the window half of it.
WindowGrowth growth_of(std::int64_t prompt, std::int64_t longest, double share) {
  return {.prompt_tokens = prompt,
          .longest = longest,
          .window_rows =
              [share](std::int64_t context) {
                return std::max<std::int64_t>(
                    1, static_cast<std::int64_t>(share / 2 * static_cast<double>(context)));
              },
          .chosen_tokens =
              [share](std::int64_t context) {
                return static_cast<std::int64_t>(share * static_cast<double>(context)) + 1;
              }};
}

// Memory of a window and where its rows go.
struct Window {
  Window(bool exact, const WindowGrowth& growth)
      : room(weight_room(exact, growth)),
        slots(exact, room),
        // Everything that is not cleared is poison.
        memory(weight_window_bytes(exact, growth.longest, room) / sizeof(std::int64_t), -1),
        view(weight_window_at(memory.data(), exact, growth.longest, room)) {}

  std::int64_t room;
  WeightSlots slots;
  std::vector<std::int64_t> memory;
  WeightWindow view;
};

std::vector<float> scores_of(const WeightHistory& history, std::int64_t context) {
  std::vector<float> scores;
  history.scores(context, scores);
  return scores;
}
std::vector<float> scores_of(const WeightWindow& window, std::int64_t context) {
  std::vector<float> scores;
  for (std::int64_t t = 0; t < context; ++t) {
    scores.push_back(static_cast<float>(static_cast<double>(window.sums[t]) * 0x1p-32));
  }
  return scores;
}

struct Sequence {
  Sequence(bool is_exact, WindowGrowth how)
      : exact(is_exact), growth(std::move(how)), history(exact), window(exact, growth) {}

  bool exact;
  WindowGrowth growth;
  WeightHistory history;
  Window window;
  std::vector<std::int32_t> tokens;  // of the row at hand
  std::vector<float> weights;
};

// Dense rows of a prompt, then chosen ones: sums and choices are those of WeightHistory and
// top_indices bit for bit.
TEST(WeightWindow, SumsAndChoicesAreTheHistorysBitForBit) {
  HostDevice device;
  const auto stream = device.make_stream();
  std::mt19937 random(7);
  std::deque<Sequence> sequences;  // views point into them
  for (const bool exact : {true, false}) {
    sequences.emplace_back(exact, growth_of(1, 700, 0.3));
    sequences.emplace_back(exact, growth_of(40, 739, 0.2));
    sequences.emplace_back(exact, growth_of(300, 999, 0.5));
    sequences.emplace_back(exact, growth_of(25, 724, 0.9));
  }
  ThreadPool pool(3);
  const auto ops = make_cpu_sparse_ops(pool, device);
  std::vector<WeightWindow> windows;
  for (const Sequence& sequence : sequences) windows.push_back(sequence.window.view);
  ops->clear_weights(windows, *stream);
  const auto weight = [&] { return draw_weight(random); };
  const auto add = [&](std::span<Sequence*> rows, const auto& context_of) {
    std::vector<WeightRow> changes;
    std::int64_t capacity = 1;
    for (const Sequence* row : rows) {
      capacity = std::max(capacity, static_cast<std::int64_t>(row->tokens.size()));
    }
    std::vector<std::int32_t> tokens(rows.size() * static_cast<std::size_t>(capacity), -1);
    std::vector<float> weights(tokens.size(), -1.0F);
    std::vector<std::int32_t> counts;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Sequence& row = *rows[i];
      const std::int64_t context = context_of(row);
      const std::int64_t window =
          row.growth.window_rows(std::max(row.growth.prompt_tokens, context) + 1);
      const auto to = static_cast<std::ptrdiff_t>(i) * capacity;
      std::ranges::copy(row.tokens, tokens.begin() + to);
      std::ranges::copy(row.weights, weights.begin() + to);
      counts.push_back(static_cast<std::int32_t>(row.tokens.size()));
      row.history.add(row.tokens, row.weights, window);
      changes.push_back(
          {.window = row.window.view,
           .step = row.window.slots.add(static_cast<std::int64_t>(row.tokens.size()), window),
           .context = context,
           .attended = static_cast<std::int64_t>(i)});
      ASSERT_EQ(row.window.slots.rows(), row.history.rows());
    }
    std::ranges::reverse(changes);
    DrawnScores scores(weights, capacity);
    ops->add_weights({.rows = static_cast<std::int64_t>(rows.size()),
                      .capacity = capacity,
                      .tokens = tokens.data(),
                      .counts = counts.data(),
                      .scores = scores.view()},
                     kDrawnHeads, changes, 0, false, *stream);
  };
  for (Sequence& sequence : sequences) {
    const std::int64_t prompt = sequence.growth.prompt_tokens;
    for (std::int64_t context = prompt - sequence.growth.window_rows(prompt + 1) + 1;
         context <= prompt; ++context) {
      sequence.weights.clear();
      sequence.tokens.resize(static_cast<std::size_t>(context));
      std::iota(sequence.tokens.begin(), sequence.tokens.end(), 0);
      for (std::int64_t t = 0; t < context; ++t) sequence.weights.push_back(weight());
      Sequence* row = &sequence;
      add({&row, 1}, [&](const Sequence&) { return context; });
    }
  }
  for (std::int64_t step = 1; step <= 699; ++step) {
    const auto context_of = [&](const Sequence& sequence) {
      return sequence.growth.prompt_tokens + step;
    };
    std::vector<WindowChoice> choices;
    for (const Sequence& sequence : sequences) {
      const std::int64_t context = context_of(sequence);
      const std::int64_t total = std::min(context, sequence.growth.chosen_tokens(context));
      choices.push_back({.window = sequence.window.view,
                         .context = context,
                         .local = step % 50 == 0 ? 0 : (total + 1) / 2,
                         // More than there are: all.
                         .total = step % 60 == 0 ? context + 3 : total});
    }
    const Selection chosen = ops->choose_recent_and_heaviest(choices, 1, *stream);
    ASSERT_EQ(chosen.rows, static_cast<std::int64_t>(choices.size()));
    std::vector<Sequence*> rows;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      Sequence& sequence = sequences[i];
      const WindowChoice& choice = choices[i];
      const std::vector<float> sums = scores_of(sequence.history, choice.context);
      ASSERT_EQ(scores_of(sequence.window.view, choice.context), sums) << i << " step " << step;
      const std::vector<std::int32_t> expected =
          top_and_newest_indices(sums, std::min(choice.total, choice.context), choice.local);
      const std::int32_t* list = chosen.tokens + static_cast<std::int64_t>(i) * chosen.capacity;
      const std::vector<std::int32_t> actual(list, list + chosen.counts[i]);
      ASSERT_EQ(actual, expected) << i << " step " << step;
      sequence.tokens = expected;
      sequence.tokens.resize(std::min(
          expected.size(), static_cast<std::size_t>(std::min(
                               choice.context, sequence.growth.chosen_tokens(choice.context)))));
      sequence.weights.clear();
      for (std::size_t t = 0; t < sequence.tokens.size(); ++t) sequence.weights.push_back(weight());
      rows.push_back(&sequence);
    }
    add(rows, context_of);
  }
}

// Exactly the room that is used, at whichever step that is.
TEST(WeightSlots, RoomIsWhatTheRowsTake) {
  for (const bool exact : {true, false}) {
    for (const double share : {0.1, 0.2, 0.6}) {
      for (const std::int64_t prompt : {1, 50, 400}) {
        const WindowGrowth growth = growth_of(prompt, 900, share);
        const std::int64_t room = weight_room(exact, growth);
        const auto run = [&](std::int64_t given) {
          WeightSlots slots(exact, given);
          const std::int64_t window = growth.window_rows(prompt + 1);
          for (std::int64_t row = prompt - window; row < prompt; ++row) {
            const WindowStep step = slots.add(row + 1, window);
            ASSERT_EQ(step.expired, 0);  // as add_prompt_rows has it
          }
          for (std::int64_t context = prompt + 1; context <= 900; ++context) {
            static_cast<void>(slots.add(std::min(context, growth.chosen_tokens(context)),
                                        growth.window_rows(context + 1)));
          }
        };
        run(room);
        EXPECT_THROW(run(room - 1), Error) << exact << " " << share << " " << prompt;
        EXPECT_TRUE(exact || room <= 17) << room;
      }
    }
  }
}

// What a budget for any prompt relies on: exact windows take most for the longest prompt; buckets
// are smallest, and most, where a sequence begins with its first token.
TEST(WeightSlots, RoomOfAnyPromptIsKnown) {
  for (const double share : {0.05, 0.2, 0.5, 0.97}) {
    for (const std::int64_t longest : {64, 200}) {
      const std::int64_t buckets = weight_room(false, growth_of(1, longest, share));
      for (std::int64_t prompt = 1; prompt <= longest; ++prompt) {
        // Room for this prompt and a row behind it serves any shorter prompt.
        const std::int64_t exact = weight_room(true, growth_of(prompt, longest + 1, share));
        for (std::int64_t shorter = 1; shorter <= prompt; shorter += 7) {
          EXPECT_LE(weight_room(true, growth_of(shorter, longest, share)), exact)
              << share << " " << prompt << " " << shorter;
        }
        EXPECT_LE(weight_room(false, growth_of(prompt, longest, share)), buckets + 1)
            << share << " " << prompt;
      }
    }
  }
}

}  // namespace
}  // namespace triphase
