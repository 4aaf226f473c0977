// A second, slow model of what `triphase` decides, from what DESIGN and the policy's header say. It
// moves one block at a time over plain letters; the real policy must end every step in the same
// state. No request shares blocks here.
//
//   schedule   from p1 on a share alpha of the context (or all but device_tokens) is on the host:
//              the oldest full blocks, none that overlaps the local window. From p2 on a share beta
//              of these is recomputable, as far as X was saved.
//   pressure   while the step's growth does not fit, the request with the most movable blocks gives
//              its part of what is missing, at most; the window goes last.
//   preempting the newest request, where the host is full as well: by swap if it fits there.
//   reloads    only in a step without moves, and only while a block for each request and a prefill
//              chunk's blocks stay free: nothing goes back and forth.
//   admission  in order, while all at their longest fit both tiers, beside what passes through.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "scheduler/placement/triphase_policy.h"
#include "scheduler/placement/vllm_policy.h"
#include "tests/unit/scheduler/placement_world.h"

namespace triphase {
namespace {

constexpr char kDevice = 'd', kHost = 'h', kDropped = 'x';

struct OracleRequest {
  PlacedRequest request;
  std::string blocks;  // the oldest first
  std::int64_t with_inputs = 0;
  std::int64_t reserved = 0;  // on the device, by another policy

  [[nodiscard]] std::int64_t count(char place) const { return std::ranges::count(blocks, place); }
  [[nodiscard]] std::int64_t away() const { return count(kHost) + count(kDropped); }
  // Its oldest block at `from` (or its newest) goes elsewhere.
  void move_oldest(char from, char to) { blocks[blocks.find(from)] = to; }
  void move_newest(char from, char to) { blocks[blocks.rfind(from)] = to; }
};

class Oracle {
 public:
  Oracle(const PhaseSchedule& schedule, const PlacementStep& step)
      : schedule_(schedule), limits_(step.limits()), prefill_left_(limits_.prefill_chunk) {
    inputs_free_ = step.book().tiers().inputs.free();
    for (const PlacedRequest& request : step.running()) {
      running_.push_back(known(step, request));
      if (request.prefilling()) prefill_left_ -= request.step_tokens;
    }
    for (const PlacedRequest& request : step.preempted()) {
      preempted_.push_back(request.mode == PreemptMode::kSwap ? known(step, request)
                                                              : OracleRequest{request});
    }
  }

  // What is left to compare: every running request's blocks, and who came and went.
  [[nodiscard]] std::string decide(const std::vector<WaitingRequest>& waiting) {
    follow_schedule();
    relieve();
    while (running_.size() > 1 && spare() < 0) preempt_newest();
    if (!moved_ && events_.empty()) reload();
    if (events_.empty() && resume_all()) admit(waiting);
    return text();
  }

  // The same of the real decision.
  static std::string text_of(const PlacementStep& step) {
    std::string text;
    for (const PlacementAction& action : step.actions()) {
      if (std::holds_alternative<Preempt>(action)) {
        text += std::get<Preempt>(action).mode == PreemptMode::kSwap ? "swap " : "drop ";
      } else if (const auto* resume = std::get_if<Resume>(&action)) {
        text += "resume" + std::to_string(resume->device_blocks) + " ";
      } else if (const auto* admit = std::get_if<Admit>(&action)) {
        text += "admit" + std::to_string(admit->input_blocks) + " ";
      }
    }
    for (const PlacedRequest& request : step.running()) {
      text += "[" + known(step, request).blocks + "]";
    }
    return text;
  }

 private:
  static OracleRequest known(const PlacementStep& step, const PlacedRequest& request) {
    const KvBlockTable table = step.book().table(request.id);
    OracleRequest result{request, "", table.with_inputs(),
                         step.book().sequence(request.id).reserved_device};
    result.blocks.append(static_cast<std::size_t>(table.recomputable()), kDropped);
    result.blocks.append(static_cast<std::size_t>(table.on_host()), kHost);
    result.blocks.append(static_cast<std::size_t>(table.on_device()), kDevice);
    return result;
  }

  [[nodiscard]] std::int64_t held(char place) const {
    std::int64_t sum = 0;
    for (const auto* list : {&running_, &preempted_}) {
      for (const OracleRequest& each : *list) sum += each.count(place);
    }
    return sum;
  }
  [[nodiscard]] std::int64_t host_free() const { return limits_.host_blocks - held(kHost); }
  // What the step's growth leaves of the device.
  [[nodiscard]] std::int64_t spare() const {
    std::int64_t free = limits_.device_blocks - held(kDevice);
    for (const OracleRequest& each : running_) {
      const std::int64_t grown =
          limits_.blocks_for(each.request.context + each.request.step_tokens) -
          static_cast<std::int64_t>(each.blocks.size());
      free -= std::max(grown, each.reserved);
    }
    return free;
  }
  [[nodiscard]] std::int64_t prefill_blocks() const {
    return limits_.blocks_for(limits_.prefill_chunk);
  }

  // Full blocks that lie before the local window, or all full ones.
  [[nodiscard]] std::int64_t movable(const PlacedRequest& request, bool keep_window) const {
    const auto context = static_cast<double>(request.context);
    std::int64_t blocks = 0;
    for (std::int64_t end = limits_.block_tokens; end <= request.context;
         end += limits_.block_tokens) {
      const double younger = context - static_cast<double>(end);
      const bool in_window = younger < static_cast<double>(schedule_.window_tokens) ||
                             younger < std::floor(schedule_.window_share * context + 1e-9);
      if (!in_window || !keep_window) ++blocks;
    }
    return blocks;
  }
  [[nodiscard]] std::int64_t scheduled(const PlacedRequest& request) const {
    const std::int64_t generated = request.context - request.prompt_tokens;
    if (schedule_.p1 > 0 && generated < schedule_.p1 &&
        !(generated >= schedule_.p2 && schedule_.beta > 0.0)) {
      return 0;
    }
    const double tokens = schedule_.device_tokens > 0
                              ? static_cast<double>(request.context - schedule_.device_tokens)
                              : schedule_.alpha * static_cast<double>(request.context);
    std::int64_t blocks = 0;
    while (static_cast<double>((blocks + 1) * limits_.block_tokens) <= tokens + 1e-9) ++blocks;
    return std::min(blocks, movable(request, true));
  }

  bool offload_one(OracleRequest& from) {
    if (host_free() <= 0) return false;
    from.move_oldest(kDevice, kHost);
    return moved_ = true;
  }

  void follow_schedule() {
    if (limits_.host_blocks == 0) return;
    for (OracleRequest& each : running_) {
      while (each.away() < scheduled(each.request) && offload_one(each)) {
      }
      if (each.request.decode_step() < schedule_.p2) continue;
      const double wanted = schedule_.beta * static_cast<double>(each.away()) + 1e-9;
      while (static_cast<double>(each.count(kDropped) + 1) <= wanted &&
             each.count(kDropped) < each.with_inputs) {
        each.move_oldest(kHost, kDropped);
        moved_ = true;
      }
    }
  }

  void relieve() {
    if (limits_.host_blocks == 0) return;
    for (const bool keep_window : {true, false}) {
      while (spare() < 0 && host_free() > 0) {
        OracleRequest* most = nullptr;
        const auto left = [&](const OracleRequest& each) {
          return movable(each.request, keep_window) - each.away();
        };
        for (OracleRequest& each : running_) {
          if (left(each) > (most == nullptr ? 0 : left(*most))) most = &each;
        }
        if (most == nullptr) break;
        const auto requests = static_cast<std::int64_t>(running_.size());
        std::int64_t part = std::min((-spare() + requests - 1) / requests, left(*most));
        while (part-- > 0 && offload_one(*most)) {
        }
      }
    }
  }

  void preempt_newest() {
    OracleRequest newest = running_.back();
    running_.pop_back();
    if (newest.count(kDevice) <= host_free()) {
      std::ranges::replace(newest.blocks, kDevice, kHost);
      preempted_.push_back(newest);
      events_ += "swap ";
    } else {
      events_ += "drop ";
    }
    relieve();
  }

  void reload() {
    const auto requests = static_cast<std::int64_t>(running_.size());
    for (OracleRequest& each : running_) {
      while (each.away() > scheduled(each.request) && each.count(kHost) > 0 &&
             spare() > requests + prefill_blocks()) {
        each.move_newest(kHost, kDevice);
      }
    }
  }

  bool resume_all() {
    while (!preempted_.empty()) {
      OracleRequest next = preempted_.front();
      PlacedRequest& request = next.request;
      const std::int64_t left = request.prefill_tokens - request.context;
      const std::int64_t rows = std::max<std::int64_t>(std::min(left, prefill_left_), 1);
      std::int64_t room = spare() - (limits_.blocks_for(request.context + rows) -
                                     static_cast<std::int64_t>(next.blocks.size()));
      if (!running_.empty()) room -= prefill_blocks() + 2;
      const std::int64_t partial = request.context % limits_.block_tokens == 0 ? 0 : 1;
      const std::int64_t least = next.blocks.empty() ? 0 : partial;
      if (full() || room < least) return false;
      preempted_.erase(preempted_.begin());
      std::int64_t back = 0;
      for (; back < room && next.count(kHost) > 0; ++back) next.move_newest(kHost, kDevice);
      events_ += "resume" + std::to_string(back) + " ";
      begin(next);
    }
    return true;
  }

  void admit(const std::vector<WaitingRequest>& waiting) {
    for (const WaitingRequest& next : waiting) {
      std::int64_t longest = limits_.blocks_for(next.max_tokens);
      for (const OracleRequest& each : running_) {
        longest += limits_.blocks_for(each.request.max_tokens) - each.count(kDropped);
      }
      const std::int64_t passing =
          2 * (static_cast<std::int64_t>(running_.size()) + 1) + prefill_blocks();
      const bool fits = limits_.host_blocks == 0
                            ? longest <= limits_.device_blocks
                            : longest + passing <= limits_.device_blocks + limits_.host_blocks &&
                                  passing <= limits_.device_blocks;
      const std::int64_t first_step =
          limits_.blocks_for(std::min(next.prompt_tokens, prefill_left_));
      if (full() || (!running_.empty() && !fits) || first_step > spare()) return;
      const std::int64_t wanted =
          limits_.blocks_for(std::min(schedule_.input_tokens, next.max_tokens));
      const std::int64_t inputs = std::min(wanted, inputs_free_);
      inputs_free_ -= inputs;
      events_ += "admit" + std::to_string(inputs) + " ";
      OracleRequest request{{.prompt_tokens = next.prompt_tokens,
                             .prefill_tokens = next.prompt_tokens,
                             .max_tokens = next.max_tokens}};
      begin(request);
    }
  }

  [[nodiscard]] bool full() const {
    return static_cast<std::int64_t>(running_.size()) >= limits_.batch_size;
  }
  void begin(OracleRequest& next) {
    PlacedRequest& request = next.request;
    request.step_tokens = 1;
    if (request.prefilling()) {
      request.step_tokens = std::min(request.prefill_tokens - request.context, prefill_left_);
      prefill_left_ -= request.step_tokens;
    }
    running_.push_back(next);
  }

  [[nodiscard]] std::string text() const {
    std::string text = events_;
    for (const OracleRequest& each : running_) text += "[" + each.blocks + "]";
    return text;
  }

  PhaseSchedule schedule_;
  PlacementLimits limits_;
  std::int64_t prefill_left_;
  std::int64_t inputs_free_ = 0;
  std::vector<OracleRequest> running_, preempted_;
  bool moved_ = false;
  std::string events_;
};

struct Job {
  PlacementLimits limits;
  PhaseSchedule schedule;
  std::vector<WorldLine> lines;
};

Job random_job(std::mt19937& random, bool on_device) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  const auto real = [&] { return static_cast<double>(pick(0, 16)) / 16.0; };
  Job job;
  job.limits = {.layers = 1,
                .block_tokens = std::int64_t{1} << pick(0, 3),
                .device_blocks = pick(4, 40),
                .host_blocks = pick(0, 4) == 0 ? 0 : pick(1, 80),
                .input_blocks = pick(0, 1) * pick(1, 40),
                .batch_size = pick(1, 8)};
  job.limits.prefill_chunk = pick(1, 3) * job.limits.block_tokens + pick(0, 3);
  job.schedule = {.p1 = pick(0, 24),
                  .alpha = real(),
                  .device_tokens = pick(0, 2) == 0 ? pick(1, 40) : 0,
                  .beta = real(),
                  .window_tokens = pick(0, 12),
                  .window_share = real() * 0.3,
                  .input_tokens = pick(0, 40)};
  job.schedule.p2 = job.schedule.p1 + pick(0, 24);
  const std::int64_t holds = on_device ? job.limits.device_blocks * job.limits.block_tokens
                                       : TriphasePolicy(job.schedule).longest_request(job.limits);
  const std::int64_t longest = std::min<std::int64_t>(holds, 100);
  for (std::int64_t line = pick(1, 10); line > 0 && longest >= 2; --line) {
    WorldLine entry;
    entry.prompt = pick(1, longest - 1);
    entry.max_tokens = pick(entry.prompt + 1, longest);
    entry.ends_at = pick(entry.prompt + 1, entry.max_tokens);
    job.lines.push_back(entry);
  }
  return job;
}

// Another policy decides now and then, so that requests have to make room, on the host and off it.
TEST(TriphaseOracle, EveryDecisionIsThatOfTheSlowModel) {
  std::int64_t steps = 0, moves = 0, resumes = 0, preemptions = 0, admitted_beside = 0;
  const VllmPolicy swapping({.preemption = PreemptMode::kSwap});
  const VllmPolicy dropping({.preemption = PreemptMode::kDrop});
  for (unsigned seed = 0; seed < 1500; ++seed) {
    std::mt19937 random(seed);
    const Job job = random_job(random, /*on_device=*/seed % 2 == 1);
    const TriphasePolicy policy(job.schedule);
    PlacementWorld world(job.limits, job.lines);
    while (!world.finished()) {
      if (seed % 2 == 1 && random() % 3 == 0) {
        world.step(random() % 2 == 0 ? swapping : dropping);
        continue;
      }
      KvBook book = world.book();
      PlacementStep step = world.view(book);
      Oracle oracle(job.schedule, step);
      const std::string expected = oracle.decide(world.waiting());
      policy.decide(step);
      const std::string actual = Oracle::text_of(step);
      ASSERT_EQ(actual, expected) << "seed " << seed << ", step " << step.number();
      const auto happened = [&](const char* what) {
        return actual.find(what) == std::string::npos ? 0 : 1;
      };
      ++steps;
      moves += step.actions().empty() ? 0 : 1;
      resumes += happened("resume");
      admitted_beside += happened("resume") * happened("admit");
      preemptions += happened("swap") + happened("drop");
      world.step(policy);
    }
  }
  EXPECT_GT(steps, 50'000);
  EXPECT_GT(moves, 5'000);
  EXPECT_GT(resumes, 500);
  EXPECT_GT(admitted_beside, 50);
  EXPECT_GT(preemptions, 100);
}

// A step that brings blocks back leaves the next one room: nothing goes out again at once.
TEST(TriphaseOracle, WhatComesBackStaysForAStep) {
  std::int64_t reloads = 0;
  for (unsigned seed = 0; seed < 1500; ++seed) {
    std::mt19937 random(seed);
    Job job = random_job(random, /*on_device=*/false);
    job.schedule.p1 = job.schedule.p2 = 1000;  // pressure alone moves blocks
    const TriphasePolicy policy(job.schedule);
    PlacementWorld world(job.limits, job.lines);
    bool reloaded = false;
    while (!world.finished()) {
      bool loads = false, offloads = false, starts = false;
      for (const PlacementAction& action : world.step(policy)) {
        loads |= std::holds_alternative<Load>(action);
        offloads |= std::holds_alternative<Offload>(action);
        starts |= std::holds_alternative<Admit>(action) || std::holds_alternative<Resume>(action);
      }
      ASSERT_FALSE(reloaded && offloads) << "seed " << seed;
      ASSERT_FALSE(loads && offloads) << "seed " << seed;
      reloaded = loads && !starts;
      reloads += reloaded ? 1 : 0;
    }
  }
  EXPECT_GT(reloads, 100);
}

}  // namespace
}  // namespace triphase
