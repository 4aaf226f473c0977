#include "kernels/cuda/score_update.h"

#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {
namespace {

// Random logits of rows whose lists hold `counts[list]` tokens; log sums over exactly those.
struct Step {
  Step(std::mt19937& random, std::int64_t row_count, std::int64_t group_size, std::int64_t room,
       const std::vector<std::int32_t>& counts, std::int64_t rows_per_list)
      : rows(row_count),
        group(group_size),
        capacity(room),
        logits(poisoned(rows * group * room)),
        log_sums(poisoned(rows * group)) {
    std::normal_distribution<float> normal;
    for (std::int64_t head = 0; head < rows * group; ++head) {
      const std::int32_t count = counts[static_cast<std::size_t>(head / group / rows_per_list)];
      double sum = 0.0;
      for (std::int64_t i = 0; i < count; ++i) {
        const float logit = normal(random);
        logits[static_cast<std::size_t>(head * capacity + i)] = logit;
        sum += std::exp(static_cast<double>(logit));
      }
      log_sums[static_cast<std::size_t>(head)] = static_cast<float>(std::log(sum));
    }
  }
  [[nodiscard]] double weight(std::int64_t head, std::int64_t i) const {
    return std::exp(static_cast<double>(logits[static_cast<std::size_t>(head * capacity + i)]) -
                    static_cast<double>(log_sums[static_cast<std::size_t>(head)]));
  }
  [[nodiscard]] StepLogits view() const {
    return {logits.data(), log_sums.data(), capacity, rows, group};
  }

  std::int64_t rows, group, capacity;
  std::vector<float> logits, log_sums;
};

TEST(EmulatedUpdate, H2oAddsTheGroupsMeanWeight) {
  std::mt19937 random(1);
  for (const std::int64_t group : {1, 3, 8}) {
    const std::vector<std::int32_t> counts = {0, 1, 300, 256};
    const Step step(random, 4, group, 300, counts, 1);
    std::vector<std::int32_t> indices(4 * 300, -1);
    for (std::size_t row = 0; row < 4; ++row) {
      for (std::int32_t i = 0; i < counts[row]; ++i)
        indices[row * 300 + static_cast<std::size_t>(i)] = 2 * i + 1;
    }
    std::vector<float> accumulators(4 * 700, 0.25F);
    update_h2o(step.view(), indices.data(), counts.data(), accumulators.data(), 700, nullptr);
    for (std::int64_t row = 0; row < 4; ++row) {
      for (std::int64_t t = 0; t < 700; ++t) {
        double expected = 0.25;
        if (t % 2 == 1 && t / 2 < counts[static_cast<std::size_t>(row)]) {
          for (std::int64_t g = 0; g < group; ++g)
            expected += step.weight(row * group + g, t / 2) / static_cast<double>(group);
        }
        ASSERT_NEAR(accumulators[static_cast<std::size_t>(row * 700 + t)], expected, 1e-6)
            << row << " " << t;
      }
    }
  }
}

// A ring of 3 rows over 12 steps against sums over the last 3 rows; tokens that have left the
// window have score 0 exactly.
TEST(EmulatedUpdate, SwaKeepsExactSumsOverItsWindow) {
  std::mt19937 random(2);
  const emulated::Order order(3);
  constexpr std::int64_t kSequences = 2;
  constexpr std::int64_t kHeads = 3;
  constexpr std::int64_t kGroup = 2;
  constexpr std::int64_t kCapacity = 8;
  constexpr std::int64_t kTokens = 40;
  constexpr std::int64_t kRing = 3;
  std::vector<float> weights = poisoned(kSequences * kRing * kCapacity);
  std::vector<std::int32_t> tokens(kSequences * kRing * kCapacity, -1);
  std::vector<std::int32_t> row_counts(kSequences * kRing, 0);
  std::vector<std::int64_t> sums(kSequences * kTokens, 0);
  std::vector<float> scores(kSequences * kTokens, 0.0F);
  const SwaWindow window{weights.data(), tokens.data(), row_counts.data(), kRing, sums.data(),
                         scores.data(),  kTokens};
  std::vector<std::vector<std::vector<double>>> history(kSequences);  // [sequence][step][token]
  for (int turn = 0; turn < 12; ++turn) {
    const std::vector<std::int32_t> counts = {static_cast<std::int32_t>(turn % 9), 5};
    const Step step(random, kSequences * kHeads, kGroup, kCapacity, counts, kHeads);
    std::vector<std::int32_t> indices(kSequences * kCapacity, -1);
    for (std::size_t b = 0; b < kSequences; ++b) {
      std::vector<double> row(kTokens, 0.0);
      for (std::int32_t i = 0; i < counts[b]; ++i) {
        const std::int32_t token = 3 * i + turn % 3;
        indices[b * kCapacity + static_cast<std::size_t>(i)] = token;
        for (std::int64_t head = 0; head < kHeads * kGroup; ++head) {
          row[static_cast<std::size_t>(token)] +=
              step.weight(static_cast<std::int64_t>(b) * kHeads * kGroup + head, i);
        }
      }
      history[b].push_back(row);
    }
    const auto slot = static_cast<std::int32_t>(turn % kRing);
    const std::vector<std::int32_t> slots = {slot, slot};
    const std::vector<std::int32_t> begins =
        turn < kRing ? std::vector<std::int32_t>{0, 0, 0} : std::vector<std::int32_t>{0, 1, 2};
    update_swa(step.view(), kHeads, indices.data(), counts.data(), slots.data(), begins.data(),
               slots.data(), window, nullptr);
    for (std::size_t b = 0; b < kSequences; ++b) {
      for (std::size_t t = 0; t < kTokens; ++t) {
        double expected = 0.0;
        for (std::size_t s = history[b].size() - std::min<std::size_t>(kRing, history[b].size());
             s < history[b].size(); ++s) {
          expected += history[b][s][t];
        }
        const float score = scores[b * kTokens + t];
        ASSERT_NEAR(score, expected, 1e-5) << "turn " << turn << " token " << t;
        if (expected == 0.0) {
          ASSERT_EQ(score, 0.0F) << "turn " << turn << " token " << t;
        }
      }
    }
  }
}

// Rows summed in buckets of 2, of which the last 3 or 4 count: against plain sums over the rows
// that the live buckets hold. Sequences of ragged lengths; tokens beyond a length are never
// touched.
TEST(EmulatedUpdate, SwaBucketsKeepExactSumsInBoundedMemory) {
  for (const std::uint64_t seed : {0, 1, 6}) {
    const emulated::Order order(seed);
    std::mt19937 random(3);
    constexpr std::int64_t kHeads = 2;
    constexpr std::int64_t kGroup = 3;
    constexpr std::int64_t kCapacity = 300;
    constexpr std::int64_t kStride = 700;
    constexpr std::int64_t kBuckets = 5;
    const std::vector<std::int32_t> lengths = {0, 1, 127, 128, 129, 650};
    const auto sequences = static_cast<std::int64_t>(lengths.size());
    std::vector<std::int64_t> partials(static_cast<std::size_t>(sequences * kBuckets * kStride), 0);
    std::vector<std::int64_t> sums(static_cast<std::size_t>(sequences * kStride), 0);
    std::vector<float> scores = poisoned(sequences * kStride);
    const SwaBuckets window{partials.data(), kBuckets, sums.data(), scores.data(), kStride};
    // [bucket][sequence][token], of the CPU's units.
    std::vector<std::vector<std::int64_t>> live(
        kBuckets, std::vector<std::int64_t>(static_cast<std::size_t>(sequences * kStride), 0));
    for (int turn = 0; turn < 20; ++turn) {
      std::vector<std::int32_t> counts;
      std::vector<std::int32_t> indices(static_cast<std::size_t>(sequences * kCapacity), -1);
      for (std::size_t b = 0; b < lengths.size(); ++b) {
        const std::int32_t step = 1 + turn % 3;
        std::int32_t count = 0;
        for (std::int32_t t = turn % 2; t < lengths[b] && count < kCapacity; t += step) {
          indices[b * kCapacity + static_cast<std::size_t>(count++)] = t;
        }
        counts.push_back(count);
      }
      const Step step(random, sequences * kHeads, kGroup, kCapacity, counts, kHeads);
      const auto slot = static_cast<std::int32_t>(turn / 2 % kBuckets);
      const std::vector<std::int32_t> slots(lengths.size(), slot);
      std::vector<std::int32_t> begins = {0};
      std::vector<std::int32_t> expired;
      for (std::int64_t b = 0; b < sequences; ++b) {
        if (turn % 2 == 0) expired.push_back(slot);  // written again from here on
        if (turn == 13) expired.push_back((slot + 2) % kBuckets);
        begins.push_back(static_cast<std::int32_t>(expired.size()));
      }
      update_swa_buckets(step.view(), kHeads, indices.data(), counts.data(), slots.data(),
                         begins.data(), expired.data(), lengths.data(), 650, window, nullptr);
      if (turn % 2 == 0) std::ranges::fill(live[static_cast<std::size_t>(slot)], 0);
      if (turn == 13) std::ranges::fill(live[static_cast<std::size_t>((slot + 2) % kBuckets)], 0);
      for (std::size_t b = 0; b < lengths.size(); ++b) {
        for (std::int32_t i = 0; i < counts[b]; ++i) {
          double weight = 0.0;
          for (std::int64_t head = 0; head < kHeads * kGroup; ++head) {
            weight += step.weight(static_cast<std::int64_t>(b) * kHeads * kGroup + head, i);
          }
          const auto token =
              static_cast<std::size_t>(indices[b * kCapacity + static_cast<std::size_t>(i)]);
          live[static_cast<std::size_t>(slot)][b * kStride + token] +=
              std::llround(std::ldexp(weight, 32));
        }
        for (std::size_t t = 0; t < kStride; ++t) {
          const std::size_t at = b * kStride + t;
          std::int64_t expected = 0;
          for (const auto& bucket : live) expected += bucket[at];
          // The kernel's weights are F32; sums of what is left must still be exact.
          ASSERT_NEAR(std::ldexp(static_cast<double>(sums[at]), -32),
                      std::ldexp(static_cast<double>(expected), -32), 2e-5);
          std::int64_t held = 0;
          for (std::int64_t bucket = 0; bucket < kBuckets; ++bucket) {
            held += partials[(b * kBuckets + static_cast<std::size_t>(bucket)) * kStride + t];
          }
          ASSERT_EQ(sums[at], held) << "turn " << turn << " token " << t;
          if (static_cast<std::int32_t>(t) >= lengths[b]) {
            ASSERT_TRUE(std::isnan(scores[at])) << "written beyond the length";
          } else if (sums[at] != 0) {
            ASSERT_EQ(scores[at],
                      static_cast<float>(std::ldexp(static_cast<double>(sums[at]), -32)));
          }
        }
      }
    }
  }
}

TEST(EmulatedUpdate, SwaErrorsNameKernelAndShape) {
  StepLogits step;
  step.rows = 6;
  step.capacity = 40;
  try {
    update_swa_buckets(step, 4, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, 10, {},
                       nullptr);
    FAIL() << "null logits were taken";
  } catch (const Error& error) {
    EXPECT_THAT(std::string(error.what()), testing::HasSubstr("update_swa_buckets"));
    EXPECT_THAT(std::string(error.what()), testing::HasSubstr("rows 6, group 1, capacity 40"));
  }
}

}  // namespace
}  // namespace triphase::cuda
