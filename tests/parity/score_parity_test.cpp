// Log-probabilities of given tokens beside those that follow from transformers' float64 logits, on
// every checkpoint of tests/fixtures/parity. A log-probability is a difference of a logit and a
// log-sum-exp, so its error is at most twice a logit's: 1e-4 of the row's range (parity_test.cpp).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/engine/engine.h"
#include "runtime/engine/loaded_model.h"
#include "tests/parity/fixture.h"

namespace triphase::parity {
namespace {

class ScoreParity : public testing::TestWithParam<std::string> {};

TEST_P(ScoreParity, MatchesTheFloat64LogSoftmax) {
  const Fixture fixture = read_fixture(GetParam());
  RunOptions options;
  options.job = JobKind::kScore;
  options.files.model = fixture.directory;
  options.machine.kv_dtype = DType::kF32;
  options.machine.device_memory = std::uint64_t{256} << 20;
  options.machine.batch_size = 3;
  options.machine.prefill_chunk = 24;
  Log log({.verbosity = -1, .format = LogFormat::kText, .file = ""});
  Progress progress(log, ProgressMode::kOff);
  const auto backend = Backend::open("cpu", 1);
  const ModelBundle bundle = open_model(options);
  const RunPlan plan = plan_run(options, bundle, backend->machine());
  LoadedModel model(options, plan, {bundle, *backend, progress, log});
  Engine engine({plan.memory.batch_size, plan.prefill_chunk}, *plan.policy, model.decoder, model.kv,
                nullptr, *backend);
  std::size_t compared = 0;
  for (const ExpectedLogits& prompt : fixture.prompts) {
    const auto size = static_cast<std::int64_t>(prompt.tokens.size());
    if (size < 2) continue;
    ScoreTask task{.tokens = prompt.tokens, .prefill_tokens = size / 2};
    // The reference computed the last token too; where RoPE's base depends on the length
    // (dynamic scaling), one more token makes both see the same prompt.
    task.tokens.push_back(0);
    const Completion scored = engine.run_all(std::vector{task}).front();
    ASSERT_FALSE(scored.error);
    for (std::size_t row = 0; row < prompt.positions.size(); ++row) {
      const auto position = static_cast<std::size_t>(prompt.positions[row]);
      const std::span<const double> logits = prompt.row(row);
      const auto [low, high] = std::ranges::minmax(logits);
      double sum = 0.0;
      for (const double logit : logits) sum += std::exp(logit - high);
      const auto token = static_cast<std::size_t>(task.tokens[position + 1]);
      const double expected = logits[token] - high - std::log(sum);
      EXPECT_NEAR(scored.scores[position].logprob, expected, 2e-4 * (high - low));
      ++compared;
    }
  }
  EXPECT_GE(compared, 8U);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, ScoreParity, testing::ValuesIn(fixture_names()),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace triphase::parity
