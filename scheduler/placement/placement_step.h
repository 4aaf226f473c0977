#pragma once

// One decision of a placement policy: what it sees before a step and what it does. PURE. A policy
// calls verbs; each changes the book of KV at once, is noted for whoever owns the bytes, and throws
// an internal error (E-INT-CHECK) that names the broken rule when it is not allowed in the present
// state. Engine and simulator carry out the same answer.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "scheduler/attention/prompt_units.h"
#include "scheduler/kv/block_tokens.h"
#include "scheduler/kv/kv_book.h"
#include "scheduler/placement/phase_schedule.h"
#include "scheduler/placement/placement_actions.h"

namespace triphase {

// Constant during a job. Blocks are of all layers, window blocks apart.
struct PlacementLimits {
  std::int64_t layers = 0;
  std::int64_t block_tokens = 0;
  std::int64_t device_blocks = 0;  // KV on the device, window blocks included
  std::int64_t host_blocks = 0;    // KV on the host; 0: the job has no host tier
  std::int64_t input_blocks = 0;   // cached hidden states X on the host
  std::int64_t batch_size = 0;     // most running requests
  std::int64_t prefill_chunk = 0;  // most prompt tokens of one step
  PromptUnits prompt_units{};      // that a step does not cut
  // Most requests, preempted ones included, whose partial blocks have a place while they wait on
  // the host. 0: no limit.
  std::int64_t partial_blocks = 0;
  KvWindowShape windows{};

  [[nodiscard]] std::int64_t blocks_for(std::int64_t tokens) const {
    return triphase::blocks_for(tokens, block_tokens);
  }
  // Device blocks of `requests` requests of so many tokens, window blocks included.
  [[nodiscard]] std::int64_t batch_blocks(std::int64_t requests, std::int64_t tokens) const {
    return requests * blocks_for(tokens) + batch_windows(requests, tokens);
  }
  // Of these the window blocks that are set aside: of the requests, and for prompts.
  [[nodiscard]] std::int64_t batch_windows(std::int64_t requests, std::int64_t tokens) const {
    return window_store() +
           requests * windows.blocks * window_room(windows, block_tokens, blocks_for(tokens));
  }
  // Device blocks that are kept for window blocks of prompts.
  [[nodiscard]] std::int64_t window_store() const {
    return windows.blocks * triphase::window_store(windows, block_tokens);
  }
  // Blocks that a request can have on the device where it runs alone.
  [[nodiscard]] std::int64_t most_blocks() const {
    return most_blocks_alone(windows, block_tokens, device_blocks);
  }

  friend bool operator==(const PlacementLimits&, const PlacementLimits&) = default;
};

// A request that runs or was preempted. The book says where its KV is.
struct PlacedRequest {
  SequenceId id;                // in the book; invalid while the request is dropped
  std::uint64_t admission = 0;  // how many were admitted before it, the first time
  std::int64_t prompt_tokens = 0;
  // Leading tokens that are computed as prefill: the prompt, and after a drop all that it had.
  std::int64_t prefill_tokens = 0;
  std::int64_t context = 0;       // tokens whose KV exists now; after a drop: 0
  std::int64_t max_tokens = 0;    // longest context it may reach
  std::uint64_t context_key = 0;  // KvBook::admit
  PreemptMode mode{};             // while it is preempted
  std::int64_t step_tokens = 0;   // that the step is expected to add
  // Of its prompt: to find blocks that it can share when it resumes, and that others wait for.
  std::span<const TokenId> tokens{};

  [[nodiscard]] bool prefilling() const { return context < prefill_tokens; }
  // j of ALISA's Algorithm 2: tokens generated so far; negative while the prompt is computed.
  [[nodiscard]] std::int64_t decode_step() const { return context - prompt_tokens; }
};

struct WaitingRequest {
  std::size_t place = 0;  // in the queue
  std::int64_t prompt_tokens = 0;
  std::int64_t max_tokens = 0;
  std::uint64_t context_key = 0;
  std::span<const TokenId> tokens{};  // to find blocks that it can share; empty: it shares none
  std::int64_t shared_blocks = 0;     // leading ones that running requests hold
  // Blocks after shared_blocks that exist, but that no sequence refers to: on the host, and after
  // them on the device. They count as free until they are taken.
  std::int64_t cached_host_blocks = 0;
  std::int64_t cached_blocks = 0;

  [[nodiscard]] std::int64_t found_blocks() const {
    return shared_blocks + cached_host_blocks + cached_blocks;
  }
};

// Prompts in order of arrival. A step asks for those alone that it may have room for.
struct WaitingQueue {
  std::size_t size = 0;
  std::function<WaitingRequest(std::size_t place)> request;  // nothing of it is found yet
};

// Follows from the oldest block, since places are ordered by age. A moving block counts at its
// destination.
[[nodiscard]] Phase phase_of(const KvBook& book, SequenceId sequence);

// Finds the blocks of the request's prompt that exist already, at most `most`.
void find_shared(const KvBook& book, std::optional<std::int64_t> most, WaitingRequest& request);
// Whether it can share more blocks soon: those of a running prompt, or of one that waits before it.
[[nodiscard]] bool waits_for_prefix(const WaitingRequest& request,
                                    std::span<const PlacedRequest> running,
                                    std::span<const WaitingRequest> before,
                                    std::int64_t block_tokens);

// The result of a decision.
struct PlacementAnswer {
  PlacementActions actions;
  KvMoves moves;                     // what happens to bytes
  std::vector<std::int64_t> tokens;  // to compute of each request that runs now, in their order
};

class PlacementStep {
 public:
  // `running` in order of admission, `preempted` in order of their first one. No block moves.
  // `step` counts from 0.
  PlacementStep(const PlacementLimits& limits, std::int64_t step, KvBook& book,
                std::vector<PlacedRequest> running, std::vector<PlacedRequest> preempted,
                WaitingQueue queue);

  [[nodiscard]] const PlacementLimits& limits() const { return limits_; }
  [[nodiscard]] std::int64_t number() const { return number_; }
  [[nodiscard]] const KvBook& book() const { return *book_; }
  // The requests that run after the actions so far: admitted and resumed ones come last.
  [[nodiscard]] const std::vector<PlacedRequest>& running() const { return running_; }
  [[nodiscard]] std::int64_t running_count() const {
    return static_cast<std::int64_t>(running_.size());
  }
  // The requests preempted before the step.
  [[nodiscard]] const std::vector<PlacedRequest>& preempted() const { return preempted_; }
  // The index-th prompt that could begin, with the blocks that it shares after the actions so far;
  // null: there is none, or no place in the batch. Those that can share more soon are passed over.
  // The pointer holds until the next prompt is asked for.
  [[nodiscard]] const WaitingRequest* waiting(std::size_t index);
  // The prompts that waiting() gave.
  [[nodiscard]] const std::vector<WaitingRequest>& looked_at() const { return waiting_; }
  [[nodiscard]] const PlacementActions& actions() const { return answer_.actions; }

  // The verbs. Counts are in blocks. A prompt is admitted after waiting() gave it.
  void admit(Admit action);
  void offload(SequenceId id, std::int64_t count);
  void load(SequenceId id, std::int64_t count);
  void discard(SequenceId id, std::int64_t count);
  // A request that shares blocks is dropped, whatever `mode` says: its blocks stay with the others.
  // So are a request whose partial block has no place to wait in, and one with window blocks.
  void preempt(SequenceId id, PreemptMode mode);
  // Swaps the request where the host has room for all its blocks, else drops it.
  void preempt(SequenceId id);
  void resume(std::size_t preempted, std::int64_t device_blocks);

  // Device blocks (neither held nor reserved) that are left after the step has grown; may be < 0.
  [[nodiscard]] std::int64_t spare_device_blocks() const;
  // Device blocks that this admission and its first step would take from the free ones.
  [[nodiscard]] std::int64_t admission_blocks(const Admit& action) const;
  // Device blocks that are set aside for window blocks: of the running requests and of prompts.
  [[nodiscard]] std::int64_t window_blocks() const;
  // Device blocks that a preempted request takes for window blocks when it resumes.
  [[nodiscard]] std::int64_t resumption_windows(const PlacedRequest& request) const;
  // Leading blocks that a dropped request shares with running ones when it resumes.
  [[nodiscard]] std::int64_t resumption_shared(const PlacedRequest& request) const;
  // Found blocks of a waiting request that are not on the device.
  [[nodiscard]] std::int64_t offloaded_blocks(const WaitingRequest& request) const;
  // Prompt tokens that the step can still take.
  [[nodiscard]] std::int64_t prefill_left() const { return prefill_left_; }

  // Throws when the growth of the running requests does not fit what is free and reserved, or
  // when nothing runs although something could.
  void check() const;

  // Ends the decision.
  [[nodiscard]] PlacementAnswer finish();

 private:
  [[nodiscard]] std::vector<std::int64_t> plan_tokens() const;
  // Appends to waiting_; false: no prompt is left.
  bool look_at_next();
  [[nodiscard]] std::size_t index_of(const Admit& action) const;
  [[nodiscard]] std::vector<PlacedRequest>::iterator find(SequenceId id);
  void require_not_started(std::string_view action) const;
  void require_device_blocks(std::int64_t blocks) const;
  void start(PlacedRequest request);

  PlacementLimits limits_;
  std::int64_t number_;
  KvBook* book_;
  std::vector<PlacedRequest> running_;
  std::vector<PlacedRequest> preempted_;
  WaitingQueue queue_;
  std::size_t next_place_ = 0;           // of the queue
  std::vector<WaitingRequest> waiting_;  // looked at
  std::vector<bool> admitted_;           // by index into waiting_
  std::vector<bool> resumed_;            // by index into preempted_
  bool started_ = false;                 // a request was admitted or resumed
  bool others_run_ = false;              // the running requests are not those before the step
  std::int64_t held_ = 0;                // running and preempted requests before the step
  std::int64_t prefill_left_ = 0;
  PlacementAnswer answer_;
};

}  // namespace triphase
