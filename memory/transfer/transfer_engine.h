#pragma once

// SEAM 3: asynchronous copies between the host and device tiers. Two lanes, one per direction; a
// lane does its transfers in order of submission, the lanes run beside each other and beside
// compute. A transfer begins after what the compute stream holds when it is submitted; what compute
// queues later waits for it only where hold() says so. Host memory must stay untouched until
// wait() has returned. Implementations: host_transfer_engine (threads; the CPU, whose compute
// stream runs at once), stream_transfer_engine (a device's streams). One thread submits and waits.

#include <cstdint>
#include <functional>
#include <span>

#include "base/trace.h"
#include "memory/transfer/link.h"

namespace triphase {

struct Ticket {
  std::uint64_t value = 0;  // counts the lane's transfers from 1; 0: nothing to wait for
  Lane lane = Lane::kToDevice;
};

// Totals since the start.
struct LaneStats {
  std::uint64_t transfers = 0;
  std::uint64_t records = 0;  // contiguous pieces on the host side
  std::uint64_t bytes = 0;
};

class TransferEngine {
 public:
  virtual ~TransferEngine() = default;

  // A step begins (LaunchQueue::begin_step).
  virtual void begin_step() = 0;

  // Copies the tokens of `runs` between device pages and host records, transposing as KvGeometry
  // says. The runs are copied; they need not outlive the call.
  [[nodiscard]] virtual Ticket move_tokens(Lane lane, const KvGeometry& geometry,
                                           std::span<const TokenRun> runs) = 0;

  // Several contiguous pieces as one transfer (hidden states). The list of pieces is copied; it
  // need not outlive the call.
  [[nodiscard]] virtual Ticket move_pieces(Lane lane, std::span<const BytePiece> pieces) = 0;

  // One contiguous copy of bytes (weights).
  [[nodiscard]] Ticket move_bytes(Lane lane, std::byte* to, const std::byte* from,
                                  std::size_t bytes) {
    const BytePiece piece{to, from, bytes};
    return move_pieces(lane, {&piece, 1});
  }

  // Whether bring() and bring_inputs() can read these bytes of the host.
  [[nodiscard]] virtual bool reaches(const std::byte* records, std::size_t bytes) const = 0;
  // Says which tokens are missing, by work that it queues on the lane's stream: behind what the
  // compute stream holds, and beside what that gets later. Null: they are known at once.
  using NameMissing = std::function<MissingTokens(Stream* lane)>;
  // Brings the tokens that `name`, which is called once, names; only where reaches() is true.
  [[nodiscard]] virtual Ticket bring(const KvGeometry& geometry, const NameMissing& name) = 0;
  // Brings hidden states of such tokens (KvMover::bring_inputs).
  [[nodiscard]] virtual Ticket bring_inputs(const KvGeometry& geometry, const SavedInputs& inputs,
                                            const RecomputedTokens& tokens) = 0;
  // Whether stats() counts the bytes of bring() and bring_inputs(). Where work is queued, the host
  // does not learn how many tokens it brings.
  [[nodiscard]] virtual bool counts_what_it_brings() const = 0;

  // Work that the compute stream gets from now on runs after the ticket's transfer. Throws what
  // made it fail, if that is known by now; else the stream does.
  virtual void hold(Ticket ticket) = 0;
  // Returns once the ticket's transfer is done: for the host. Throws what made it fail. Each ticket
  // may be waited for any number of times; a failure is thrown once.
  virtual void wait(Ticket ticket) = 0;
  [[nodiscard]] virtual bool done(Ticket ticket) const = 0;

  // Returns once nothing moves any more; throws nothing of what failed.
  virtual void drain() = 0;

  [[nodiscard]] virtual LaneStats stats(Lane lane) const = 0;
  // Records every transfer as a span of its lane from now on; null: off. Drains first.
  virtual void set_trace(Trace* trace) = 0;
};

}  // namespace triphase
