#pragma once

// What a placement policy may do before a step. PURE values, shared by engine and simulator.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"

namespace triphase {

// How a preempted request comes back.
enum class PreemptMode : std::uint8_t {
  kSwap,  // its KV (and selection state) waits on the host
  kDrop,  // nothing is kept; its tokens are computed again
};

// Actions, done in order before the step computes. Block ranges are [first, end). Everything that
// moves or ends running requests comes before the first Admit or Resume of a step.

// Starts a waiting request. The reservations are for blocks beyond those it shares.
struct Admit {
  std::size_t waiting = 0;         // its place in the queue before the step
  std::int64_t device_blocks = 0;  // reserved on the device
  std::int64_t host_blocks = 0;    // reserved on the host
  std::int64_t input_blocks = 0;   // leading blocks whose X is to be saved
  SequenceId sequence{};           // that it got; of the step's answer
  friend bool operator==(const Admit&, const Admit&) = default;
};
// The oldest device blocks go to the host.
struct Offload {
  SequenceId sequence;
  std::int64_t first_block = 0;
  std::int64_t end_block = 0;
  friend bool operator==(const Offload&, const Offload&) = default;
};
// The youngest host blocks come back.
struct Load {
  SequenceId sequence;
  std::int64_t first_block = 0;
  std::int64_t end_block = 0;
  friend bool operator==(const Load&, const Load&) = default;
};
// The oldest host blocks are dropped; from now on they are recomputed from X when attended.
struct Discard {
  SequenceId sequence;
  std::int64_t first_block = 0;
  std::int64_t end_block = 0;
  friend bool operator==(const Discard&, const Discard&) = default;
};
struct Preempt {
  SequenceId sequence;
  PreemptMode mode = PreemptMode::kSwap;
  friend bool operator==(const Preempt&, const Preempt&) = default;
};
// A preempted request runs again from this step on. kSwap: its youngest `device_blocks` blocks are
// brought to the device. kDrop: it starts over with `device_blocks` reserved, behind those that it
// shares with running requests.
struct Resume {
  std::uint64_t admission = 0;  // PlacedRequest::admission
  std::int64_t device_blocks = 0;
  SequenceId sequence{};  // that it has from now on
  friend bool operator==(const Resume&, const Resume&) = default;
};

using PlacementAction = std::variant<Admit, Offload, Load, Discard, Preempt, Resume>;
using PlacementActions = std::vector<PlacementAction>;

// One line, for messages: "offload 3 [0, 4)".
[[nodiscard]] std::string to_text(const PlacementAction& action);

}  // namespace triphase
