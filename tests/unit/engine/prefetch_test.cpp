// What a step fetches for the one after it: it is under way before the step ends, the next step
// does not fetch it again, what the policy moves in between is left alone, and answers never
// change.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"
#include "scheduler/placement/accelerate_policy.h"
#include "scheduler/placement/placement_policy.h"
#include "scheduler/placement/triphase_policy.h"
#include "tests/support/engine_runs.h"
#include "tests/support/tiny_model.h"

namespace triphase {
namespace {

// Under which all that may leave the device does.
std::shared_ptr<const PlacementPolicy> offload_all() {
  return std::make_shared<TriphasePolicy>(
      PhaseSchedule{.p1 = 0, .p2 = 1 << 30, .alpha = 0.9, .window_tokens = 4});
}

// The same, but now and then something of its own.
class Meddling final : public PlacementPolicy {
 public:
  // Returns whether it did something.
  using Instead = std::function<bool(PlacementStep& step)>;
  explicit Meddling(Instead instead) : instead_(std::move(instead)) {}

  [[nodiscard]] std::string_view name() const override { return usual_->name(); }
  [[nodiscard]] StaticPlacement start(const JobView& job) const override {
    return usual_->start(job);
  }
  [[nodiscard]] std::int64_t longest_request(const PlacementLimits& limits) const override {
    return usual_->longest_request(limits);
  }
  void decide(PlacementStep& step) const override {
    if (!instead_(step)) usual_->decide(step);
  }

 private:
  std::shared_ptr<const PlacementPolicy> usual_ = offload_all();
  Instead instead_;
};

// What tests do in between to the first running request, once it decodes and has blocks on the
// host. Return whether they did.
bool first_is_offloaded(const PlacementStep& step) {
  return !step.running().empty() && !step.running().front().prefilling() &&
         step.book().table(step.running().front().id).on_host() > 0;
}
bool preempt_first(PlacementStep& step, PreemptMode mode) {
  if (step.running().size() < 2 || !first_is_offloaded(step)) return false;
  step.preempt(step.running().front().id, mode);
  return true;
}
bool load_first(PlacementStep& step) {
  if (!first_is_offloaded(step)) return false;
  const SequenceId first = step.running().front().id;
  if (step.book().table(first).shared() > 0) return false;
  step.load(first, step.book().table(first).on_host());
  return true;
}

ModelConfig three_layers() {
  ModelConfig config = tiny_config();
  config.layers = 3;
  return config;
}

TinyModelOptions options_of(std::shared_ptr<const PlacementPolicy> policy, bool int8) {
  TinyModelOptions options;
  options.int8 = int8;
  if (int8) options.block_tokens = 16;
  options.kv_blocks = 60;
  options.host_blocks = 80;
  options.staging_blocks = 48;
  options.policy = std::move(policy);
  return options;
}

// Prompts of 40, 43, 46, ... tokens.
std::vector<Request> some_requests(std::size_t count, std::int64_t output) {
  std::mt19937 random(3);
  std::vector<Request> requests;
  for (std::size_t i = 0; i < count; ++i) {
    requests.push_back(request(i, random_tokens(random, 40 + 3 * i), output));
    requests.back().sampling.ignore_eos = true;
  }
  return requests;
}

std::uint64_t to_device(TinyModel& model) { return model.transfers().stats(Lane::kToDevice).bytes; }

// Blocks of the running lines that are on the host.
std::int64_t host_blocks(TinyModel& model, std::span<const SequenceId> lines) {
  std::int64_t count = 0;
  const KvBook& book = model.kv().book();
  for (const SequenceId line : lines) {
    for (std::int64_t block = 0; block < book.table(line).size(); ++block) {
      if (book.table(line)[block].place == BlockPlace::kHost) ++count;
    }
  }
  return count;
}

class Prefetch : public testing::TestWithParam<bool> {
 protected:
  // Runs the requests where everything is on the device.
  static std::map<std::uint64_t, Completion> expected(const std::vector<Request>& requests) {
    TinyModelOptions options;
    options.int8 = GetParam();
    if (options.int8) options.block_tokens = 16;
    TinyModel model(options, three_layers());
    return run_all(model.engine(), requests);
  }
};

TEST_P(Prefetch, IsUnderWayWhenTheStepEndsAndIsNotFetchedAgain) {
  std::vector<SequenceId> lines;
  TinyModelOptions options = options_of(std::make_shared<Meddling>([&](const PlacementStep& step) {
                                          lines.clear();
                                          for (const PlacedRequest& line : step.running()) {
                                            lines.push_back(line.id);
                                          }
                                          return false;
                                        }),
                                        GetParam());
  options.batch_size = 3;
  options.prefill_chunk = 200;
  TinyModel model(options, three_layers());
  const std::vector<Request> requests = some_requests(3, 24);
  for (const Request& one : requests) model.engine().submit(one);
  static_cast<void>(model.engine().step());
  const std::uint64_t page = model.kv().memory().shape().page_bytes();
  std::uint64_t waiting = 0;
  for (int step = 1; step < 23; ++step) {
    const std::uint64_t before = to_device(model);
    static_cast<void>(model.engine().step());
    const PrefetchedBlocks& prefetched = model.kv().prefetched();
    if (step > 1) {
      EXPECT_GT(prefetched.ranges(), 0) << "step " << step;
    }
    model.transfers().drain();
    const std::uint64_t now = static_cast<std::uint64_t>(prefetched.unused()) * page;
    // Every block on the host once in each layer, whenever it came. Places are those of the step:
    // what it offloaded arrives after it.
    const std::uint64_t all = static_cast<std::uint64_t>(3 * host_blocks(model, lines)) * page;
    EXPECT_EQ(to_device(model) - before + waiting - now, all) << "step " << step;
    waiting = now;
  }
  EXPECT_EQ(model.engine().in_flight(), 3U);
  static_cast<void>(model.engine().step());
  EXPECT_EQ(model.engine().in_flight(), 0U);
  EXPECT_TRUE(model.kv().prefetched().empty()) << "no line goes on after its last step";
  EXPECT_EQ(model.kv().prefetched().use_so_far().unused, 0U);
  EXPECT_GT(model.kv().prefetched().use_so_far().brought, 0U);
}

// A line has to make room between two steps, in either way: what was fetched for it is not read,
// and counted; its host blocks are other lines' at once.
TEST_P(Prefetch, ALineThatIsPreemptedInBetweenLeavesItUnread) {
  const std::vector<Request> requests = some_requests(4, 40);
  const auto reference = expected(requests);
  for (const PreemptMode mode : {PreemptMode::kSwap, PreemptMode::kDrop}) {
    std::int64_t preempted = 0;
    TinyModelOptions options = options_of(std::make_shared<Meddling>([&](PlacementStep& step) {
                                            if (step.number() % 9 != 8) return false;
                                            if (!preempt_first(step, mode)) return false;
                                            ++preempted;
                                            return true;
                                          }),
                                          GetParam());
    // Slow enough that the first line's blocks are on their way still.
    options.link = EmulatedLink{.bytes_per_second = 5e6, .seconds_per_record = 0.0};
    TinyModel model(options, three_layers());
    expect_equal(run_all(model.engine(), requests), reference);
    EXPECT_GT(preempted, 2);
    const PrefetchedBlocks::Use use = model.kv().prefetched().use_so_far();
    EXPECT_GT(use.unused, 0U);
    EXPECT_LT(4 * use.unused, use.brought);
    model.kv().book().check();
    EXPECT_FALSE(model.kv().book().pool().moving());
    const KvStep::BytesRead read = model.model().attention().kv_step().bytes_read();
    model.transfers().drain();
    EXPECT_EQ(read.blocks + model.engine().placement().stats().reloaded_blocks *
                                model.kv().memory().shape().host_block_bytes(),
              to_device(model))
        << "what nobody read was moved all the same";
  }
}

// Blocks that come back to the device are read on the host while they do.
TEST_P(Prefetch, BlocksThatReturnAreReadWhereTheyWere) {
  const std::vector<Request> requests = some_requests(3, 40);
  const auto reference = expected(requests);
  std::int64_t reloaded = 0;
  TinyModelOptions options = options_of(std::make_shared<Meddling>([&](PlacementStep& step) {
                                          if (step.number() % 7 != 6) return false;
                                          if (!load_first(step)) return false;
                                          ++reloaded;
                                          return true;
                                        }),
                                        GetParam());
  TinyModel model(options, three_layers());
  expect_equal(run_all(model.engine(), requests), reference);
  EXPECT_GT(reloaded, 2);
  EXPECT_GT(model.kv().prefetched().use_so_far().brought, 0U);
  EXPECT_EQ(model.kv().prefetched().use_so_far().unused, 0U);
}

// Whichever transfer fails, nothing hangs and nothing is left.
TEST_P(Prefetch, AFailureEndsTheJobAndNothingElse) {
  const std::vector<Request> requests = some_requests(3, 12);
  int failed = 0;
  for (int nth = 1; nth < 60; ++nth) {
    TinyModelOptions options = options_of(std::make_shared<AcceleratePolicy>(), GetParam());
    options.prefill_chunk = 200;
    TinyModel model(options, three_layers());
    model.transfers().fail_transfer(nth);
    try {
      static_cast<void>(run_all(model.engine(), requests));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), "E-DEV-TRANSFER");
      ++failed;
    }
  }
  EXPECT_GT(failed, 40);
}

TEST_P(Prefetch, WithoutPrefetchingThereIsNone) {
  TinyModelOptions options = options_of(offload_all(), GetParam());
  options.prefetch = false;
  TinyModel model(options, three_layers());
  static_cast<void>(run_all(model.engine(), some_requests(3, 12)));
  EXPECT_EQ(model.kv().prefetched().use_so_far().brought, 0U);
  EXPECT_GT(to_device(model), 0U);
}

INSTANTIATE_TEST_SUITE_P(Kv, Prefetch, testing::Bool(),
                         [](const auto& param) { return param.param ? "int8" : "fp16"; });

}  // namespace
}  // namespace triphase
