// Phase III: K and V projected again from INT8 hidden states are the numbers that were stored, so
// that recomputing never changes an answer.

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "scheduler/placement/triphase_policy.h"
#include "tests/support/engine_runs.h"
#include "tests/support/tiny_model.h"

namespace triphase {
namespace {

constexpr std::int64_t kInputTokens = 32;

struct Variant {
  std::string name;
  ModelConfig config;
};

// Every place where a model's hidden states and its K and V can differ.
std::vector<Variant> variants() {
  ModelConfig llama = tiny_config();
  llama.kv_heads = llama.heads;
  ModelConfig biased = llama;
  biased.attention.qkv_bias = true;
  biased.norms.kind = Norm::kLayerNorm;
  biased.norms.bias = true;
  ModelConfig neox = biased;
  neox.parallel_residual = true;
  neox.rope->rotary_dim = 4;
  ModelConfig post_norm = biased;
  post_norm.norms.before = false;
  post_norm.norms.final_norm = false;
  ModelConfig qk_norms = llama;
  qk_norms.norms.qk = QkNorm::kHead;
  ModelConfig unrotated = llama;
  unrotated.unrotated = {false, true};
  ModelConfig output_norms = llama;
  output_norms.norms.before = false;
  output_norms.norms.output = true;
  output_norms.norms.qk = QkNorm::kWidth;
  output_norms.sliding_window = {24, 0};
  output_norms.window_rope = RopeConfig{.theta = 100.0, .rotary_dim = 8};
  ModelConfig shared_norm = neox;
  shared_norm.norms.shared = true;
  return {{"llama", llama},         {"shared_norm", shared_norm},  {"biased", biased},
          {"neox", neox},           {"post_norm", post_norm},      {"qk_norms", qk_norms},
          {"unrotated", unrotated}, {"output_norms", output_norms}};
}

const std::vector<Request>& requests_of_test() {
  static const std::vector<Request> requests = mixed_requests(33, 16);
  return requests;
}

// Everything on the device, one line at a time.
std::map<std::uint64_t, Completion> resident(const ModelConfig& config, bool int8,
                                             const AttentionOptions& attention,
                                             std::int64_t input_tokens = kInputTokens) {
  TinyModel alone({.batch_size = 1,
                   .prefill_chunk = 200,
                   .block_tokens = 16,
                   .kv_blocks = 20,
                   .attention = attention,
                   .int8 = int8,
                   .input_tokens = input_tokens},
                  config);
  return run_all(alone.engine(), requests_of_test());
}

TinyModelOptions third_phase(std::mt19937& random, bool int8) {
  TinyModelOptions options;
  options.int8 = int8;
  options.block_tokens = int8 ? 16 : 8;
  options.batch_size = 1 + static_cast<std::int64_t>(random() % 5);
  options.prefill_chunk = 5 + static_cast<std::int64_t>(random() % 50);
  options.kv_blocks = (int8 ? 20 : 40) + static_cast<std::int64_t>(random() % 10);
  options.host_blocks = 150;
  options.cache_blocks = random() % 2 == 0 ? 0 : 2;
  options.staging_blocks = random() % 2 == 0 ? 20 : 64;
  options.threads = 1 + static_cast<std::int64_t>(random() % 2);
  options.prefetch = random() % 4 != 0;
  options.streamed_layers = static_cast<std::int64_t>(random() % 2);
  options.input_tokens = kInputTokens;
  options.input_blocks = kInputTokens / options.block_tokens * options.batch_size;
  const auto p1 = static_cast<std::int64_t>(random() % 4);
  options.policy = std::make_shared<TriphasePolicy>(
      PhaseSchedule{.p1 = p1,
                    .p2 = p1 + static_cast<std::int64_t>(random() % 4),
                    .alpha = 0.9,
                    .beta = random() % 2 == 0 ? 1.0 : 0.5,
                    .window_tokens = 4,
                    .input_tokens = kInputTokens});
  return options;
}

class Recompute : public testing::TestWithParam<Variant> {};

TEST_P(Recompute, NeverChangesTheAnswer) {
  std::uint64_t recomputed = 0;
  std::uint64_t third = 0;
  for (const bool int8 : {false, true}) {
    for (const AttentionKind kind :
         {AttentionKind::kDense, AttentionKind::kSwa, AttentionKind::kH2o, AttentionKind::kSparq,
          AttentionKind::kQuest}) {
      AttentionOptions attention;
      attention.kind = kind;
      attention.sparq.rank = 4;
      attention.sparq.k = 10;
      attention.h2o.k = 10;
      attention.quest.k = 8;
      attention.quest.page = 4;
      attention.quest.dense_layers = 0;
      const auto expected = resident(GetParam().config, int8, attention);
      const bool whole = kind == AttentionKind::kDense || kind == AttentionKind::kSparq;
      for (std::uint32_t seed = 0; seed < (whole ? 1U : 2U); ++seed) {
        std::mt19937 random(seed + (int8 ? 10 : 0));
        TinyModelOptions options = third_phase(random, int8);
        options.attention = attention;
        TinyModel model(options, GetParam().config);
        SCOPED_TRACE(testing::Message()
                     << attention_name(kind) << ", int8 " << int8 << ", seed " << seed);
        expect_equal(expected, run_all(model.engine(), requests_of_test()));
        if (HasFatalFailure()) return;
        model.kv().book().check();
        EXPECT_EQ(model.kv().book().tiers().device.reserved(), 0);
        const KvStep::BytesRead read = model.model().attention().kv_step().bytes_read();
        const HiddenStates::Use& use = model.model().attention().hidden_states()->use();
        // SWA's tokens are listed, the blocks of methods with a list for each KV head come whole.
        const bool listed = kind == AttentionKind::kSwa;
        EXPECT_EQ(read.recomputed_tokens > 0, listed);
        recomputed += use.recomputed_tokens + read.recomputed_tokens;
        third += model.engine().stats().phases[2].steps;
        // What is recomputed came once before: its codes and its scale.
        const auto width = static_cast<std::uint64_t>(GetParam().config.hidden_size);
        EXPECT_EQ(read.inputs,
                  (use.recomputed_tokens + read.recomputed_tokens) * (width + sizeof(float)));
        EXPECT_EQ(use.saved_bytes % (width + sizeof(float)), 0U);
      }
    }
  }
  EXPECT_GT(recomputed, 1000U);
  EXPECT_GT(third, 50U);
}

TEST_P(Recompute, QuantizedInputsAreNearTheLayersOwn) {
  const auto exact = resident(GetParam().config, false, {}, 0);
  const auto rounded = resident(GetParam().config, false, {});
  std::size_t compared = 0;
  bool any_difference = false;
  for (const auto& [index, completion] : exact) {
    const Completion& other = rounded.at(index);
    if (completion.tokens.empty() || other.tokens.empty()) continue;
    if (completion.tokens.front() != other.tokens.front()) continue;
    ++compared;
    any_difference |= completion.logprobs.front().logprob != other.logprobs.front().logprob;
    EXPECT_NEAR(completion.logprobs.front().logprob, other.logprobs.front().logprob, 0.1);
  }
  EXPECT_TRUE(any_difference);
  EXPECT_GE(compared, 8U);
}

INSTANTIATE_TEST_SUITE_P(Models, Recompute, testing::ValuesIn(variants()),
                         [](const auto& param) { return param.param.name; });

// The tokens of recomputable blocks that the sequence's last step chose, by layer.
class ChosenOfInputs final : public AttentionObserver {
 public:
  explicit ChosenOfInputs(const KvBook& book) : book_(&book) {}
  void decoded(SequenceId sequence, const LayerCall& call, ConstMatrix, std::int64_t,
               const TokenChoice& choice) override {
    if (call.layer == 0) tokens.clear();
    for (const std::int32_t token : choice.tokens) {
      if (book_->table(sequence)[token / 16].place != BlockPlace::kRecomputable) continue;
      tokens.emplace_back(call.layer, token);
    }
  }

  std::vector<std::pair<std::int64_t, std::int32_t>> tokens;

 private:
  const KvBook* book_;
};

// Of recomputable blocks too a sparse method brings only the tokens that it chose, and those that a
// cache holds not again.
TEST(RecomputeTokens, OnlyChosenTokensAreBrought) {
  for (const bool int8 : {false, true}) {
    for (const std::int64_t cache_blocks : {0, 8}) {
      SCOPED_TRACE(testing::Message() << "int8 " << int8 << ", cache " << cache_blocks);
      TinyModelOptions options{.batch_size = 1, .prefill_chunk = 200, .block_tokens = 16};
      options.int8 = int8;
      options.kv_blocks = 16;
      options.host_blocks = 20;
      options.staging_blocks = 24;
      options.cache_blocks = cache_blocks;
      options.input_tokens = 64;
      options.input_blocks = 4;
      options.attention.kind = AttentionKind::kSwa;
      options.policy = std::make_shared<TriphasePolicy>(PhaseSchedule{
          .p1 = 0, .p2 = 0, .alpha = 0.9, .beta = 1.0, .window_tokens = 4, .input_tokens = 64});
      TinyModel model(options, variants()[0].config);
      const auto width = static_cast<std::uint64_t>(variants()[0].config.hidden_size);
      const auto brought = [&] { return model.model().attention().kv_step().bytes_read().inputs; };
      ChosenOfInputs chosen(model.kv().book());
      model.model().attention().runner()->set_observer(&chosen);
      std::mt19937 random(5);
      model.engine().submit(request(0, random_tokens(random, 70), 40));
      std::set<std::pair<std::int64_t, std::int32_t>> seen;
      std::uint64_t whole = 0;
      while (true) {
        const std::uint64_t before = brought();
        chosen.tokens.clear();
        static_cast<void>(model.engine().step());
        std::uint64_t expected = 0;
        for (const auto& token : chosen.tokens) {
          if (seen.insert(token).second || cache_blocks == 0) expected += width + sizeof(float);
        }
        EXPECT_EQ(brought() - before, expected);
        if (model.engine().in_flight() == 0) break;
        const auto layers = static_cast<std::uint64_t>(model.kv().memory().shape().layers);
        whole += layers * 64 * (width + sizeof(float));
      }
      EXPECT_GT(brought(), 0U);
      EXPECT_LT(brought(), whole / 2);
    }
  }
}

TEST(RecomputeFaults, AFailedTransferEndsTheRunAndLosesNoMemory) {
  for (int nth = 1; nth < 60; nth += 4) {
    std::mt19937 random(7);
    auto model = std::make_unique<TinyModel>(third_phase(random, false), variants()[0].config);
    model->transfers().fail_transfer(nth);
    try {
      run_all(model->engine(), requests_of_test());
      FAIL() << "the failure went unseen";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), "E-DEV-TRANSFER");
    }
    model.reset();  // nothing hangs
  }
}

TEST(RecomputePhases, BoundariesAreMetInOrder) {
  TinyModelOptions options;
  options.block_tokens = 8;
  options.kv_blocks = 60;
  options.host_blocks = 100;
  options.staging_blocks = 64;
  options.input_tokens = kInputTokens;
  options.input_blocks = 16;
  options.prefill_chunk = 200;
  options.policy = std::make_shared<TriphasePolicy>(PhaseSchedule{.p1 = 4,
                                                                  .p2 = 9,
                                                                  .alpha = 0.8,
                                                                  .beta = 1.0,
                                                                  .window_tokens = 4,
                                                                  .input_tokens = kInputTokens});
  TinyModel model(options, variants()[0].config);
  std::mt19937 random(3);
  std::vector<Request> requests;
  for (std::uint64_t i = 0; i < 4; ++i) {
    auto tokens = random_tokens(random, 40);
    tokens[0] = static_cast<TokenId>(i);
    requests.push_back(request(i, tokens, 20));
    requests.back().sampling.ignore_eos = true;
  }
  run_all(model.engine(), requests);
  const std::vector<PhaseBoundary> met = model.engine().placement().phases().boundaries();
  ASSERT_EQ(met.size(), 2U);
  EXPECT_EQ(met[0].phase, Phase::kTwo);
  EXPECT_EQ(met[0].least_generated, 4);
  EXPECT_EQ(met[1].phase, Phase::kThree);
  EXPECT_EQ(met[1].least_generated, 9);
  EXPECT_EQ(met[1].sequences, 4);
  // Contexts 49 to 58 are before the steps in Phase III.
  EXPECT_EQ(model.engine().stats().phases[2].steps, 10U);
}

}  // namespace
}  // namespace triphase
