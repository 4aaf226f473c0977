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

}  // namespace
}  // namespace triphase::cuda
