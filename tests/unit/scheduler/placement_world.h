#pragma once

// Runs requests of given lengths under a policy, over a book of KV that is recounted after every
// step: an engine without a model.

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/placement/placement_policy.h"

namespace triphase {

struct WorldLine {
  std::int64_t prompt = 0;
  std::int64_t max_tokens = 0;
  std::int64_t ends_at = 0;  // context at which it stops, at most max_tokens
  int family = 0;            // lines of a family other than 0 have equal tokens
};

// Ten device blocks and twenty on the host, of four tokens; eight requests at once.
[[nodiscard]] PlacementLimits small_limits();
[[nodiscard]] WaitingQueue queue_of(std::vector<WaitingRequest> waiting);

class PlacementWorld {
 public:
  PlacementWorld(const PlacementLimits& limits, std::vector<WorldLine> lines);

  [[nodiscard]] bool finished() const {
    return waiting_.empty() && running_.empty() && preempted_.empty();
  }
  [[nodiscard]] std::int64_t finished_lines() const { return finished_lines_; }
  [[nodiscard]] std::int64_t preemptions() const { return preemptions_; }
  [[nodiscard]] std::int64_t offloaded() const { return offloaded_; }
  [[nodiscard]] std::int64_t discarded() const { return discarded_; }
  [[nodiscard]] std::int64_t max_running() const { return max_running_; }
  [[nodiscard]] const std::vector<PlacedRequest>& running() const { return running_; }
  [[nodiscard]] const KvBook& book() const { return book_; }

  // Of those that wait a policy sees ten.
  [[nodiscard]] std::vector<WaitingRequest> waiting() const;
  // What a policy gets, over this world's book or over a copy of it.
  [[nodiscard]] PlacementStep view() { return view(book_); }
  [[nodiscard]] PlacementStep view(KvBook& book) const;
  // Decides, does it, grows every running line and ends those that are done.
  PlacementActions step(const PlacementPolicy& policy);

 private:
  [[nodiscard]] const WorldLine& line_of(const PlacedRequest& request) const {
    return lines_[request.admission];
  }
  [[nodiscard]] std::span<const TokenId> prompt_of(std::size_t line) const;
  void carry_out(const PlacementActions& actions);

  PlacementLimits limits_;
  KvBook book_;
  std::vector<WorldLine> lines_;
  std::vector<std::vector<TokenId>> tokens_;  // by line, at its longest
  std::vector<std::size_t> waiting_;
  std::vector<PlacedRequest> running_;  // their `admission` is the line
  std::vector<PlacedRequest> preempted_;
  std::int64_t steps_ = 0;
  std::int64_t finished_lines_ = 0, preemptions_ = 0, offloaded_ = 0, discarded_ = 0,
               max_running_ = 0;
};

}  // namespace triphase
