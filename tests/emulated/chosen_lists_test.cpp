// CudaOps over chosen tokens, beside the CPU's Ops.

#include <cmath>
#include <random>

#include "kernels/cuda/cuda_ops.h"
#include "memory/memory_pool.h"
#include "tests/emulated/filled_cache.h"
#include "tests/emulated/guarded_machine.h"

namespace triphase::cuda {
namespace {

constexpr std::int64_t kHeads = 6;
constexpr std::int64_t kColumns = kHeads * FilledCache::kDim;

// Lists of a few rows in a device's memory, with slots or without.
class Lists {
 public:
  using Rows = std::vector<std::vector<std::vector<std::int32_t>>>;  // [row][list]

  Lists(Device& device, const Rows& tokens, const Rows& slots)
      : capacity_(capacity_of(tokens)),
        tokens_(device, flat(tokens)),
        slots_(device, flat(slots)),
        counts_(device, counts_of(tokens)),
        selection_{.rows = std::ssize(tokens),
                   .lists = std::ssize(tokens.front()),
                   .capacity = capacity_,
                   .tokens = tokens_.data(),
                   .counts = counts_.data(),
                   .slots = slots.empty() ? nullptr : slots_.data()} {}
  [[nodiscard]] const Selection& selection() const { return selection_; }

 private:
  static std::int64_t capacity_of(const Rows& tokens) {
    std::int64_t most = 0;
    for (const auto& row : tokens) {
      for (const auto& list : row) most = std::max<std::int64_t>(most, std::ssize(list));
    }
    return most;
  }
  [[nodiscard]] std::vector<std::int32_t> flat(const Rows& rows) const {
    std::vector<std::int32_t> all;
    for (const auto& row : rows) {
      for (const auto& list : row) {
        const std::size_t end = all.size() + static_cast<std::size_t>(capacity_);
        all.insert(all.end(), list.begin(), list.end());
        all.resize(end, -1);  // nobody may read it
      }
    }
    return all;
  }
  static std::vector<std::int32_t> counts_of(const Rows& rows) {
    std::vector<std::int32_t> counts;
    for (const auto& row : rows) {
      for (const auto& list : row) counts.push_back(static_cast<std::int32_t>(list.size()));
    }
    return counts;
  }

  std::int64_t capacity_;
  DeviceArray<std::int32_t> tokens_, slots_, counts_;
  Selection selection_;
};

// What attention leaves of a Selection's lists; NaN before.
class Scores {
 public:
  Scores(Device& device, const Selection& lists)
      : lists_(lists),
        values_(device, lists.rows * kHeads * lists.capacity),
        softmax_(device, lists.rows * kHeads * 2) {
    lists_.scores = {values_.data(), softmax_.data()};
  }
  // The lists, to be attended for their scores.
  [[nodiscard]] const Selection& lists() const { return lists_; }
  // [row][query head][capacity]; NaN where nothing was written.
  [[nodiscard]] std::vector<double> weights() const {
    const std::vector<float> softmax = softmax_.host();
    std::vector<double> weights;
    for (const float value : values_.host()) {
      const std::size_t head = weights.size() / static_cast<std::size_t>(lists_.capacity);
      weights.push_back(std::exp2(static_cast<double>(value) - softmax[2 * head]) *
                        softmax[2 * head + 1]);
    }
    return weights;
  }

 private:
  Selection lists_;
  Numbers values_, softmax_;
};

// Outputs of two rows that attend every third token, or fewer, and the weights of these.
std::pair<std::vector<float>, std::vector<double>> attend_lists(const Seam& on, DType dtype,
                                                                std::int64_t list_count,
                                                                bool by_slots) {
  const FilledCache filled(on.ops, on.device, dtype, {40, 140}, 6);
  Lists::Rows tokens(2), slots(by_slots ? 2 : 0);
  for (std::size_t b = 0; b < 2; ++b) {
    for (std::int32_t list = 0; list < list_count; ++list) {
      tokens[b].emplace_back();
      if (by_slots) slots[b].emplace_back();
      for (std::int32_t t = list; t < filled.length(b); t += 3 + list) {
        tokens[b].back().push_back(t);
        if (by_slots) slots[b].back().push_back(filled.page(b, t / 32).value * 32 + t % 32);
      }
    }
  }
  const Lists lists(on.device, tokens, slots);
  const Scores scores(on.device, lists.selection());
  std::vector<AttentionSegment> segments = {filled.segment(0, 0, 1), filled.segment(1, 1, 1)};
  for (std::int64_t b = 0; b < 2; ++b) {
    AttentionSegment& segment = segments[static_cast<std::size_t>(b)];
    segment.chosen = &scores.lists();
    segment.chosen_row = b;
  }
  std::mt19937 random(7);
  const Numbers q(on.device, random_floats(random, 2 * kColumns));
  const Numbers out(on.device, 2 * kColumns);
  on.ops.attention(matrix(q, 2, kColumns), kHeads, filled.view(), segments, 0.25F,
                   matrix(out, 2, kColumns), on.workspace, on.stream);
  return {out.host(), scores.weights()};
}

TEST(EmulatedChosenLists, OutputsAndWeightsAreTheCpus) {
  Cpu cpu;
  for (const DType dtype : {DType::kF16, DType::kInt8}) {
    for (const std::int64_t list_count : {std::int64_t{1}, FilledCache::kKvHeads}) {
      for (const bool by_slots : {true, false}) {
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " lists " + std::to_string(list_count) +
                     (by_slots ? " slots" : ""));
        GuardedMachine machine;
        const auto [out, weights] = attend_lists(machine.seam(), dtype, list_count, by_slots);
        const auto [expected, cpu_weights] = attend_lists(cpu.seam(), dtype, list_count, by_slots);
        for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 2e-4);
        for (std::size_t i = 0; i < weights.size(); ++i) {
          ASSERT_EQ(std::isnan(weights[i]), std::isnan(cpu_weights[i])) << i;
          if (std::isnan(weights[i])) continue;
          ASSERT_NEAR(weights[i], cpu_weights[i], 2e-4) << i;
        }
      }
    }
  }
}

// A method's lists as they lie there, and the same with slots: equal outputs and weights, and
// nothing is written beyond a list's tokens.
TEST(EmulatedChosenLists, TokensLieWhereSlotsOrPagesSay) {
  constexpr std::int64_t kRows = 3;
  for (const DType dtype : {DType::kF16, DType::kInt8}) {
    for (const std::int64_t list_count : {std::int64_t{1}, FilledCache::kKvHeads}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " lists " + std::to_string(list_count));
      GuardedMachine machine;
      const FilledCache filled(*machine.ops, machine.device, dtype, {33, 96, 140}, 4);
      std::mt19937 random(5);
      const Numbers q(machine.device, random_floats(random, kRows * kColumns));
      const Numbers out(machine.device, kRows * kColumns);
      const DeviceArray<std::int32_t> kept_tokens(machine.device, kRows * list_count * 140);
      const Numbers kept_sums(machine.device, random_floats(random, kRows * list_count * 140));
      std::vector<KeptTokens> kept;
      std::vector<KeptRow> choices;
      for (std::int64_t row = 0; row < kRows; ++row) {
        const std::int64_t first = row * list_count * 140;
        const std::int64_t length = filled.length(static_cast<std::size_t>(row));
        kept.push_back({kept_tokens.data() + first, kept_sums.data() + first, list_count, 140});
        machine.sparse->keep_all({&kept.back(), 1}, length, *machine.stream);
        choices.push_back({.kept = kept.back(),
                           .count = length,
                           .context = length,
                           .local = 5,
                           .total = 35 - 10 * row});
      }
      // Other sums, so that the lists differ.
      const Numbers added(machine.device, random_floats(random, kRows * list_count * 140));
      const Numbers softmax(
          machine.device,
          std::vector<float>(static_cast<std::size_t>(2 * kRows * list_count), 1.0F));
      const Selection all{.rows = kRows,
                          .lists = list_count,
                          .capacity = 140,
                          .scores = {added.data(), softmax.data()}};
      for (std::int64_t row = 0; row < kRows; ++row) {
        const KeptWeights one{kept[static_cast<std::size_t>(row)],
                              choices[static_cast<std::size_t>(row)].count, row};
        machine.sparse->add_kept_weights(all, list_count, {&one, 1}, 0, false, *machine.stream);
      }
      const Selection lists = machine.sparse->keep_heaviest(choices, 1, *machine.stream);
      ASSERT_EQ(lists.capacity, list_capacity(33));
      std::vector<std::int32_t> chosen_tokens(
          static_cast<std::size_t>(kRows * list_count * lists.capacity));
      machine.device.copy(chosen_tokens.data(), lists.tokens,
                          chosen_tokens.size() * sizeof(std::int32_t), *machine.stream);
      machine.stream->synchronize();
      Lists::Rows tokens(kRows), slots(kRows);
      for (std::size_t i = 0; i < kRows; ++i) {
        for (std::int64_t list = 0; list < list_count; ++list) {
          tokens[i].emplace_back();
          slots[i].emplace_back();
          const std::int64_t at =
              (static_cast<std::int64_t>(i) * list_count + list) * lists.capacity;
          for (std::int64_t t = at; t < at + tokens_left(choices[i]); ++t) {
            const std::int32_t token = chosen_tokens[static_cast<std::size_t>(t)];
            const PageId page = filled.page(i, token / FilledCache::kPageTokens);
            tokens[i].back().push_back(token);
            slots[i].back().push_back(static_cast<std::int32_t>(
                page.value * FilledCache::kPageTokens + token % FilledCache::kPageTokens));
          }
        }
      }
      const Lists with_slots(machine.device, tokens, slots);
      const auto attend = [&](const Selection& attended) {
        const Scores scores(machine.device, attended);
        std::vector<AttentionSegment> segments;
        for (std::int64_t row = 0; row < kRows; ++row) {
          AttentionSegment& segment =
              segments.emplace_back(filled.segment(static_cast<std::size_t>(row), row, 1));
          segment.chosen = &scores.lists();
          segment.chosen_row = row;
        }
        machine.ops->attention(matrix(q, kRows, kColumns), kHeads, filled.view(), segments, 0.25F,
                               matrix(out, kRows, kColumns), {}, *machine.stream);
        return scores.weights();
      };
      const std::vector<double> given = attend(with_slots.selection());
      const std::vector<float> outputs = out.host();
      const std::vector<double> chosen = attend(lists);
      EXPECT_EQ(out.host(), outputs);
      for (std::int64_t i = 0; i < kRows; ++i) {
        for (std::int64_t head = 0; head < kHeads; ++head) {
          const std::int64_t list = head / (kHeads / list_count);
          const std::int64_t count =
              std::ssize(tokens[static_cast<std::size_t>(i)][static_cast<std::size_t>(list)]);
          const auto row_of = [&](const std::vector<double>& weights, const Selection& of) {
            const auto first = weights.begin() + (i * kHeads + head) * of.capacity;
            return std::vector<double>(first, first + of.capacity);
          };
          std::vector<double> row = row_of(given, with_slots.selection());
          std::vector<double> chosen_row = row_of(chosen, lists);
          for (std::vector<double>* of : {&row, &chosen_row}) {
            EXPECT_TRUE(std::all_of(of->begin() + count, of->end(),
                                    [](double weight) { return std::isnan(weight); }));
            of->resize(static_cast<std::size_t>(count));
          }
          EXPECT_EQ(row, chosen_row);
          EXPECT_NEAR(std::accumulate(row.begin(), row.end(), 0.0), 1.0, 1e-4);
        }
      }
    }
  }
}

}  // namespace
}  // namespace triphase::cuda
