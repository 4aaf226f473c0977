#pragma once

// Transfers on a device's own streams, one a lane: copies by its copy engines, tokens by the
// KvMover of the lane. Events order them with the compute stream, so that the host waits for none.

#include <array>
#include <chrono>
#include <deque>
#include <memory>
#include <vector>

#include "memory/transfer/transfer_engine.h"

namespace triphase {

class StreamTransferEngine final : public TransferEngine {
 public:
  using Movers = std::array<std::unique_ptr<KvMover>, kLanes>;  // by lane

  // `device` and `compute`, a stream of it, must outlive the engine.
  StreamTransferEngine(Device& device, Stream& compute, Movers movers);
  ~StreamTransferEngine() override;
  StreamTransferEngine(const StreamTransferEngine&) = delete;
  StreamTransferEngine& operator=(const StreamTransferEngine&) = delete;

  void begin_step() override;
  [[nodiscard]] Ticket move_tokens(Lane lane, const KvGeometry& geometry,
                                   std::span<const TokenRun> runs) override;
  [[nodiscard]] Ticket move_pieces(Lane lane, std::span<const BytePiece> pieces) override;
  [[nodiscard]] bool reaches(const std::byte* records, std::size_t bytes) const override;
  [[nodiscard]] Ticket bring(const KvGeometry& geometry, const NameMissing& name) override;
  [[nodiscard]] bool counts_what_it_brings() const override { return false; }
  [[nodiscard]] Ticket bring_inputs(const KvGeometry& geometry, const SavedInputs& inputs,
                                    const RecomputedTokens& tokens) override;
  void hold(Ticket ticket) override;
  void wait(Ticket ticket) override;
  [[nodiscard]] bool done(Ticket ticket) const override;
  void drain() override;
  [[nodiscard]] LaneStats stats(Lane lane) const override;
  // `trace` has stream_spans(), whose clock these events are on too.
  void set_trace(Trace* trace) override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Transfer {
    std::unique_ptr<Event> begin;
    std::unique_ptr<Event> end;
    const char* name = "";
    TransferSize size;
  };
  struct LaneState {
    std::unique_ptr<Stream> stream;
    std::unique_ptr<Event> compute_point;
    Clock::time_point traced_until;
    std::uint64_t submitted = 0;
    std::deque<Transfer> under_way;  // the last ones submitted, oldest first
    LaneStats stats;
  };

  [[nodiscard]] LaneState& at(Lane lane) { return lanes_[static_cast<std::size_t>(lane)]; }
  [[nodiscard]] const LaneState& at(Lane lane) const {
    return lanes_[static_cast<std::size_t>(lane)];
  }
  // Null: it has ended.
  [[nodiscard]] const Transfer* find(Ticket ticket) const;
  [[nodiscard]] std::unique_ptr<Event> take_event();
  // The lane waits for what compute holds; the transfer's first event is recorded.
  [[nodiscard]] Transfer begin(LaneState& lane, const char* name, TransferSize size);
  Ticket end(Lane lane, Transfer transfer);
  // Counts and forgets the transfers at the front that have ended.
  void retire(Lane lane);
  void record(Lane lane, const Transfer& transfer);

  Device* device_;
  Stream* compute_;
  Movers movers_;
  std::array<LaneState, kLanes> lanes_;
  std::vector<std::unique_ptr<Event>> spare_events_;
  Trace* trace_ = nullptr;
};

}  // namespace triphase
