// Any attention method under any placement policy: the answer is the method's alone, bit for bit,
// whatever the batch, the chunking of prefill, the budget, preemptions and where KV lives.

#include <gtest/gtest.h>

#include <algorithm>

#include "scheduler/placement/accelerate_policy.h"
#include "scheduler/placement/flexgen_policy.h"
#include "scheduler/placement/triphase_policy.h"
#include "scheduler/placement/vllm_policy.h"
#include "tests/support/engine_runs.h"
#include "tests/support/tiny_clusters.h"
#include "tests/support/tiny_model.h"

namespace triphase {
namespace {

AttentionOptions method(AttentionKind kind) {
  AttentionOptions options;
  options.kind = kind;
  options.sparq.rank = 4;
  options.sparq.k = 10;
  options.h2o.k = 10;
  options.topk.k = 9;
  options.lm_infinite.sinks = 3;
  options.lm_infinite.k = 11;
  options.quest.k = 8;
  options.quest.page = 4;
  options.quest.dense_layers = 1;
  options.squeezed.prefill_rows = 20;  // a step has no more than 23
  return options;
}

struct Place {
  std::shared_ptr<const PlacementPolicy> policy;
  std::int64_t device_blocks;
  std::int64_t host_blocks;
  std::int64_t cache_blocks = 0;
};

std::vector<Place> places() {
  return {{std::make_shared<TriphasePolicy>(
               PhaseSchedule{.p1 = 3, .p2 = 1 << 30, .alpha = 0.7, .window_tokens = 4}),
           24, 120},
          {std::make_shared<TriphasePolicy>(
               PhaseSchedule{.p1 = 1, .p2 = 1 << 30, .alpha = 0.9, .window_tokens = 4}),
           24, 120, 1},
          {std::make_shared<AcceleratePolicy>(AccelerateOptions{}), 16, 120},
          {std::make_shared<AcceleratePolicy>(AccelerateOptions{}), 16, 120, 4},
          {std::make_shared<VllmPolicy>(VllmOptions{}), 12, 0},
          {std::make_shared<TriphasePolicy>(PhaseSchedule{.host_tier = false, .on_demand = true}),
           12, 0},
          {std::make_shared<VllmPolicy>(VllmOptions{.preemption = PreemptMode::kSwap}), 12, 60}};
}

void move_to(const Place& place, TinyModelOptions& options) {
  options.batch_size = 4;
  options.prefill_chunk = 23;
  options.kv_blocks = place.device_blocks;
  options.host_blocks = place.host_blocks;
  options.staging_blocks = place.host_blocks > 0 ? 24 : 0;
  options.cache_blocks = place.cache_blocks;
  options.policy = place.policy;
}

struct Case {
  const char* name;
  AttentionKind kind;
};

class AttentionPlacement : public testing::TestWithParam<Case> {};

// windows_apart: of three layers, two keep KV as far as their windows reach.
void expect_the_answer_anywhere(AttentionKind kind, const ModelConfig& config,
                                bool windows_apart = false) {
  const auto requests = mixed_requests(31, 12);
  const ContextClusters clusters = tiny_clusters(config, 40);
  for (const bool int8 : {false, true}) {
    TinyModelOptions options{.batch_size = 1, .prefill_chunk = 200, .block_tokens = 16};
    options.attention = method(kind);
    options.clusters = &clusters;
    options.int8 = int8;
    TinyModel alone(options, config);
    const auto expected = run_all(alone.engine(), requests);
    const AttentionRunner::TokenCounts& counts = alone.model().attention().runner()->token_counts();
    EXPECT_LT(counts.attended, 0.9 * counts.context) << "the method left nothing out";
    std::uint64_t moved = 0;
    std::uint64_t found = 0;
    bool fetches = false;
    for (const Place& place : places()) {
      move_to(place, options);
      options.column_blocks = place.host_blocks;
      options.windows_apart = windows_apart;
      // 24 of them are for windows, and 2 for those of prompts.
      if (windows_apart) options.kv_blocks += 26;
      TinyModel model(options, config);
      SCOPED_TRACE(std::string(place.policy->name()) + (int8 ? " int8" : ""));
      expect_equal(expected, run_all(model.engine(), requests));
      model.kv().book().check();
      expect_each_token_counted_once(model.engine(), requests);
      const PlacementStats& stats = model.engine().placement().stats();
      moved += stats.offloaded_blocks + stats.drops;
      fetches = model.model().attention().runner()->method().fetches_tokens();
      found += model.model().attention().kv_step().bytes_read().cached;
    }
    EXPECT_GT(moved, 10U);
    // Local windows hold hardly a token that is on the host.
    if (fetches && kind != AttentionKind::kLocal) {
      EXPECT_GT(found, 0U);
    }
  }
}

TEST_P(AttentionPlacement, TheAnswerIsTheMethodsAlone) {
  expect_the_answer_anywhere(GetParam().kind, tiny_config());
}

// Three layers, of which two have a window: the first, and the last.
ModelConfig windowed_config() {
  ModelConfig config = tiny_config();
  config.layers = 3;
  config.sliding_window = {12, 0, 12};
  return config;
}

TEST_P(AttentionPlacement, TheAnswerIsTheMethodsAloneWhereSomeLayersHaveAWindow) {
  expect_the_answer_anywhere(GetParam().kind, windowed_config());
}

TEST_P(AttentionPlacement, TheAnswerIsTheMethodsAloneWhereWindowsKeepWhatTheyReach) {
  expect_the_answer_anywhere(GetParam().kind, windowed_config(), true);
}

AttentionOptions everything(AttentionKind kind) {
  AttentionOptions options = method(kind);
  options.dense_shortcut = false;
  if (kind == AttentionKind::kSqueezed) {
    options.squeezed.threshold = 0.0;
  } else {
    set_keep_ratio(options, 1.0);
  }
  if (kind == AttentionKind::kSparq) options.sparq.rank = 8;
  return options;
}

// What each decoded row attends, by layer.
class Attended final : public AttentionObserver {
 public:
  void decoded(SequenceId, const LayerCall& call, ConstMatrix, std::int64_t,
               const TokenChoice& choice) override {
    const std::int64_t context = call.keys.context_tokens;
    if (call.layer == 1) {
      chosen += choice.dense ? 0 : 1;
      return;
    }
    ++windows;
    ASSERT_EQ(choice.dense, context <= 12);
    if (choice.dense) return;
    ASSERT_EQ(choice.begins, (std::vector<std::int32_t>{0, 12}));
    EXPECT_EQ(choice.tokens.front(), context - 12);
    EXPECT_EQ(choice.tokens.back(), context - 1);
  }
  int chosen = 0;
  int windows = 0;
};

// A layer with a window attends it whole, as under dense attention: no token before it, and none of
// it is left out.
TEST_P(AttentionPlacement, AWindowIsAttendedAsByDenseAttention) {
  const AttentionKind kind = GetParam().kind;
  const ModelConfig config = windowed_config();
  const ContextClusters clusters = tiny_clusters(config, 40);
  auto requests = mixed_requests(31, 12);
  for (Request& line : requests) line.sampling.temperature = 0.0;
  TinyModelOptions options{.batch_size = 4, .prefill_chunk = 40, .block_tokens = 16};
  options.clusters = &clusters;
  TinyModel dense(options, config);
  const auto expected = run_all(dense.engine(), requests);

  options.attention = everything(kind);
  TinyModel all(options, config);
  const auto found = run_all(all.engine(), requests);
  for (const auto& [index, line] : expected) {
    // Sums in another order: an answer may turn where two tokens were nearly equal.
    for (std::size_t i = 0; i < line.tokens.size(); ++i) {
      ASSERT_NEAR(found.at(index).logprobs[i].logprob, line.logprobs[i].logprob, 2e-3);
      ASSERT_EQ(found.at(index).tokens[i], line.tokens[i]) << "line " << index;
    }
  }

  options.attention = method(kind);
  TinyModel few(options, config);
  Attended attended;
  few.model().attention().runner()->set_observer(&attended);
  static_cast<void>(run_all(few.engine(), requests));
  EXPECT_GT(attended.chosen, 10);
  EXPECT_GT(attended.windows, 10);
}

// Lines behind a context of 45 tokens, some of which begin alike behind it too.
std::vector<Request> requests_behind_a_context() {
  std::mt19937 random(19);
  const std::vector<TokenId> context = random_tokens(random, 45);
  const std::vector<TokenId> start = random_tokens(random, 40);
  std::vector<Request> requests;
  for (std::uint64_t index = 0; index < 12; ++index) {
    std::vector<TokenId> tokens = context;
    if (index % 2 == 0) tokens.insert(tokens.end(), start.begin(), start.begin() + 34 + index / 2);
    const auto own = random_tokens(random, 1 + random() % 30);
    tokens.insert(tokens.end(), own.begin(), own.end());
    requests.push_back(request(index, std::move(tokens), 1 + static_cast<std::int64_t>(index)));
  }
  return requests;
}

// A prompt's KV depends on all tokens that chose together: no cut of prefill may part them, and no
// other line may share them.
TEST(SqueezedPrompts, TheAnswerDependsNeitherOnStepsNorOnNeighbours) {
  const ContextClusters clusters = tiny_clusters(tiny_config(), 40);
  const auto requests = requests_behind_a_context();
  for (const bool int8 : {false, true}) {
    for (const bool two_levels : {false, true}) {
      TinyModelOptions options{.batch_size = 1, .prefill_chunk = 200, .block_tokens = 16};
      options.attention.kind = AttentionKind::kSqueezed;
      options.attention.squeezed.two_levels = two_levels;
      options.attention.squeezed.prefill_rows = 21;
      options.clusters = &clusters;
      options.int8 = int8;
      SCOPED_TRACE(std::string(int8 ? "int8" : "fp16") + (two_levels ? ", two levels" : ""));
      TinyModel alone(options);
      const auto expected = run_all(alone.engine(), requests);
      const AttentionRunner::TokenCounts& counts =
          alone.model().attention().runner()->token_counts();
      EXPECT_LT(counts.prompt_attended, 0.95 * counts.prompt_context);
      EXPECT_GT(counts.prompt_attended, 0.3 * counts.prompt_context);
      std::int64_t shared = 0;
      for (const Place& place : places()) {
        move_to(place, options);
        TinyModel model(options);
        SCOPED_TRACE(std::string(place.policy->name()));
        expect_equal(expected, run_all(model.engine(), requests));
        model.kv().book().check();
        shared +=
            static_cast<std::int64_t>(model.engine().placement().stats().shared_prompt_tokens);
      }
      EXPECT_GT(shared, 0) << "the context was never shared";
    }
  }
}

TEST(SqueezedPrompts, EqualDenseWhenTheThresholdIs0) {
  const ContextClusters clusters = tiny_clusters(tiny_config(), 40);
  const auto requests = requests_behind_a_context();
  TinyModelOptions options{.batch_size = 4, .prefill_chunk = 64, .block_tokens = 16};
  TinyModel dense(options);
  const auto expected = run_all(dense.engine(), requests);
  options.attention.kind = AttentionKind::kSqueezed;
  options.attention.squeezed.prefill_rows = 50;
  options.clusters = &clusters;
  const auto differs = [&](TinyModel& model) {
    const auto found = run_all(model.engine(), requests);
    return std::ranges::any_of(expected, [&](const auto& line) {
      return found.at(line.first).logprobs[0].logprob != line.second.logprobs[0].logprob;
    });
  };
  // The first token of a line is the prompt's answer.
  TinyModel sparse(options);
  EXPECT_TRUE(differs(sparse));
  options.attention.squeezed.sparse_prefill = false;
  TinyModel dense_prompts(options);
  EXPECT_FALSE(differs(dense_prompts));
  EXPECT_EQ(dense_prompts.model().attention().runner()->token_counts().prompt_context, 0.0);
  options.attention.squeezed.sparse_prefill = true;
  options.attention.squeezed.threshold = 0.0;
  TinyModel everything(options);
  expect_equal(expected, run_all(everything.engine(), requests));
  const AttentionRunner::TokenCounts& counts =
      everything.model().attention().runner()->token_counts();
  EXPECT_EQ(counts.prompt_attended, counts.prompt_context);
  EXPECT_GT(counts.prompt_context, 0.0);
}

// Rows of different lengths, and a dense layer beside layers that choose: every row counts as it
// is.
TEST(ReadBytes, CountEveryDecodedRow) {
  const ModelConfig config = tiny_config();
  const std::vector<std::int64_t> prompts = {11, 50, 26};
  constexpr std::int64_t kTokens = 4;
  const AttendedShape shape{config.heads, config.kv_heads, config.head_dim, 2};
  const AttentionOptions everything;
  std::mt19937 random(5);
  for (const AttentionKind kind : {AttentionKind::kLocal, AttentionKind::kQuest}) {
    TinyModelOptions options{.batch_size = 4, .prefill_chunk = 64, .block_tokens = 16};
    options.attention = method(kind);
    options.attention.local.keep = 0.04;
    double attended = 0.0;
    double dense = 0.0;
    std::vector<Request> requests;
    for (const std::int64_t prompt : prompts) {
      std::vector<TokenId> own = random_tokens(random, static_cast<std::size_t>(prompt));
      requests.push_back(request(requests.size(), std::move(own), kTokens));
      for (std::int64_t context = prompt + 1; context < prompt + kTokens; ++context) {
        for (std::int64_t layer = 0; layer < config.layers; ++layer) {
          const bool all = kind == AttentionKind::kQuest && (layer == 0 || context <= 8);
          std::int64_t tokens = budget_tokens(options.attention, context, prompt);
          // The newest page of quest's two is not full.
          if (kind == AttentionKind::kQuest) tokens -= (4 - context % 4) % 4;
          attended +=
              static_cast<double>(all ? attended_bytes(everything, shape, context, context)
                                      : attended_bytes(options.attention, shape, context, tokens));
          dense += static_cast<double>(attended_bytes(everything, shape, context, context));
        }
      }
    }
    TinyModel model(options);
    run_all(model.engine(), requests);
    const auto read = model.model().attention().runner()->read_bytes();
    EXPECT_EQ(read.attended, attended);
    EXPECT_EQ(read.dense, dense);
  }
}

// K^T is made where a block is, made again after the block came back, and not made for blocks that
// are read through staging pages. No answer may depend on which way a key went.
TEST(SparqTransposedK, NeverChangeTheAnswerWhereverBlocksWere) {
  const auto requests = mixed_requests(47, 10);
  for (const bool int8 : {false, true}) {
    TinyModelOptions options{.batch_size = 1, .prefill_chunk = 200, .block_tokens = 16};
    options.attention = method(AttentionKind::kSparq);
    options.attention.sparq.kt = false;
    options.int8 = int8;
    TinyModel rows(options);
    EXPECT_EQ(rows.kv().memory().transposed_k_pages(LayerId(0)), nullptr);
    const auto expected = run_all(rows.engine(), requests);
    options.attention.sparq.kt = true;
    {
      TinyModel columns(options);
      const KvStore& kv = columns.kv();
      EXPECT_EQ(columns.pool().use(MemoryTag::kTransposedK).now,
                kv.memory().shape().transposed_k_bytes() *
                    static_cast<std::uint64_t>(kv.memory().sizes().transposed_k_blocks *
                                               kv.memory().shape().layers));
      expect_equal(expected, run_all(columns.engine(), requests));
    }
    std::uint64_t reloaded = 0;
    std::uint64_t fetched = 0;
    for (const Place& place : places()) {
      // Places for all, for some, and for no block on the host.
      options.column_blocks = place.cache_blocks == 0 ? place.host_blocks : place.cache_blocks;
      move_to(place, options);
      TinyModel model(options);
      SCOPED_TRACE(std::string(place.policy->name()) + (int8 ? " int8" : ""));
      expect_equal(expected, run_all(model.engine(), requests));
      TransposedK& columns = model.kv().transposed_k();
      const std::uint8_t* ready = columns.ready(LayerId(0));
      EXPECT_GT(std::count(ready, ready + columns.places(), 1), 0) << "K^T was never used";
      reloaded += model.engine().placement().stats().reloaded_blocks;
      fetched += model.model().attention().kv_step().bytes_read().tokens;
    }
    EXPECT_GT(reloaded, 0U) << "no block came back";
    EXPECT_GT(fetched, 0U) << "no token was fetched alone";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Methods, AttentionPlacement,
    testing::Values(Case{"local", AttentionKind::kLocal}, Case{"strided", AttentionKind::kStrided},
                    Case{"swa", AttentionKind::kSwa}, Case{"sparq", AttentionKind::kSparq},
                    Case{"h2o", AttentionKind::kH2o},
                    Case{"lm_infinite", AttentionKind::kLmInfinite},
                    Case{"topk", AttentionKind::kTopk}, Case{"quest", AttentionKind::kQuest},
                    Case{"random", AttentionKind::kRandom},
                    Case{"squeezed", AttentionKind::kSqueezed}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace triphase
