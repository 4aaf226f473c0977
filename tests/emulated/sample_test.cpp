// Ops::sample of the CUDA backend on the emulator, beside the CPU's and a float64 reference.

#include <algorithm>

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/sample_math.h"
#include "kernels/sizing/sample_workspace.h"
#include "memory/memory_pool.h"
#include "tests/emulated/emulated_test.h"
#include "tests/emulated/guarded_machine.h"

namespace triphase::cuda {
namespace {

// Both devices' operations on the same rows of logits, one per SampleRow; columns beyond a row's
// vocab are NaN.
class Samplers {
 public:
  Samplers() : pool_(1), cpu_(make_cpu_ops(pool_)), host_stream_(host_.make_stream()) {}

  [[nodiscard]] std::vector<SampleResult> on_gpu(const std::vector<std::vector<float>>& logits,
                                                 const std::vector<SampleRow>& rows) {
    const Padded padded(logits);
    const DeviceArray<float> on_device(gpu_.device, padded.values);
    const HostBuffer results(gpu_.copies, rows.size() * sizeof(SampleResult));
    auto* first = results.as<SampleResult>();
    gpu_.ops->sample(padded.view(on_device.data()), rows, first, {}, *gpu_.stream);
    gpu_.stream->synchronize();
    return {first, first + rows.size()};
  }
  [[nodiscard]] std::vector<SampleResult> on_cpu(const std::vector<std::vector<float>>& logits,
                                                 const std::vector<SampleRow>& rows) {
    const Padded padded(logits);
    const std::size_t bytes = sample_workspace_bytes({.threads = 1}, padded.cols);
    std::vector<std::byte> memory(bytes + 64);
    const auto start = reinterpret_cast<std::uintptr_t>(memory.data());
    std::byte* aligned = memory.data() + (64 - start % 64) % 64;
    std::vector<SampleResult> results(rows.size());
    cpu_->sample(padded.view(padded.values.data()), rows, results.data(), {aligned, bytes},
                 *host_stream_);
    return results;
  }

 private:
  struct Padded {
    explicit Padded(const std::vector<std::vector<float>>& logits)
        : rows(static_cast<std::int64_t>(logits.size())) {
      for (const auto& row : logits) {
        cols = std::max(cols, static_cast<std::int64_t>(row.size()));
      }
      values = poisoned(rows * (cols + 3));
      for (std::size_t r = 0; r < logits.size(); ++r) {
        std::ranges::copy(logits[r], values.begin() + static_cast<std::ptrdiff_t>(r) * (cols + 3));
      }
    }
    [[nodiscard]] ConstMatrix view(const float* data) const {
      return {data, DType::kF32, rows, cols, cols + 3};
    }
    std::int64_t rows;
    std::int64_t cols = 0;
    std::vector<float> values;
  };

  GuardedMachine gpu_;
  ThreadPool pool_;
  std::unique_ptr<Ops> cpu_;
  HostDevice host_;
  std::unique_ptr<Stream> host_stream_;
};

SampleRow row_of(const std::vector<float>& logits, SampleRow row) {
  row.vocab = static_cast<std::int64_t>(logits.size());
  return row;
}

// What a row draws from, by the definition: tokens in the order of drawing with their weights.
std::vector<std::pair<double, TokenId>> candidates_of(std::vector<float> logits,
                                                      const SampleRow& row) {
  if (row.repetition_penalty != 1.0) {
    std::vector<TokenId> seen(row.history.begin(), row.history.end());
    std::ranges::sort(seen);
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    for (const TokenId id : seen) {
      if (id < 0 || id >= row.vocab) continue;
      float& logit = logits[static_cast<std::size_t>(id)];
      logit = static_cast<float>(logit > 0.0F ? logit / row.repetition_penalty
                                              : logit * row.repetition_penalty);
    }
  }
  const double best = *std::ranges::max_element(logits);
  std::vector<std::pair<double, TokenId>> kept;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    kept.emplace_back(std::exp((logits[id] - best) / row.temperature), static_cast<TokenId>(id));
  }
  const bool few = row.top_k > 0 && row.top_k < row.vocab;
  if (!few && row.top_p >= 1.0 && row.min_p <= 0.0) return kept;
  std::ranges::sort(kept, [](const auto& a, const auto& b) {
    return a.first > b.first || (a.first == b.first && a.second < b.second);
  });
  if (few) kept.resize(static_cast<std::size_t>(row.top_k));
  long double total = 0.0L;
  for (const auto& [weight, id] : kept) total += weight;
  long double sum = 0.0L;
  std::size_t count = 0;
  while (count < kept.size() && (count == 0 || (row.top_p >= 1.0 || sum < row.top_p * total)) &&
         kept[count].first >= row.min_p) {
    sum += kept[count++].first;
  }
  kept.resize(count);
  return kept;
}

// The token where the uniform number falls, and how near it lies to another one's share.
struct Expected {
  TokenId token = -1;
  long double margin = 0.0L;
};
Expected expected_draw(const std::vector<float>& logits, const SampleRow& row) {
  const auto kept = candidates_of(logits, row);
  long double total = 0.0L;
  for (const auto& [weight, id] : kept) total += weight;
  const long double at = sampling::uniform_draw(row.key, row.position) * total;
  long double before = 0.0L;
  for (const auto& [weight, id] : kept) {
    if (at < before + weight) {
      return {id, std::min(at - before, before + weight - at) / total};
    }
    before += weight;
  }
  return {};
}

struct Filter {
  std::int64_t top_k;
  double top_p;
  double min_p;
};

TEST(EmulatedSample, EveryFilterDrawsAsTheCpuAndFloat64) {
  Samplers samplers;
  std::mt19937 random(1);
  const std::vector<Filter> filters = {{0, 1.0, 0.0},   {5, 1.0, 0.0},    {1, 1.0, 0.0},
                                       {0, 0.7, 0.0},   {0, 1e-9, 0.0},   {0, 0.9999, 0.0},
                                       {0, 1.0, 0.05},  {0, 1.0, 1.0},    {40, 0.9, 0.0},
                                       {40, 0.9, 0.02}, {300, 1.0, 1e-3}, {1 << 20, 0.5, 0.0}};
  for (const std::int64_t vocab : {1, 2, 31, 33, 511, 513, 2300}) {
    for (const bool ties : {false, true}) {
      std::vector<std::vector<float>> logits;
      std::vector<SampleRow> rows;
      std::vector<std::vector<TokenId>> histories;
      for (const Filter& filter : filters) {
        for (const double temperature : {1e-5, 0.05, 0.8, 100.0}) {
          logits.push_back(random_floats(random, vocab, 2.0F));
          if (ties) {
            for (float& logit : logits.back()) logit = std::round(logit);
          }
          rows.push_back({.temperature = temperature,
                          .top_k = filter.top_k,
                          .top_p = filter.top_p,
                          .min_p = filter.min_p,
                          .repetition_penalty = rows.size() % 3 == 0 ? 1.4 : 1.0,
                          .key = random(),
                          .position = random()});
          // Ids twice, and ids that are no token's.
          histories.push_back({0, -1, static_cast<TokenId>(vocab)});
          for (int i = 0; i < 9; ++i) {
            histories.back().push_back(static_cast<TokenId>(random() % vocab));
          }
        }
      }
      for (std::size_t r = 0; r < rows.size(); ++r) {
        rows[r] = row_of(logits[r], rows[r]);
        rows[r].history = histories[r];
      }
      const auto ours = samplers.on_gpu(logits, rows);
      const auto theirs = samplers.on_cpu(logits, rows);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        const Expected expected = expected_draw(logits[r], rows[r]);
        ASSERT_TRUE(ours[r].finite);
        ASSERT_GT(expected.margin, 1e-14L) << "another seed, please";
        ASSERT_EQ(ours[r].token, expected.token)
            << "vocab " << vocab << " temperature " << rows[r].temperature << " top_k "
            << rows[r].top_k << " top_p " << rows[r].top_p << " min_p " << rows[r].min_p;
        ASSERT_EQ(ours[r].token, theirs[r].token);
      }
    }
  }
}

TEST(EmulatedSample, GreedyTakesTheLowestIdOfATie) {
  Samplers samplers;
  std::vector<std::vector<float>> logits;
  for (const std::size_t size : {1U, 2U, 31U, 32U, 600U, 5000U}) {
    logits.emplace_back(size, -3.0F);
    logits.emplace_back(size, -3.0F);
    logits.back()[size - 1] = 1.0F;
    logits.back()[size / 2] = 1.0F;
  }
  logits.push_back({-1.0F, -0.0F, 0.0F});
  std::vector<SampleRow> rows;
  for (const auto& row : logits) rows.push_back(row_of(row, {}));
  const auto results = samplers.on_gpu(logits, rows);
  for (std::size_t r = 0; r + 1 < rows.size(); r += 2) {
    EXPECT_EQ(results[r].token, 0);
    EXPECT_EQ(results[r + 1].token, static_cast<TokenId>(logits[r + 1].size() / 2));
  }
  EXPECT_EQ(results.back().token, 1) << "-0 equals 0";
}

TEST(EmulatedSample, TheRepetitionPenaltyActsOncePerTokenAndNotOnLogprobs) {
  Samplers samplers;
  const std::vector<TokenId> often = {0, 0, 0, 0};
  const std::vector<float> one = {2.0F, 1.5F, -1.0F};
  const std::vector<std::vector<float>> logits = {one, one, {-1.0F, -1.5F}};
  const std::vector<SampleRow> rows = {
      row_of(logits[0], {.repetition_penalty = 1.2, .history = often}),
      row_of(logits[1], {.repetition_penalty = 1.5, .history = often, .alternatives = 2}),
      row_of(logits[2], {.repetition_penalty = 2.0, .history = often})};
  const auto results = samplers.on_gpu(logits, rows);
  EXPECT_EQ(results[0].token, 0) << "2 / 1.2 > 1.5";
  EXPECT_EQ(results[1].token, 1);
  EXPECT_EQ(results[1].peak, 2.0F);
  EXPECT_EQ(results[1].logit, 1.5F);
  EXPECT_EQ(results[1].ids[0], 0);
  EXPECT_EQ(results[2].token, 1);
}

TEST(EmulatedSample, NanAndInfinityAreReportedAndHurtNoOtherRow) {
  Samplers samplers;
  std::mt19937 random(3);
  const std::vector<float> good = random_floats(random, 700);
  std::vector<std::vector<float>> logits = {good};
  std::vector<SampleRow> rows = {row_of(good, {.temperature = 1.0, .key = 5, .alternatives = 3})};
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{512}, std::size_t{699}}) {
      logits.push_back(good);
      logits.back()[at] = bad;
      rows.push_back(rows[0]);
      if (at == 512) rows.back().score_token = 1;
    }
  }
  logits.push_back(good);
  rows.push_back(rows[0]);
  const auto results = samplers.on_gpu(logits, rows);
  for (std::size_t r = 1; r + 1 < rows.size(); ++r) {
    EXPECT_FALSE(results[r].finite) << r;
    EXPECT_EQ(results[r].token, 0) << "what the next step embeds before the host knows of it";
  }
  EXPECT_TRUE(results.front().finite);
  EXPECT_TRUE(results.back().finite);
  EXPECT_EQ(results.front().token, samplers.on_cpu({good}, {rows[0]})[0].token);
  EXPECT_EQ(results.back().token, results.front().token);
  EXPECT_EQ(results.back().exp_sum, results.front().exp_sum) << "bits do not depend on neighbours";
}

// A logit that overflows under the penalty has no share, and nothing is read out of range.
TEST(EmulatedSample, ExtremeLogitsStayInRange) {
  Samplers samplers;
  const float most = std::numeric_limits<float>::max();
  const std::vector<TokenId> all = {0, 1, 2};
  const std::vector<std::vector<float>> logits = {
      {-6e4F, 6e4F, 0.0F}, {-most, -most, 1.0F}, {most, most, most}, {-most, -most, -most}};
  std::vector<SampleRow> rows;
  for (const auto& row : logits) {
    rows.push_back(row_of(row, {.temperature = 0.5,
                                .top_p = 0.99,
                                .repetition_penalty = rows.size() == 3 ? 100.0 : 1.5,
                                .history = all,
                                .key = 3,
                                .alternatives = 1}));
  }
  const auto results = samplers.on_gpu(logits, rows);
  EXPECT_EQ(results[0].token, 1);
  EXPECT_NEAR(log_probability(results[0], results[0].logit), 0.0F, 1e-6F);
  EXPECT_EQ(results[1].token, 2);
  EXPECT_EQ(results[2].ids[0], 0);
  EXPECT_GE(results[3].token, 0);
  EXPECT_LT(results[3].token, 3);
}

TEST(EmulatedSample, LogprobsAndScoresAreTheCpus) {
  Samplers samplers;
  std::mt19937 random(4);
  std::vector<std::vector<float>> logits;
  std::vector<SampleRow> rows;
  for (const std::int64_t vocab : {1, 3, 19, 20, 21, 700, 2000}) {
    for (const int alternatives : {0, 1, 5, 20}) {
      logits.push_back(random_floats(random, vocab, 2.0F));
      if (alternatives == 5) {
        for (float& logit : logits.back()) logit = std::round(logit);
      }
      SampleRow row{.temperature = 0.9, .key = random(), .alternatives = alternatives};
      if (alternatives == 1) row.score_token = static_cast<TokenId>(random() % vocab);
      rows.push_back(row_of(logits.back(), row));
    }
  }
  const auto ours = samplers.on_gpu(logits, rows);
  const auto theirs = samplers.on_cpu(logits, rows);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    SCOPED_TRACE("row " + std::to_string(r));
    EXPECT_EQ(ours[r].token, theirs[r].token);
    EXPECT_EQ(ours[r].logit, theirs[r].logit);
    EXPECT_EQ(ours[r].peak, theirs[r].peak);
    EXPECT_NEAR(ours[r].exp_sum, theirs[r].exp_sum, 1e-13 * theirs[r].exp_sum);
    ASSERT_EQ(ours[r].count, theirs[r].count);
    ASSERT_EQ(ours[r].count, rows[r].score_token >= 0
                                 ? 0
                                 : std::min<std::int64_t>(rows[r].alternatives, rows[r].vocab));
    for (std::int32_t i = 0; i < ours[r].count; ++i) {
      EXPECT_EQ(ours[r].ids[i], theirs[r].ids[i]);
      EXPECT_EQ(ours[r].logits[i], theirs[r].logits[i]);
    }
    long double sum = 0.0L;
    for (const float logit : logits[r]) sum += std::exp(static_cast<long double>(logit));
    if (rows[r].score_token >= 0) {
      const long double logit = logits[r][static_cast<std::size_t>(rows[r].score_token)];
      EXPECT_NEAR(score_of(ours[r]), static_cast<double>(logit - std::log(sum)), 1e-12);
      EXPECT_EQ(ours[r].token, std::ranges::max_element(logits[r]) - logits[r].begin());
    }
  }
}

TEST(EmulatedSample, LargeVocabulariesOfEqualAndOfSpreadLogits) {
  Samplers samplers;
  std::mt19937 random(6);
  constexpr std::int64_t kVocab = 262144;
  const std::vector<float> equal(kVocab, 0.25F);
  const std::vector<float> spread = random_floats(random, kVocab, 3.0F);
  const std::vector<std::vector<float>> logits = {equal, equal, spread, spread};
  std::vector<SampleRow> rows;
  for (std::size_t r = 0; r < logits.size(); ++r) {
    rows.push_back(row_of(logits[r], {.temperature = 1.0,
                                      .top_p = r % 2 == 0 ? 1.0 : 0.9,
                                      .key = random(),
                                      .alternatives = r == 3 ? 20 : -1}));
  }
  const auto ours = samplers.on_gpu(logits, rows);
  const auto theirs = samplers.on_cpu(logits, rows);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    EXPECT_EQ(ours[r].token, expected_draw(logits[r], rows[r]).token) << "row " << r;
    EXPECT_EQ(ours[r].token, theirs[r].token) << "row " << r;
  }
  EXPECT_TRUE(std::equal(ours[3].ids, ours[3].ids + 20, theirs[3].ids));
}

TEST(EmulatedSample, WrongRowsAreRefused) {
  Samplers samplers;
  const std::vector<std::vector<float>> logits = {{1.0F, 2.0F}};
  EXPECT_THROW((void)samplers.on_gpu(logits, {{.vocab = 3}}), Error);
  EXPECT_THROW((void)samplers.on_gpu(logits, {{.vocab = 2, .score_token = 2}}), Error);
  EXPECT_THROW((void)samplers.on_gpu(logits, {{.vocab = 2, .alternatives = 21}}), Error);
  EXPECT_THROW((void)samplers.on_gpu(logits, {}), Error);
}

}  // namespace
}  // namespace triphase::cuda
