// A second, slow model of what the baselines decide, from what their headers say: vllm, flexgen,
// accelerate, zero and device-only. It counts blocks of plain requests, which share none; the real
// policies must take the same actions in every step.
//
//   vllm         first come, first served while the prompt fits and a hundredth of the device stays
//                free; whoever came last makes room; who made room goes first, with all it had.
//   flexgen      nothing is admitted before the whole block has ended; a share of it, rounded down,
//                is at home on the device, the rest on the host, each at its longest.
//   accelerate   everybody at home on the host, as far as it holds them at their longest; without
//                a host all on the device.
//   zero         everybody on the device at their longest; its release of 2023 as accelerate.
//   device-only  as zero.
//
// At home on the host: full blocks leave before the next step. The device then has two blocks for
// each such request, and those of a prefill chunk.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "scheduler/placement/accelerate_policy.h"
#include "scheduler/placement/device_only_policy.h"
#include "scheduler/placement/flexgen_policy.h"
#include "scheduler/placement/vllm_policy.h"
#include "scheduler/placement/zero_policy.h"
#include "tests/unit/scheduler/placement_world.h"

namespace triphase {
namespace {

struct Counted {
  PlacedRequest request;
  std::int64_t device = 0, host = 0;  // blocks it has
  std::int64_t device_reserved = 0, host_reserved = 0;
};

class Oracle {
 public:
  Oracle(const PlacementStep& step, std::vector<WaitingRequest> waiting)
      : limits_(step.limits()),
        preempted_(step.preempted()),
        waiting_(std::move(waiting)),
        prefill_left_(limits_.prefill_chunk) {
    for (const PlacedRequest& request : step.running()) {
      running_.push_back(count(step, request));
      if (request.prefilling()) prefill_left_ -= request.step_tokens;
    }
    for (const PlacedRequest& request : step.preempted()) {
      if (request.mode == PreemptMode::kSwap) swapped_ += count(step, request).host;
    }
  }

  std::string vllm(PreemptMode mode) {
    while (running_.size() > 1 && spare() < 0) {
      const Counted last = running_.back();
      const bool swaps = mode == PreemptMode::kSwap && last.device + last.host <= host_free();
      say("preempt", last.request.id.value, swaps ? 1 : 0);
      running_.pop_back();
      if (swaps) swapped_ += last.device + last.host;
    }
    if (!text_.empty()) return text_;
    for (const PlacedRequest& request : preempted_) {
      const bool swapped = request.mode == PreemptMode::kSwap;
      const std::int64_t next = std::max(request.prefill_tokens, request.context + 1);
      if (full() || spare() < blocks(next) + kept()) return text_;
      const std::int64_t had = blocks(request.context);
      say("resume", static_cast<std::int64_t>(request.admission), swapped ? had : blocks(next));
      begin({.request = request,
             .device = swapped ? had : 0,
             .device_reserved = swapped ? 0 : blocks(next)});
      if (swapped) swapped_ -= had;
    }
    for (const WaitingRequest& next : waiting_) {
      if (full() || spare() < blocks(next.prompt_tokens) + kept()) break;
      admit(next, blocks(next.prompt_tokens), 0);
    }
    return text_;
  }

  std::string on_device() {
    for (const WaitingRequest& next : waiting_) {
      if (full() || spare() < blocks(next.max_tokens)) break;
      admit(next, blocks(next.max_tokens), 0);
    }
    return text_;
  }

  std::string on_host() {
    leave_device([](const Counted&) { return true; });
    for (const WaitingRequest& next : waiting_) {
      const auto homes = static_cast<std::int64_t>(running_.size()) + 1;
      if (full() || !passes(homes, 0) || spare() < first_step(next) ||
          blocks(next.max_tokens) > host_free()) {
        break;
      }
      admit(next, 0, blocks(next.max_tokens));
    }
    return text_;
  }

  std::string flexgen(const FlexGenOptions& options) {
    leave_device([](const Counted& each) { return each.host_reserved > 0; });
    if (!running_.empty()) return text_;
    auto block = static_cast<std::int64_t>(waiting_.size());
    block = std::min(block, limits_.batch_size);
    if (options.gpu_batch > 0) block = std::min(block, options.gpu_batch * options.num_batches);
    // Ten times 0.3 is three.
    const double share = options.device_kv_share * static_cast<double>(block) + 1e-9;
    std::int64_t on_device = 0, homes_on_device = 0, homes_on_host = 0;
    for (std::int64_t index = 0; index < block; ++index) {
      const WaitingRequest& next = waiting_[static_cast<std::size_t>(index)];
      const std::int64_t longest = blocks(next.max_tokens);
      const bool device_fits = passes(homes_on_host, on_device + longest) && spare() >= longest;
      const bool host_fits = limits_.host_blocks > 0 && passes(homes_on_host + 1, on_device) &&
                             spare() >= first_step(next) && longest <= host_free();
      const bool wants_device = static_cast<double>(index + 1) <= share;
      // A job must not stop because its first request fits elsewhere alone.
      const bool either = index == 0 && (device_fits || host_fits);
      if (!either && !(wants_device ? device_fits : host_fits)) break;
      const bool device = wants_device ? device_fits : !host_fits;
      if (device) {
        ++homes_on_device;
        on_device += longest;
      } else {
        ++homes_on_host;
      }
      admit(next, device ? longest : 0, device ? 0 : longest);
    }
    return text_;
  }

  // The real decision in the same words.
  static std::string text_of(const PlacementStep& step) {
    Oracle words(step, {});
    for (const PlacementAction& action : step.actions()) {
      if (const auto* preempt = std::get_if<Preempt>(&action)) {
        words.say("preempt", preempt->sequence.value, preempt->mode == PreemptMode::kSwap ? 1 : 0);
      } else if (const auto* resume = std::get_if<Resume>(&action)) {
        words.say("resume", static_cast<std::int64_t>(resume->admission), resume->device_blocks);
      } else if (const auto* offload = std::get_if<Offload>(&action)) {
        words.say("offload", offload->sequence.value, offload->end_block - offload->first_block);
      } else if (const auto* admit = std::get_if<Admit>(&action)) {
        words.say("admit", admit->device_blocks, admit->host_blocks);
      } else {
        words.say(to_text(action).c_str(), 0, 0);
      }
    }
    return words.text_;
  }

 private:
  static Counted count(const PlacementStep& step, const PlacedRequest& request) {
    const KvBlockTable table = step.book().table(request.id);
    return {request, table.on_device(), table.on_host(),
            step.book().sequence(request.id).reserved_device,
            step.book().sequence(request.id).reserved_host};
  }

  [[nodiscard]] std::int64_t blocks(std::int64_t tokens) const {
    return (tokens + limits_.block_tokens - 1) / limits_.block_tokens;
  }
  [[nodiscard]] bool full() const {
    return static_cast<std::int64_t>(running_.size()) >= limits_.batch_size;
  }
  // A hundredth of the device, rounded up; nothing while nobody runs.
  [[nodiscard]] std::int64_t kept() const {
    return running_.empty() ? 0 : (limits_.device_blocks + 99) / 100;
  }
  // What the step's growth and reservations leave of the device.
  [[nodiscard]] std::int64_t spare() const {
    std::int64_t free = limits_.device_blocks;
    for (const Counted& each : running_) {
      const std::int64_t then = blocks(each.request.context + each.request.step_tokens);
      free -= each.device + std::max(then - each.device - each.host, each.device_reserved);
    }
    return free;
  }
  [[nodiscard]] std::int64_t host_free() const {
    std::int64_t free = limits_.host_blocks - swapped_;
    for (const Counted& each : running_) free -= each.host + each.host_reserved;
    return free;
  }
  // Whether so many requests at home on the host pass through the device beside `others` blocks.
  [[nodiscard]] bool passes(std::int64_t homes, std::int64_t others) const {
    const std::int64_t passing = homes == 0 ? 0 : 2 * homes + blocks(limits_.prefill_chunk);
    return others + passing <= limits_.device_blocks;
  }
  [[nodiscard]] std::int64_t first_step(const WaitingRequest& next) const {
    return blocks(std::min(next.prompt_tokens, prefill_left_));
  }

  template <class Home>
  void leave_device(const Home& at_home_on_host) {
    for (Counted& each : running_) {
      if (!at_home_on_host(each)) continue;
      std::int64_t left = 0;
      while ((each.host + 1) * limits_.block_tokens <= each.request.context) {
        ++each.host;
        --each.device;
        --each.host_reserved;
        ++left;
      }
      if (left > 0) say("offload", each.request.id.value, left);
    }
  }

  void admit(const WaitingRequest& next, std::int64_t device, std::int64_t host) {
    say("admit", device, host);
    begin({.request = {.prompt_tokens = next.prompt_tokens,
                       .prefill_tokens = next.prompt_tokens,
                       .max_tokens = next.max_tokens},
           .device_reserved = device,
           .host_reserved = host});
  }
  void begin(Counted next) {
    next.request.step_tokens = 1;
    if (next.request.prefilling()) {
      const std::int64_t left = next.request.prefill_tokens - next.request.context;
      next.request.step_tokens = std::min(left, prefill_left_);
      prefill_left_ -= next.request.step_tokens;
    }
    running_.push_back(next);
  }

  void say(const char* what, std::int64_t a, std::int64_t b) {
    text_ += std::string(what) + " " + std::to_string(a) + " " + std::to_string(b) + "; ";
  }

  PlacementLimits limits_;
  std::vector<PlacedRequest> preempted_;
  std::vector<WaitingRequest> waiting_;
  std::int64_t prefill_left_;
  std::int64_t swapped_ = 0;  // host blocks of preempted requests
  std::vector<Counted> running_;
  std::string text_;
};

struct Job {
  PlacementLimits limits;
  std::vector<WorldLine> lines;
};

class BaselineOracle : public ::testing::Test {
 protected:
  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }

  // Lines that the policy can hold alone.
  void make_job(const PlacementPolicy& policy, bool host) {
    PlacementLimits& limits = job_.limits;
    limits = {.layers = 1,
              .block_tokens = std::int64_t{1} << pick(0, 3),
              .device_blocks = pick(0, 3) == 0 ? pick(100, 300) : pick(4, 40),
              .host_blocks = host ? pick(1, 80) : 0,
              .batch_size = pick(1, 10)};
    limits.prefill_chunk = pick(1, 3) * limits.block_tokens + pick(0, 3);
    job_.lines.clear();
    const std::int64_t longest = std::min<std::int64_t>(policy.longest_request(limits), 100);
    for (std::int64_t line = pick(1, 24); line > 0 && longest >= 2; --line) {
      WorldLine entry;
      entry.prompt = pick(1, longest - 1);
      entry.max_tokens = pick(entry.prompt + 1, longest);
      entry.ends_at = pick(entry.prompt + 1, entry.max_tokens);
      job_.lines.push_back(entry);
    }
  }

  // Runs the job; in each step `expected(oracle)` are the policy's actions. How many steps had an
  // action of which word is counted.
  template <class Expected>
  void run(const PlacementPolicy& policy, const Expected& expected) {
    PlacementWorld world(job_.limits, job_.lines);
    while (!world.finished()) {
      KvBook book = world.book();
      PlacementStep step = world.view(book);
      Oracle oracle(step, world.waiting());
      const std::string slow = expected(oracle);
      policy.decide(step);
      const std::string real = Oracle::text_of(step);
      ASSERT_EQ(real, slow) << "step " << step.number() << " of " << job_.limits.device_blocks
                            << " and " << job_.limits.host_blocks << " blocks of "
                            << job_.limits.block_tokens;
      for (std::size_t word = 0; word < std::size(kWords); ++word) {
        if (real.find(kWords[word]) != std::string::npos) ++steps_with_[word];
      }
      world.step(policy);
    }
  }

  [[nodiscard]] std::int64_t steps_with(const std::string& word) const {
    return steps_with_[static_cast<std::size_t>(std::ranges::find(kWords, word) -
                                                std::begin(kWords))];
  }

  static constexpr const char* kWords[] = {"admit", "offload", "preempt", "resume"};
  std::mt19937 random_;
  Job job_;
  std::int64_t steps_with_[std::size(kWords)] = {};
};

TEST_F(BaselineOracle, Vllm) {
  for (const PreemptMode mode : {PreemptMode::kSwap, PreemptMode::kDrop}) {
    const VllmPolicy policy({.preemption = mode});
    for (unsigned seed = 0; seed < 800; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      random_.seed(seed);
      make_job(policy, mode == PreemptMode::kSwap);
      run(policy, [&](Oracle& oracle) { return oracle.vllm(mode); });
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(steps_with("admit"), 1000);
  EXPECT_GT(steps_with("preempt"), 300);
  EXPECT_GT(steps_with("resume"), 300);
}

TEST_F(BaselineOracle, FlexGen) {
  for (unsigned seed = 0; seed < 800; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_.seed(seed);
    const double share = pick(0, 3) == 0 ? 0.3 : static_cast<double>(pick(0, 8)) / 8.0;
    const FlexGenOptions options{
        .device_kv_share = share, .gpu_batch = pick(0, 5), .num_batches = pick(1, 3)};
    const FlexGenPolicy policy(options);
    make_job(policy, share < 1.0);
    run(policy, [&](Oracle& oracle) { return oracle.flexgen(options); });
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(steps_with("admit"), 1000);
  EXPECT_GT(steps_with("offload"), 2500);
}

TEST_F(BaselineOracle, AccelerateAndZeroOf2023) {
  const AcceleratePolicy accelerate;
  const ZeroPolicy zero({.mode = ZeroMode::k2023});
  for (unsigned seed = 0; seed < 800; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_.seed(seed);
    const PlacementPolicy& policy =
        seed % 2 == 0 ? static_cast<const PlacementPolicy&>(accelerate) : zero;
    const bool host = seed % 2 == 1 || seed % 4 == 0;
    make_job(policy, host);
    run(policy, [&](Oracle& oracle) { return host ? oracle.on_host() : oracle.on_device(); });
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(steps_with("admit"), 1000);
  EXPECT_GT(steps_with("offload"), 2500);
}

TEST_F(BaselineOracle, ZeroAndDeviceOnly) {
  const DeviceOnlyPolicy device_only;
  const ZeroPolicy zero;
  for (unsigned seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_.seed(seed);
    const PlacementPolicy& policy =
        seed % 2 == 0 ? static_cast<const PlacementPolicy&>(device_only) : zero;
    make_job(policy, /*host=*/false);
    run(policy, [&](Oracle& oracle) { return oracle.on_device(); });
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(steps_with("admit"), 1000);
}

}  // namespace
}  // namespace triphase
