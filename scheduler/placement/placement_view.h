#pragma once

// What a placement policy sees before a step, and what it may answer. PURE values, shared by the
// engine and the simulator, so that the same policy object drives both.
//
// KV is organised in blocks of `block_tokens` consecutive positions of one sequence, all layers
// together; a page is one block of one layer. A block has one home: the device, the host, or
// "recomputable" (no KV is kept; K and V are projected again from saved layer inputs X, ALISA's
// Phase III). Within a sequence homes are ordered by age: blocks [0, recompute_blocks) are
// recomputable, the next host_blocks are on the host, the rest are on the device. Only closed
// blocks (all positions written) leave the device.
//
// Sequences that share a prompt prefix share its blocks: such a block is counted once, and an
// action on it acts for every sequence that holds it.

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"

namespace triphase {

// Constant during a job.
struct PlacementLimits {
  std::int64_t layers = 0;
  std::int64_t block_tokens = 0;
  std::int64_t device_pages = 0;   // KV on the device
  std::int64_t host_pages = 0;     // KV on the host; 0: the job has no host tier
  std::int64_t input_pages = 0;    // saved layer inputs X on the host, one block of one layer each
  std::int64_t batch_size = 0;     // most running sequences
  std::int64_t prefill_chunk = 0;  // most prompt tokens of one step
  // Most tokens of one layer that staging holds at once, for tokens that are not on the device but
  // are touched. 0: no limit (the host is attended where it lies).
  std::int64_t staging_tokens = 0;
  // Sequences whose host tokens are staged together: zig-zag's GPU batch. 0: all running ones.
  std::int64_t staging_group = 0;
  double touched_share = 1.0;  // of a context's tokens, at most this share is touched by a step

  [[nodiscard]] std::int64_t blocks_for(std::int64_t tokens) const {
    return (tokens + block_tokens - 1) / block_tokens;
  }
  [[nodiscard]] std::int64_t device_blocks() const { return device_pages / layers; }
  [[nodiscard]] std::int64_t host_blocks() const { return host_pages / layers; }
  [[nodiscard]] std::int64_t input_blocks() const { return input_pages / layers; }

  friend bool operator==(const PlacementLimits&, const PlacementLimits&) = default;
};

// A running sequence; listed in order of admission.
struct RunningSequence {
  SequenceId id;
  std::int64_t prompt_tokens = 0;
  // Leading tokens that are computed as prefill: the prompt, and after a drop all that it had.
  std::int64_t prefill_tokens = 0;
  std::int64_t context = 0;      // tokens whose KV exists now
  std::int64_t step_tokens = 0;  // tokens this step adds at most
  std::int64_t max_tokens = 0;   // longest context it may reach
  std::int64_t recompute_blocks = 0;
  std::int64_t host_blocks = 0;
  std::int64_t device_blocks = 0;  // the open block included
  std::int64_t input_blocks = 0;   // leading blocks whose X is saved, or will be when computed
  // Reserved at admission and not taken yet, in blocks; the free pages of the view exclude them.
  std::int64_t device_reserved = 0;
  std::int64_t host_reserved = 0;
  // Leading blocks shared with an earlier running sequence (an index below its own; -1: none).
  std::int64_t shares_with = -1;
  std::int64_t shared_blocks = 0;

  [[nodiscard]] std::int64_t away_blocks() const { return recompute_blocks + host_blocks; }
  [[nodiscard]] std::int64_t blocks() const { return away_blocks() + device_blocks; }
  // Those that may leave the device.
  [[nodiscard]] std::int64_t closed_blocks(std::int64_t block_tokens) const {
    return context / block_tokens;
  }
  [[nodiscard]] bool prefilling() const { return context < prefill_tokens; }
  // j of ALISA's Algorithm 2: tokens generated so far; negative while the prompt is computed.
  [[nodiscard]] std::int64_t decode_step() const { return context - prompt_tokens; }

  friend bool operator==(const RunningSequence&, const RunningSequence&) = default;
};

// How a suspended sequence comes back.
enum class SuspendMode : std::uint8_t {
  // Its KV (and selection state) waits on the host; it takes copies of blocks that others hold too.
  kSwap,
  kDrop,  // nothing is kept; its tokens are computed again
};

// In order of their first admission.
struct SuspendedSequence {
  SequenceId id;
  SuspendMode mode = SuspendMode::kSwap;
  std::int64_t prompt_tokens = 0;
  std::int64_t prefill_tokens = 0;  // where some of it ended: everything it had
  std::int64_t context = 0;         // tokens whose KV exists; kDrop: 0
  std::int64_t max_tokens = 0;
  std::int64_t recompute_blocks = 0;  // kSwap: how it will lie until blocks are reloaded
  std::int64_t host_blocks = 0;
  std::int64_t input_blocks = 0;

  friend bool operator==(const SuspendedSequence&, const SuspendedSequence&) = default;
};

// In order of arrival.
struct WaitingPrompt {
  std::int64_t prompt_tokens = 0;
  std::int64_t max_tokens = 0;
  std::int64_t shares_with = -1;   // running sequence with the longest common prefix, or -1
  std::int64_t shared_blocks = 0;  // of it; they lie where that sequence has them
  // Leading blocks found in device pages that no running sequence holds, after shared_blocks. They
  // count as free pages until an admission takes them.
  std::int64_t cached_blocks = 0;

  friend bool operator==(const WaitingPrompt&, const WaitingPrompt&) = default;
};

struct StepView {
  std::int64_t step = 0;  // counts from 0
  PlacementLimits limits;
  // Neither held nor reserved; device pages that only the prefix cache holds count as free.
  std::int64_t free_device_pages = 0;
  std::int64_t free_host_pages = 0;
  std::int64_t free_input_pages = 0;
  std::vector<RunningSequence> running;
  std::vector<SuspendedSequence> suspended;
  std::vector<WaitingPrompt> waiting;

  friend bool operator==(const StepView&, const StepView&) = default;
};

// Actions, done in order before the step computes. Block ranges are [first, end). Everything that
// moves or ends running sequences comes before the first Admit or Resume of a step.

// Starts a waiting prompt. Indices refer to the view's list, whatever was admitted before. The
// reservations are for blocks beyond those it shares.
struct Admit {
  std::int64_t waiting = 0;
  std::int64_t device_blocks = 0;  // reserved on the device
  std::int64_t host_blocks = 0;    // reserved on the host
  std::int64_t input_blocks = 0;   // leading blocks whose X is to be saved
  friend bool operator==(const Admit&, const Admit&) = default;
};
// The oldest device blocks go to the host: first = recompute_blocks + host_blocks.
struct Offload {
  SequenceId sequence;
  std::int64_t first_block = 0;
  std::int64_t end_block = 0;
  friend bool operator==(const Offload&, const Offload&) = default;
};
// The youngest host blocks come back: end = recompute_blocks + host_blocks.
struct Reload {
  SequenceId sequence;
  std::int64_t first_block = 0;
  std::int64_t end_block = 0;
  friend bool operator==(const Reload&, const Reload&) = default;
};
// The oldest host blocks are dropped; from now on they are recomputed from X when touched.
struct Discard {
  SequenceId sequence;
  std::int64_t first_block = 0;
  std::int64_t end_block = 0;
  friend bool operator==(const Discard&, const Discard&) = default;
};
struct Suspend {
  SequenceId sequence;
  SuspendMode mode = SuspendMode::kSwap;
  friend bool operator==(const Suspend&, const Suspend&) = default;
};
// A suspended sequence runs again from this step on. kSwap: its youngest `device_blocks` blocks are
// brought to the device. kDrop: it starts over with `device_blocks` reserved.
struct Resume {
  SequenceId sequence;
  std::int64_t device_blocks = 0;
  friend bool operator==(const Resume&, const Resume&) = default;
};

using PlacementAction = std::variant<Admit, Offload, Reload, Discard, Suspend, Resume>;
using PlacementActions = std::vector<PlacementAction>;

// One line, for traces and messages: "offload 3 [0, 4)".
[[nodiscard]] std::string to_text(const PlacementAction& action);

}  // namespace triphase
