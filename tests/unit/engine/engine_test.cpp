#include "runtime/engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "scheduler/placement/device_only_policy.h"
#include "tests/support/engine_runs.h"
#include "tests/support/tiny_model.h"

namespace triphase {
namespace {

// Invariant 2: a line's output is bit-identical in any batch and order, whatever the chunking, the
// block length and the memory.
TEST(EngineInvariant, NeighboursNeverChangeTheAnswer) {
  const auto requests = mixed_requests(1, 40);
  TinyModel alone({.batch_size = 1, .prefill_chunk = 200, .block_tokens = 200, .kv_blocks = 3});
  const auto expected = run_all(alone.engine(), requests);
  ASSERT_EQ(expected.size(), requests.size());
  std::mt19937 random(2);
  for (int round = 0; round < 12; ++round) {
    auto shuffled = requests;
    std::ranges::shuffle(shuffled, random);
    TinyModelOptions options;
    options.batch_size = 1 + static_cast<std::int64_t>(random() % 9);
    options.prefill_chunk = 1 + static_cast<std::int64_t>(random() % 70);
    options.block_tokens = 1 + static_cast<std::int64_t>(random() % 33);
    options.kv_blocks = 170 / options.block_tokens + 1 + static_cast<std::int64_t>(random() % 40);
    TinyModel model(options);
    SCOPED_TRACE(testing::Message()
                 << "batch " << options.batch_size << " chunk " << options.prefill_chunk
                 << " block " << options.block_tokens << " blocks " << options.kv_blocks);
    expect_equal(expected, run_all(model.engine(), shuffled));
    model.kv().book().check();
    EXPECT_EQ(model.kv().book().tiers().device.reserved(), 0);
  }
}

TEST(EngineInvariant, HoldsForBf16AndF32AndSeveralThreads) {
  const auto requests = mixed_requests(3, 16);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    TinyModel alone({.batch_size = 1, .prefill_chunk = 200, .dtype = dtype});
    TinyModel batched({.batch_size = 6, .prefill_chunk = 13, .threads = 3, .dtype = dtype});
    expect_equal(run_all(alone.engine(), requests), run_all(batched.engine(), requests));
  }
}

TEST(EngineInvariant, ASlidingWindowChangesNothingAboutThat) {
  ModelConfig config = tiny_config();
  config.sliding_window = {12, 0};
  const auto requests = mixed_requests(4, 16);
  TinyModel alone({.batch_size = 1, .prefill_chunk = 200}, config);
  TinyModel batched({.batch_size = 5, .prefill_chunk = 9}, config);
  const auto expected = run_all(alone.engine(), requests);
  expect_equal(expected, run_all(batched.engine(), requests));
  TinyModel unlimited({.batch_size = 1, .prefill_chunk = 200});
  const auto without = run_all(unlimited.engine(), requests);
  bool differs = false;
  for (const auto& [index, completion] : expected)
    differs |= completion.tokens != without.at(index).tokens;
  EXPECT_TRUE(differs) << "the window had no effect";
}

TEST(EngineInvariant, DynamicRopeKeepsItsBaseAndSharesOnlyEqualBases) {
  ModelConfig config = tiny_config();
  config.rope->scaling = RopeScaling::kDynamic;
  config.rope->factor = 2.0;
  config.rope->original_max_positions = 30;
  const auto requests = mixed_requests(5, 24);
  TinyModel alone({.batch_size = 1, .prefill_chunk = 200, .block_tokens = 200, .kv_blocks = 3},
                  config);
  TinyModel batched({.batch_size = 5, .prefill_chunk = 9, .block_tokens = 4}, config);
  expect_equal(run_all(alone.engine(), requests), run_all(batched.engine(), requests));
}

TEST(Engine, SharesEqualPromptPrefixesEvenWhenTheyArriveTogether) {
  std::mt19937 random(6);
  const auto prefix = random_tokens(random, 64);
  std::vector<Request> requests;
  for (std::uint64_t i = 0; i < 6; ++i) {
    auto tokens = prefix;
    tokens.push_back(static_cast<TokenId>(i));
    requests.push_back(request(i, tokens, 3));
  }
  TinyModel model({.batch_size = 6, .prefill_chunk = 32});
  (void)run_all(model.engine(), requests);
  EXPECT_EQ(model.engine().placement().stats().shared_prompt_tokens, 5u * 64);
  EXPECT_EQ(model.engine().stats().computed_prompt_tokens, 65u + 5);
}

TEST(Engine, RefillsAFinishedPlaceAtTheNextStep) {
  std::mt19937 random(7);
  std::vector<Request> requests = {request(0, random_tokens(random, 4), 2)};
  for (std::uint64_t i = 1; i < 5; ++i)
    requests.push_back(request(i, random_tokens(random, 4), 12));
  for (Request& each : requests) each.sampling.ignore_eos = true;
  TinyModel model({.batch_size = 4, .prefill_chunk = 64});
  (void)run_all(model.engine(), requests);
  EXPECT_EQ(model.engine().stats().max_batch, 4);
  // Steps 1 and 2 finish line 0; line 4 starts in step 3 and takes 12 steps.
  EXPECT_EQ(model.engine().stats().steps, 14u);
  EXPECT_EQ(model.engine().stats().generated_tokens, 2u + 4 * 12);
  EXPECT_EQ(model.engine().stats().results_of_decoding, 1u + 4 * 11) << "prefill gives the first";
}

TEST(Engine, QueuesWhatMemoryDoesNotHoldAtOnce) {
  const auto requests = mixed_requests(8, 20);
  TinyModel tight({.batch_size = 8, .prefill_chunk = 16, .block_tokens = 8, .kv_blocks = 16});
  TinyModel wide({.batch_size = 8, .prefill_chunk = 16, .block_tokens = 8, .kv_blocks = 400});
  expect_equal(run_all(tight.engine(), requests), run_all(wide.engine(), requests));
  EXPECT_LE(tight.kv().book().tiers().device.peak(), 16);
}

TEST(Engine, LinesThatCannotRunBecomeErrorsAndTheOthersGoOn) {
  std::mt19937 random(9);
  std::vector<Request> requests;
  requests.push_back(request(0, {300}, 4));  // not in the vocabulary
  requests.push_back(request(1, random_tokens(random, 20), 4));
  requests.push_back(request(2, random_tokens(random, 200), 4));   // beyond the context
  requests.push_back(request(3, random_tokens(random, 100), 10));  // beyond the memory
  TinyModel model({.batch_size = 2, .prefill_chunk = 16, .block_tokens = 8, .kv_blocks = 10});
  const auto results = run_all(model.engine(), requests);
  EXPECT_EQ(results.at(0).error->code, "E-IN-TOKEN");
  EXPECT_FALSE(results.at(1).error.has_value());
  EXPECT_EQ(results.at(2).error->code, "E-IN-CONTEXT");
  EXPECT_EQ(results.at(3).error->code, "E-MEM-LINE");
}

TEST(Engine, AnAbandonedEngineGivesItsPlacesBack) {
  std::mt19937 random(10);
  TinyModel model({.batch_size = 2, .prefill_chunk = 16});
  {
    const DeviceOnlyPolicy policy;
    Engine engine({2, 16, 0}, policy, model.model(), model.kv(), nullptr, model.backend());
    engine.submit(request(0, random_tokens(random, 30), 10));
    (void)engine.step();
    EXPECT_GT(model.kv().book().tiers().device.used(), 0);
  }
  EXPECT_EQ(model.kv().book().tiers().device.reserved(), 0);
  model.kv().book().check();
}

}  // namespace
}  // namespace triphase
