#pragma once

// A block-by-block world that obeys placement actions and counts every page on its own: what the
// engine does with bytes, done with reference-counted block objects. It shares no arithmetic with
// PlacementLedger, so that a slip in one of them shows.

#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "scheduler/placement/placement_policy.h"

namespace triphase {

struct WorldLine {
  std::int64_t prompt = 0;
  std::int64_t max_tokens = 0;
  std::int64_t ends_at = 0;  // context at which it stops, at most max_tokens
  int family = 0;            // lines of a family have equal prompts, as far as both reach
};

class PlacementWorld {
 public:
  PlacementWorld(const PlacementLimits& limits, std::vector<WorldLine> lines)
      : limits_(limits), lines_(std::move(lines)) {
    for (std::size_t index = 0; index < lines_.size(); ++index) waiting_.push_back(index);
  }

  [[nodiscard]] bool finished() const {
    return waiting_.empty() && running_.empty() && suspended_.empty();
  }
  [[nodiscard]] std::int64_t finished_lines() const { return finished_lines_; }
  [[nodiscard]] std::int64_t suspensions() const { return suspensions_; }
  [[nodiscard]] std::int64_t offloaded() const { return offloaded_; }
  [[nodiscard]] std::int64_t discarded() const { return discarded_; }
  [[nodiscard]] std::int64_t max_running() const { return max_running_; }

  [[nodiscard]] StepView view() const;
  // Does the actions, grows every running sequence and ends those that are done. Throws
  // std::runtime_error when a budget does not hold at any moment.
  void step(const StepView& view, const PlacementActions& actions);

 private:
  enum class Home { kDevice, kHost, kRecompute };
  struct Block {
    Home home = Home::kDevice;
    bool has_x = false;
  };
  using Blocks = std::vector<std::shared_ptr<Block>>;
  struct Sequence {
    SequenceId id;
    std::size_t line = 0;
    std::int64_t context = 0;
    std::int64_t target = 0;  // tokens to compute before it decodes
    std::int64_t device_reserved = 0;
    std::int64_t host_reserved = 0;
    std::int64_t input_blocks = 0;
    SuspendMode mode = SuspendMode::kSwap;
    Blocks blocks;
  };

  [[noreturn]] static void fail(const std::string& what) { throw std::runtime_error(what); }
  Sequence& find(SequenceId id);
  [[nodiscard]] std::int64_t used(Home home) const;
  [[nodiscard]] std::int64_t used_inputs() const;
  void check(const char* when) const;
  [[nodiscard]] std::vector<std::int64_t> step_tokens() const;
  void move(const SequenceId& id, std::int64_t first, std::int64_t end, Home from, Home to);
  void admit(const StepView& view, const Admit& action);

  PlacementLimits limits_;
  std::vector<WorldLine> lines_;
  std::vector<std::size_t> waiting_;
  std::vector<Sequence> running_;
  std::vector<Sequence> suspended_;
  std::int64_t steps_ = 0;
  std::int32_t next_id_ = 0;
  std::int64_t finished_lines_ = 0, suspensions_ = 0, offloaded_ = 0, discarded_ = 0,
               max_running_ = 0;
};

}  // namespace triphase
