// Chosen tokens that a step fetches for the one after it: they come once, answers never change, and
// what becomes of their sequences in between does no harm.

#include <gtest/gtest.h>

#include <memory>
#include <tuple>

#include "base/error.h"
#include "scheduler/placement/accelerate_policy.h"
#include "tests/support/early_rig.h"
#include "tests/support/engine_runs.h"
#include "tests/support/meddling_policy.h"
#include "tests/support/tiny_model.h"

namespace triphase {
namespace {

std::vector<Request> some_requests(std::size_t count, std::int64_t output) {
  return growing_requests(count, output, /*first=*/60, /*more=*/5);
}

std::uint64_t to_device(TinyModel& model) {
  model.transfers().drain();
  return model.transfers().stats(Lane::kToDevice).bytes;
}

TokenCache& cache_of(TinyModel& model) {
  const std::int64_t parts = model.model().attention()->method().lists();
  return model.kv().token_cache(parts);
}

// Lets what leaves in a step arrive within it, however busy the machine is.
class Patience final : public AttentionObserver {
 public:
  explicit Patience(TinyModel& model) : model_(model) {
    model.model().attention()->set_observer(this);
  }
  void decoded(SequenceId, const LayerCall&, ConstMatrix, std::int64_t,
               const TokenChoice&) override {
    model_.transfers().drain();
  }

 private:
  TinyModel& model_;
};

class EarlyTokensOfStep : public testing::TestWithParam<std::tuple<AttentionKind, bool>> {
 protected:
  static TinyModelOptions method() {
    const auto [kind, int8] = GetParam();
    TinyModelOptions options;
    options.int8 = int8;
    options.block_tokens = int8 ? 16 : 8;
    options.batch_size = 3;
    options.prefill_chunk = 64;
    options.attention.kind = kind;
    options.attention.local.window = 37;
    options.attention.h2o.k = 20;
    return options;
  }
  // A cache with room for every token.
  static TinyModelOptions on_host(std::shared_ptr<const PlacementPolicy> policy) {
    TinyModelOptions options = method();
    options.kv_blocks = 60;
    options.host_blocks = 80;
    options.staging_blocks = 48;
    options.cache_blocks = 60;
    options.policy = std::move(policy);
    return options;
  }
  // Everything on the device.
  static std::map<std::uint64_t, Completion> expected(const std::vector<Request>& requests,
                                                      const ModelConfig& config) {
    TinyModel model(method(), config);
    return run_all(model.engine(), requests);
  }
  static void expect_sound(TinyModel& model) {
    cache_of(model).check();
    model.kv().book().check();
    EXPECT_FALSE(model.kv().moving());
    const HostReads::Bytes read = model.model().kv_step().bytes_read().all;
    EXPECT_EQ(read.blocks + read.tokens +
                  model.engine().placement().stats().reloaded_blocks *
                      KvStore::host_block_bytes(model.kv().shape()),
              to_device(model));
  }
};

TEST_P(EarlyTokensOfStep, ComeOnceWhetherEarlyOrNot) {
  const std::vector<Request> requests = some_requests(4, 40);
  for (const std::int64_t layers : {1, 2, 5}) {
    SCOPED_TRACE(testing::Message() << layers << " layers");
    const auto reference = expected(requests, config_of_layers(layers));
    std::uint64_t moved[2] = {};
    for (const bool prefetch : {false, true}) {
      TinyModelOptions options = on_host(std::make_shared<AcceleratePolicy>());
      options.prefetch = prefetch;
      TinyModel model(options, config_of_layers(layers));
      Patience patience(model);
      expect_equal(run_all(model.engine(), requests), reference);
      expect_sound(model);
      moved[prefetch ? 1 : 0] = to_device(model);
      const KvStore::EarlyUse use = model.kv().early_use();
      EXPECT_EQ(use.brought > 0, prefetch && layers > 1) << "the last layer has chosen too late";
      EXPECT_EQ(use.unused, 0U);
      const HostReads::Bytes read = model.model().kv_step().bytes_read().all;
      EXPECT_EQ(read.chosen, read.cached + read.tokens) << "what came early is no hit";
    }
    EXPECT_EQ(moved[0], moved[1]);
    EXPECT_GT(moved[0], 0U);
  }
}

// The next step's tokens are on the link when the step is over.
TEST_P(EarlyTokensOfStep, AreUnderWayWhenTheStepEnds) {
  TinyModelOptions options = on_host(std::make_shared<AcceleratePolicy>());
  options.batch_size = 1;
  options.prefill_chunk = 100;
  TinyModel model(options, config_of_layers(3));
  Patience patience(model);
  model.engine().submit(some_requests(1, 40)[0]);
  std::int64_t steps = 0;
  while (model.engine().in_flight() > 0) {
    const std::uint64_t waiting = model.kv().waiting_early_bytes();
    const std::int64_t ranges = model.kv().early_tokens().ranges();
    EXPECT_EQ(waiting > 0, ranges > 0);
    EXPECT_LE(ranges, 2);
    if (ranges > 0) ++steps;
    const std::uint64_t read = model.model().kv_step().bytes_read().all.tokens;
    static_cast<void>(model.engine().step());
    EXPECT_LE(waiting, model.kv().early_use().brought - model.kv().waiting_early_bytes())
        << "all of it has been read";
    EXPECT_GE(model.model().kv_step().bytes_read().all.tokens, read);
  }
  EXPECT_GT(steps, 0);
  EXPECT_TRUE(model.kv().early_tokens().empty()) << "no line goes on after its last step";
}

// A cache that holds less than the lines choose: nothing that is read gives way.
TEST_P(EarlyTokensOfStep, ASmallCacheTakesWhatItCan) {
  const std::vector<Request> requests = some_requests(5, 30);
  const auto reference = expected(requests, config_of_layers(3));
  for (const std::int64_t blocks : {0, 1, 4}) {
    TinyModelOptions options = on_host(all_away());
    options.cache_blocks = blocks;
    TinyModel model(options, config_of_layers(3));
    expect_equal(run_all(model.engine(), requests), reference);
    expect_sound(model);
    EXPECT_EQ(model.kv().early_use().unused, 0U);
    if (blocks == 0) {
      EXPECT_EQ(model.kv().early_use().brought, 0U);
    }
  }
}

// Lines that end by what they sample leave what was brought for them unread, and counted.
TEST_P(EarlyTokensOfStep, ALineThatEndsLeavesThemUnread) {
  std::vector<Request> requests = some_requests(12, 40);
  for (Request& one : requests) {
    one.sampling.ignore_eos = false;
    one.sampling.temperature = 3.0;
  }
  ModelConfig config = config_of_layers(4);
  config.eos_ids.clear();
  for (TokenId token = 230; token < 257; ++token) config.eos_ids.push_back(token);
  const auto reference = expected(requests, config);
  TinyModelOptions options = on_host(std::make_shared<AcceleratePolicy>());
  // Slow enough that they are on their way when the line's host blocks become others'.
  options.link = EmulatedLink{.bytes_per_second = 2e7, .seconds_per_record = 0.0};
  KvStore::EarlyUse use;
  // On a machine that is busy with other things no block may arrive in time to be looked at.
  for (int attempt = 0; attempt < 5 && use.brought == 0; ++attempt) {
    TinyModel model(options, config);
    expect_equal(run_all(model.engine(), requests), reference);
    use = model.kv().early_use();
    expect_sound(model);
  }
  EXPECT_LT(use.unused, use.brought);
  if (std::get<0>(GetParam()) == AttentionKind::kStrided) {
    EXPECT_GT(use.unused, 0U) << "each step chooses others";
  }
}

TEST_P(EarlyTokensOfStep, ALineThatIsPreemptedInBetweenDoesNoHarm) {
  const std::vector<Request> requests = some_requests(4, 40);
  const auto reference = expected(requests, config_of_layers(3));
  for (const PreemptMode mode : {PreemptMode::kSwap, PreemptMode::kDrop}) {
    std::int64_t preempted = 0;
    TinyModelOptions options =
        on_host(std::make_shared<Meddling>(all_away(), [&](PlacementStep& step) {
          if (step.number() % 5 != 4 || preempted >= 6) return false;
          if (!preempt_first(step, mode)) return false;
          ++preempted;
          return true;
        }));
    options.link = EmulatedLink{.bytes_per_second = 2e7, .seconds_per_record = 0.0};
    TinyModel model(options, config_of_layers(3));
    expect_equal(run_all(model.engine(), requests), reference);
    EXPECT_GT(preempted, 2);
    expect_sound(model);
  }
}

TEST_P(EarlyTokensOfStep, BlocksThatReturnAreReadWhereverTheyAre) {
  const std::vector<Request> requests = some_requests(3, 40);
  const auto reference = expected(requests, config_of_layers(3));
  std::int64_t reloaded = 0;
  TinyModelOptions options =
      on_host(std::make_shared<Meddling>(all_away(), [&](PlacementStep& step) {
        if (step.number() % 4 != 3 || !load_first(step)) return false;
        ++reloaded;
        return true;
      }));
  TinyModel model(options, config_of_layers(3));
  expect_equal(run_all(model.engine(), requests), reference);
  EXPECT_GT(reloaded, 2);
  expect_sound(model);
}

// Whichever transfer fails, the job ends with it, nothing hangs, and the cache is sound.
TEST_P(EarlyTokensOfStep, AFailureEndsTheJobAndNothingElse) {
  const std::vector<Request> requests = some_requests(2, 16);
  int failed = 0;
  for (int nth = 1; nth < 40; nth += 4) {
    TinyModelOptions options = on_host(std::make_shared<AcceleratePolicy>());
    options.prefill_chunk = 200;
    TinyModel model(options, config_of_layers(3));
    model.transfers().fail_transfer(nth);
    try {
      static_cast<void>(run_all(model.engine(), requests));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), "E-DEV-TRANSFER");
      ++failed;
    }
    model.kv().give_up();
    EXPECT_TRUE(model.kv().early_tokens().empty());
    cache_of(model).check();
    EXPECT_EQ(cache_of(model).early(), 0);
  }
  EXPECT_GT(failed, 2);
}

// Methods that choose others in each step, that keep to what they chose, and that choose by KV
// head.
INSTANTIATE_TEST_SUITE_P(Methods, EarlyTokensOfStep,
                         testing::Values(std::tuple(AttentionKind::kStrided, false),
                                         std::tuple(AttentionKind::kStrided, true),
                                         std::tuple(AttentionKind::kSwa, false),
                                         std::tuple(AttentionKind::kLocal, true),
                                         std::tuple(AttentionKind::kH2o, false),
                                         std::tuple(AttentionKind::kH2o, true)),
                         [](const auto& param) {
                           return std::string(attention_name(std::get<0>(param.param))) +
                                  (std::get<1>(param.param) ? "_int8" : "_f16");
                         });

}  // namespace
}  // namespace triphase
