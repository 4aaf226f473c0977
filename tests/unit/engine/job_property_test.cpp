// Invariants of placement on random jobs: neither placement, budget, phase switches nor
// neighbours change an answer, nothing is over-committed or lost, and a failure in the middle of a
// transfer, a refused allocation or a cancelled job leaves nothing behind and nobody waiting. A
// failing job is made as small as it goes before it is printed.

#include <gtest/gtest.h>

#include <exception>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "memory/host_device.h"
#include "tests/support/engine_runs.h"
#include "tests/support/shrink.h"
#include "tests/unit/engine/random_job.h"

namespace triphase {
namespace {

// Host memory that refuses one allocation, and knows what has not been given back.
class RefusingDevice final : public Device {
 public:
  // Refuses the allocation after so many; -1: none.
  explicit RefusingDevice(std::int64_t granted = -1) : granted_(granted) {}

  [[nodiscard]] std::string_view name() const override { return device_.name(); }
  [[nodiscard]] bool runs_at_once() const override { return device_.runs_at_once(); }
  [[nodiscard]] void* allocate(std::size_t bytes) override {
    if (asked_++ == granted_) {
      throw Error(ErrorRole::kResources, "E-MEM-ALLOC", "host memory").found("a test's refusal");
    }
    void* data = device_.allocate(bytes);
    live_.emplace(data, bytes);
    return data;
  }
  void release(void* data, std::size_t bytes) noexcept override {
    const auto at = live_.find(data);
    if (at == live_.end() || at->second != bytes) {
      ++wrong_;
      return;
    }
    live_.erase(at);
    device_.release(data, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    device_.copy(to, from, bytes, stream);
  }
  [[nodiscard]] void* allocate_host(std::size_t bytes) override {
    return device_.allocate_host(bytes);
  }
  void release_host(void* data, std::size_t bytes) noexcept override {
    device_.release_host(data, bytes);
  }
  [[nodiscard]] std::unique_ptr<Stream> make_stream() override { return device_.make_stream(); }
  [[nodiscard]] std::unique_ptr<Event> make_event() override { return device_.make_event(); }

  [[nodiscard]] std::int64_t asked() const { return asked_; }
  // Blocks that nobody gave back, and releases of what was not given.
  [[nodiscard]] std::size_t live() const { return live_.size(); }
  [[nodiscard]] std::int64_t wrong_releases() const { return wrong_; }

 private:
  HostDevice device_;
  std::int64_t granted_;
  std::int64_t asked_ = 0;
  std::int64_t wrong_ = 0;
  std::unordered_map<void*, std::size_t> live_;
};

#if defined(__SANITIZE_ADDRESS__)
constexpr unsigned kJobsPerPart = 120;
#else
constexpr unsigned kJobsPerPart = 400;
#endif
constexpr unsigned kParts = 6;

using Results = std::map<std::uint64_t, Completion>;

// Empty: equal bit for bit.
std::string difference(const Results& expected, const Results& found) {
  if (expected.size() != found.size()) return "another number of lines";
  for (const auto& [index, left] : expected) {
    const auto at = found.find(index);
    if (at == found.end()) return "line " + std::to_string(index) + " is missing";
    const Completion& right = at->second;
    const std::string line = "line " + std::to_string(index);
    if (left.error.has_value() || right.error.has_value()) return line + " has an error";
    if (left.tokens != right.tokens) return line + " has other tokens";
    if (left.logprobs.size() != right.logprobs.size()) return line + " has other log-probabilities";
    for (std::size_t i = 0; i < left.logprobs.size(); ++i) {
      if (left.logprobs[i].logprob != right.logprobs[i].logprob)
        return line + " has another log-probability at " + std::to_string(i);
    }
  }
  return "";
}

// What a job did, over all jobs: a test of jobs in which nothing happens would mean nothing.
struct Coverage {
  std::uint64_t offloaded = 0, preempted = 0, shared = 0, recomputed = 0;
  std::uint64_t on_host = 0;  // rows attended there
  std::int64_t sliding = 0;   // jobs with windows, a sparse method and KV on the host
  std::int64_t apart = 0;     // jobs that offload or share, and whose windows keep what they reach
  std::int64_t faults = 0, cancelled = 0, refused = 0;
};

std::string problem_of(const RandomJob& job, Coverage* coverage) {
  const std::vector<Request> requests = requests_of(job);
  if (requests.empty()) return "";
  try {
    TinyModel alone(alone_options_of(job), config_of(job));
    const Results expected = run_all(alone.engine(), requests);
    TinyModel model(options_of(job), config_of(job));
    const Results found = run_all(model.engine(), requests);
    if (std::string problem = difference(expected, found); !problem.empty()) return problem;
    model.kv().book().check();
    const KvWindowShape& windows = model.kv().book().window_shape();
    const std::int64_t store =
        windows.blocks * window_store(windows, model.kv().memory().shape().block_tokens);
    if (model.kv().book().tiers().device.reserved() != store) return "pages stay reserved";
    if (model.kv().book().pool().moving()) return "something still moves";
    if (job[Knob::kInt8] != 0 &&
        model.kv().partial_pages().free_pages() != model.kv().partial_pages().pages())
      return "partial pages are lost";
    if (coverage != nullptr) {
      const PlacementStats& stats = model.engine().placement().stats();
      coverage->offloaded += stats.offloaded_blocks;
      coverage->preempted += stats.swaps + stats.drops;
      coverage->shared += stats.shared_prompt_tokens;
      coverage->recomputed += stats.discarded_blocks;
      const bool chooses = !config_of(job).sliding_window.empty() && job[Knob::kMethod] != 0;
      coverage->sliding += chooses && stats.offloaded_blocks > 0 ? 1 : 0;
      const bool used = stats.offloaded_blocks + stats.shared_prompt_tokens > 0;
      coverage->apart += windows.tokens > 0 && used ? 1 : 0;
      if (const HostAttention* host = model.model().attention().host_attention()) {
        coverage->on_host += host->use().rows;
      }
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// The job ends in the middle: by its nth transfer failing, or by nobody asking for more steps.
std::string problem_of_ending(const RandomJob& job, unsigned seed, Coverage* coverage) {
  const std::vector<Request> requests = requests_of(job);
  if (requests.empty()) return "";
  std::mt19937 random(seed);
  const bool fault = random() % 2 == 0;
  try {
    TinyModel model(options_of(job), config_of(job));
    if (fault) model.transfers().fail_transfer(1 + static_cast<int>(random() % 30));
    const auto steps = static_cast<int>(random() % 12);
    for (const Request& request : requests) {
      if (model.engine().has_room()) model.engine().submit(request);
    }
    for (int step = 0; step < steps && model.engine().in_flight() > 0; ++step) {
      static_cast<void>(model.engine().step());
    }
    if (coverage != nullptr && model.engine().in_flight() > 0) ++coverage->cancelled;
  } catch (const Error& error) {
    if (!fault || error.code() != "E-DEV-TRANSFER") return error.what();
    if (coverage != nullptr) ++coverage->faults;
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// One of the job's allocations is refused.
std::string problem_of_refusal(const RandomJob& job, unsigned seed, Coverage* coverage) {
  const std::vector<Request> requests = requests_of(job);
  if (requests.empty()) return "";
  const auto problem_with = [&](RefusingDevice& device) -> std::string {
    TinyModelOptions options = options_of(job);
    options.device = &device;
    try {
      TinyModel model(options, config_of(job));
      static_cast<void>(run_all(model.engine(), requests));
    } catch (const Error& error) {
      if (error.code() != "E-MEM-ALLOC") return error.what();
      if (coverage != nullptr) ++coverage->refused;
    } catch (const std::exception& error) {
      return error.what();
    }
    if (device.live() != 0) return std::to_string(device.live()) + " allocations are kept";
    return device.wrong_releases() == 0 ? "" : "something is released twice";
  };
  RefusingDevice all;
  if (std::string problem = problem_with(all); !problem.empty()) return problem;
  std::mt19937 random(seed);
  RefusingDevice some(static_cast<std::int64_t>(random() % static_cast<unsigned>(all.asked())));
  return problem_with(some);
}

void fail_small(const RandomJob& job, unsigned seed,
                const std::function<std::string(const RandomJob&)>& problem) {
  const RandomJob small = testing_support::shrink(
      job, simpler_jobs, [&](const RandomJob& one) { return !problem(one).empty(); }, 300);
  FAIL() << "seed " << seed << ": " << problem(small) << "\n  " << to_text(small) << "\n  was "
         << to_text(job);
}

class RandomJobs : public testing::TestWithParam<unsigned> {};

TEST_P(RandomJobs, PlacementAndNeighboursNeverChangeAnAnswer) {
  Coverage coverage;
  for (unsigned seed = GetParam() * kJobsPerPart; seed < (GetParam() + 1) * kJobsPerPart; ++seed) {
    std::mt19937 random(seed);
    const RandomJob job = random_job(random);
    if (problem_of(job, &coverage).empty()) continue;
    fail_small(job, seed, [](const RandomJob& one) { return problem_of(one, nullptr); });
    return;
  }
  if (kJobsPerPart < 200) return;  // too few to say
  EXPECT_GT(coverage.offloaded, kJobsPerPart / 2);
  EXPECT_GT(coverage.shared, kJobsPerPart / 5);
  EXPECT_GT(coverage.preempted, 0U);
  EXPECT_GT(coverage.recomputed, 0U);
  EXPECT_GT(coverage.sliding, 5);
  EXPECT_GT(coverage.apart, 0);
}

// The same promise in cases that random jobs seldom reach: requests swapped again and again, and
// rows attended on the host.
TEST(SwapsAndHostAttention, NeverChangeAnAnswer) {
  Coverage swapping;
  Coverage attending;
  for (unsigned seed = 0; seed < 80; ++seed) {
    std::mt19937 random(seed);
    RandomJob job = random_job(random);
    const bool swaps = seed % 2 == 0;
    job[Knob::kPolicy] =
        static_cast<std::int64_t>(swaps ? JobPolicy::kVllmSwap : JobPolicy::kFlexGen);
    if (!swaps) job[Knob::kInt8] = job[Knob::kMethod] = 0;
    const std::int64_t whole = (96 + job[Knob::kBlockTokens] - 1) / job[Knob::kBlockTokens];
    job[Knob::kBatch] = std::max<std::int64_t>(job[Knob::kBatch], 2);
    job[Knob::kDeviceBlocks] = swaps ? whole : whole * job[Knob::kBatch];
    job[Knob::kHostBlocks] = whole * job[Knob::kBatch];
    job[Knob::kStagingBlocks] = 2 * whole;
    job[Knob::kAlpha] = swaps ? 100 : 10 * (seed % 6);
    job[Knob::kBeta] = 25;
    // Long completions outgrow what their prompts left free.
    for (JobLine& line : job.lines) line.output = swaps ? 36 : line.output;
    if (problem_of(job, swaps ? &swapping : &attending).empty() &&
        problem_of_ending(job, seed, nullptr).empty())
      continue;
    fail_small(job, seed, [seed](const RandomJob& one) {
      const std::string problem = problem_of(one, nullptr);
      return problem.empty() ? problem_of_ending(one, seed, nullptr) : problem;
    });
    return;
  }
  EXPECT_GT(swapping.preempted, 20U);
  EXPECT_GT(attending.on_host, 100U);
}

// And in jobs whose layers with windows keep KV as far back as these reach.
TEST(WindowsApart, NeverChangeAnAnswer) {
  Coverage coverage;
  constexpr std::array kPolicies = {JobPolicy::kTriphase, JobPolicy::kDeviceOnly,
                                    JobPolicy::kTriphase, JobPolicy::kVllmDrop};
  for (unsigned seed = 0; seed < kJobsPerPart; ++seed) {
    std::mt19937 random(seed);
    RandomJob job = random_job(random);
    const JobPolicy policy = kPolicies[seed % kPolicies.size()];
    job[Knob::kPolicy] = static_cast<std::int64_t>(policy);
    job[Knob::kLayers] = 3;
    job[Knob::kStreamedLayers] = 0;
    job[Knob::kApart] = 1;
    job[Knob::kSliding] = 1 + seed % 29;
    job[Knob::kSlidingLayers] = 1 + (seed / 4) % 6;
    const std::int64_t whole = (96 + job[Knob::kBlockTokens] - 1) / job[Knob::kBlockTokens];
    const bool preempts = policy == JobPolicy::kVllmDrop;
    job[Knob::kBatch] = std::max<std::int64_t>(job[Knob::kBatch], 3);
    job[Knob::kDeviceBlocks] = preempts ? 3 * whole : whole * (3 + seed % 4);
    for (JobLine& line : job.lines) line.output = preempts ? 36 : line.output;
    if (seed % 2 == 0) {
      job[Knob::kHostBlocks] = whole * (1 + seed / 8 % 3);
      job[Knob::kStagingBlocks] = 2 * whole;
    }
    if (problem_of(job, &coverage).empty() && problem_of_ending(job, seed, nullptr).empty()) {
      continue;
    }
    fail_small(job, seed, [seed](const RandomJob& one) {
      const std::string problem = problem_of(one, nullptr);
      return problem.empty() ? problem_of_ending(one, seed, nullptr) : problem;
    });
    return;
  }
  EXPECT_GT(coverage.apart, kJobsPerPart / 5);
  EXPECT_GT(coverage.offloaded, kJobsPerPart / 4);
  EXPECT_GT(coverage.preempted, 0U);
  EXPECT_GT(coverage.recomputed, 0U);
}

TEST_P(RandomJobs, EndInTheMiddleWithoutATrace) {
  Coverage coverage;
  for (unsigned seed = GetParam() * kJobsPerPart; seed < (GetParam() + 1) * kJobsPerPart; ++seed) {
    std::mt19937 random(seed);
    const RandomJob job = random_job(random);
    if (problem_of_ending(job, seed, &coverage).empty()) continue;
    fail_small(job, seed,
               [&](const RandomJob& one) { return problem_of_ending(one, seed, nullptr); });
    return;
  }
  if (kJobsPerPart < 200) return;  // too few to say
  EXPECT_GT(coverage.faults, 0);
  EXPECT_GT(coverage.cancelled, 0);
}

TEST_P(RandomJobs, GiveEverythingBackWhenAnAllocationIsRefused) {
  Coverage coverage;
  for (unsigned seed = GetParam() * kJobsPerPart; seed < (GetParam() + 1) * kJobsPerPart;
       seed += 10) {
    std::mt19937 random(seed);
    const RandomJob job = random_job(random);
    if (problem_of_refusal(job, seed, &coverage).empty()) continue;
    fail_small(job, seed,
               [&](const RandomJob& one) { return problem_of_refusal(one, seed, nullptr); });
    return;
  }
  if (kJobsPerPart < 200) return;  // too few to say
  EXPECT_GT(coverage.refused, kJobsPerPart / 20);
}

INSTANTIATE_TEST_SUITE_P(Parts, RandomJobs, testing::Range(0U, kParts));

TEST(Shrink, FindsTheSmallestJobThatStillFails) {
  const auto fails = [](const RandomJob& job) {
    return job.lines.size() >= 2 && job.lines.back().prompt >= 7 && job[Knob::kInt8] == 1 &&
           job[Knob::kBatch] >= 3;
  };
  int shrunk = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const RandomJob job = random_job(random);
    if (!fails(job)) continue;
    ++shrunk;
    const RandomJob small = testing_support::shrink(job, simpler_jobs, fails);
    EXPECT_EQ(to_text(small),
              "batch=3 int8=1 lines (prompt+output, shared, sampled): 1+1,0,0 7+1,0,0");
  }
  EXPECT_GT(shrunk, 10);
}

TEST(Shrink, StopsAfterSoManyTries) {
  int tried = 0;
  const int left = testing_support::shrink(
      1000, [](int value) { return std::vector<int>{value - 1}; },
      [&](int) {
        ++tried;
        return true;
      },
      10);
  EXPECT_EQ(tried, 10);
  EXPECT_EQ(left, 990);
}

}  // namespace
}  // namespace triphase
