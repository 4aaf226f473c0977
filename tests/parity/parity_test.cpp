// Our logits beside those of Hugging Face transformers, on every checkpoint of
// tests/fixtures/parity (float64 references; how they were made: its README).
//
// Tolerances, as parts of the row's logit range (largest less smallest expected logit):
//
//   F32 KV, any weights   1e-4. Arithmetic is F32 (unit roundoff 6e-8) whatever the weights' type:
//                         F16 and BF16 weights are converted exactly and the references use the
//                         same 16-bit values, so these formats add nothing to the error.
//   F16 or BF16 KV        1e-4 + 2 * layers * u, u = 2^-11 or 2^-8. Rounding to nearest changes
//   each
//                         stored K and V by at most u of itself. V enters a mean with weights that
//                         sum to 1, so the attention output changes by at most u of the largest
//                         value; K changes scores by at most u of their size, which moves weights
//                         between tokens by as much. Each layer adds these two errors; norms and
//                         residual sums keep relative size.
//
// Greedy continuations must be equal token by token: every step of a fixture leads by more than ten
// times the F32 tolerance.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "models/config/families.h"
#include "tests/parity/fixture.h"
#include "tests/parity/model_runner.h"

namespace triphase::parity {
namespace {

constexpr double kTolerance = 1e-4;
constexpr std::int64_t kWhole = 512;

double kv_tolerance(DType kv_dtype, std::int64_t layers) {
  switch (kv_dtype) {
    case DType::kF16:
      return kTolerance + 2.0 * static_cast<double>(layers) * 0x1p-11;
    case DType::kBF16:
      return kTolerance + 2.0 * static_cast<double>(layers) * 0x1p-8;
    default:
      return kTolerance;
  }
}

// The largest difference as a part of the expected values' range; infinity when any is not finite.
double error(std::span<const double> expected, std::span<const float> actual) {
  const auto [low, high] = std::ranges::minmax(expected);
  double largest = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::abs(expected[i] - static_cast<double>(actual[i]));
    if (!std::isfinite(difference)) return INFINITY;
    largest = std::max(largest, difference);
  }
  return largest / (high - low);
}

class Parity : public testing::TestWithParam<std::string> {
 protected:
  // Largest error over all prompts, each computed in one call.
  static double worst_error(const Fixture& fixture, DType kv_dtype) {
    ModelRunner runner(fixture.directory, kv_dtype);
    double worst = 0.0;
    for (const ExpectedLogits& prompt : fixture.prompts) {
      const auto logits = runner.logits(prompt.tokens, prompt.positions, kWhole);
      EXPECT_EQ(logits.size(), prompt.positions.size());
      for (std::size_t i = 0; i < logits.size(); ++i) {
        EXPECT_EQ(logits[i].size(), prompt.vocab);
        worst = std::max(worst, error(prompt.row(i), logits[i]));
      }
    }
    return worst;
  }
};

TEST_P(Parity, LogitsMatch) {
  const Fixture fixture = read_fixture(GetParam());
  ModelRunner runner(fixture.directory, DType::kF32);
  for (const ExpectedLogits& prompt : fixture.prompts) {
    const auto logits = runner.logits(prompt.tokens, prompt.positions, kWhole);
    ASSERT_EQ(logits.size(), prompt.positions.size());
    for (std::size_t i = 0; i < logits.size(); ++i) {
      ASSERT_EQ(logits[i].size(), prompt.vocab);
      EXPECT_LE(error(prompt.row(i), logits[i]), kTolerance)
          << "prompt of " << prompt.tokens.size() << " tokens, position " << prompt.positions[i];
    }
  }
}

TEST_P(Parity, GreedyTextMatches) {
  const Fixture fixture = read_fixture(GetParam());
  ModelRunner runner(fixture.directory, DType::kF32);
  for (const ExpectedGreedy& greedy : fixture.greedy) {
    ASSERT_EQ(greedy.tokens.size(), 64U);
    ASSERT_GT(std::ranges::min(greedy.leads), 10 * kTolerance) << "the fixture promises more";
    EXPECT_EQ(runner.greedy(greedy.prompt, greedy.tokens.size()), greedy.tokens)
        << "prompt of " << greedy.prompt.size() << " tokens";
  }
}

TEST_P(Parity, SixteenBitKvStaysWithinItsTolerance) {
  const Fixture fixture = read_fixture(GetParam());
  const std::int64_t layers = ModelRunner(fixture.directory, DType::kF32).config().layers;
  const double f32 = worst_error(fixture, DType::kF32);
  const double f16 = worst_error(fixture, DType::kF16);
  const double bf16 = worst_error(fixture, DType::kBF16);
  EXPECT_LE(f16, kv_tolerance(DType::kF16, layers));
  EXPECT_LE(bf16, kv_tolerance(DType::kBF16, layers));
  RecordProperty("error_f32", testing::PrintToString(f32));
  RecordProperty("error_f16", testing::PrintToString(f16));
  RecordProperty("error_bf16", testing::PrintToString(bf16));
  // The cache really holds fewer bits: each format costs visibly more than the one before it.
  EXPECT_GT(f16, 4 * f32);
  EXPECT_GT(bf16, 2 * f16);
}

// Neither the chunking of a prompt, nor its neighbours, nor the number of threads change a bit.
TEST_P(Parity, ChunksAndNeighboursChangeNothing) {
  const Fixture fixture = read_fixture(GetParam());
  for (const DType kv_dtype : {DType::kF32, DType::kF16}) {
    ModelRunner runner(fixture.directory, kv_dtype);
    std::vector<std::vector<std::vector<float>>> alone;
    for (const ExpectedLogits& prompt : fixture.prompts) {
      alone.push_back(runner.logits(prompt.tokens, prompt.positions, kWhole));
      for (const std::int64_t chunk : {1, 5, 64}) {
        EXPECT_EQ(runner.logits(prompt.tokens, prompt.positions, chunk), alone.back())
            << prompt.tokens.size() << " tokens in chunks of " << chunk;
      }
    }
    ModelRunner threaded(fixture.directory, kv_dtype, 2);
    std::vector<Piece> pieces;
    for (const ExpectedLogits& prompt : fixture.prompts) {
      pieces.push_back({threaded.start(prompt.tokens.size()), prompt.tokens, prompt.positions});
    }
    const auto together = threaded.forward(pieces);
    std::vector<std::vector<float>> expected;
    for (const auto& rows : alone) expected.insert(expected.end(), rows.begin(), rows.end());
    EXPECT_EQ(together, expected) << "all prompts in one batch";
  }
}

// What the last layer leaves out for rows whose logits nobody wants changes no bit of the others.
TEST_P(Parity, UnwantedRowsChangeNothing) {
  const Fixture fixture = read_fixture(GetParam());
  ModelRunner runner(fixture.directory, DType::kF16);
  const std::vector<TokenId> tokens =
      std::ranges::max(fixture.prompts, {}, [](const ExpectedLogits& prompt) {
        return prompt.tokens.size();
      }).tokens;
  ASSERT_GE(tokens.size(), 6U);
  const auto size = static_cast<std::int32_t>(tokens.size());
  std::vector<std::int32_t> every(tokens.size());
  std::iota(every.begin(), every.end(), 0);
  const auto all = runner.logits(tokens, every, kWhole);
  ASSERT_EQ(std::ssize(all), size);
  const std::vector<std::int32_t> some = {1, size / 2, size - 1};
  const auto wanted = runner.logits(tokens, some, kWhole);
  ASSERT_EQ(wanted.size(), some.size());
  for (std::size_t i = 0; i < some.size(); ++i) {
    EXPECT_EQ(wanted[i], all[static_cast<std::size_t>(some[i])]) << "row " << some[i];
  }
  // All calls but the last have no wanted row: they leave K and V alone.
  const auto last = runner.logits(tokens, {{size - 1}}, 7);
  ASSERT_EQ(last.size(), 1U);
  EXPECT_EQ(last.front(), all.back());
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::ranges::replace(name, '-', '_');
  std::ranges::replace(name, '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Parity, testing::ValuesIn(fixture_names()), test_name);

// What the fixtures must cover together; fails when they are missing.
TEST(ParityFixtures, CoverEveryFamilyAndEveryOption) {
  std::vector<std::string> names = fixture_names();
  for (const char* family :
       {"opt-", "llama1-", "llama2-", "llama3-", "mistral-", "neox-", "gemma-", "qwen2-"}) {
    EXPECT_GE(
        std::ranges::count_if(names, [&](const auto& name) { return name.starts_with(family); }),
        family == std::string("llama1-") ? 2 : 3)
        << family;
  }
  std::vector<std::string> types;
  std::vector<std::int64_t> groups;
  std::vector<RopeScaling> scalings;
  int windows = 0;
  int odd_heads = 0;
  int sequential = 0;
  int partial = 0;
  int post_norm = 0;
  int projected = 0;
  int tied = 0;
  for (const std::string& name : names) {
    const ModelConfig config = ModelRunner(read_fixture(name).directory, DType::kF32).config();
    types.push_back(config.model_type);
    groups.push_back(config.heads / config.kv_heads);
    if (config.rope) scalings.push_back(config.rope->scaling);
    windows += config.window(config.layers - 1) > 0 ? 1 : 0;
    odd_heads += config.heads % 2;
    sequential += config.model_type == "gpt_neox" && !config.parallel_residual ? 1 : 0;
    partial += config.rope && config.rope->rotary_dim < config.head_dim ? 1 : 0;
    post_norm += config.norms.before ? 0 : 1;
    projected += config.embed_dim != config.hidden_size ? 1 : 0;
    tied += config.embedding.tied ? 1 : 0;
  }
  for (const Family& family : families()) {
    EXPECT_NE(std::ranges::count(types, family.model_type), 0) << family.model_type;
  }
  for (const std::int64_t group : {1, 2, 4, 8}) {
    EXPECT_TRUE(std::ranges::find(groups, group) != groups.end()) << "heads per KV head: " << group;
  }
  for (const RopeScaling scaling : {RopeScaling::kNone, RopeScaling::kLinear, RopeScaling::kDynamic,
                                    RopeScaling::kYarn, RopeScaling::kLlama3}) {
    EXPECT_TRUE(std::ranges::find(scalings, scaling) != scalings.end())
        << "RoPE scaling " << static_cast<int>(scaling);
  }
  EXPECT_GE(windows, 3);
  EXPECT_GE(odd_heads, 6);
  EXPECT_GE(sequential, 1);
  EXPECT_GE(partial, 2);
  EXPECT_GE(post_norm, 2);
  EXPECT_GE(projected, 2);
  EXPECT_GE(tied, 5);
  EXPECT_LT(tied, static_cast<int>(names.size()) - 5);
}

}  // namespace
}  // namespace triphase::parity
