#pragma once

// Transfers by one thread per lane, for devices whose memory the host can write. With an
// EmulatedLink each lane is paced, so that overlap with compute is real and can be measured.

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/trace.h"
#include "memory/transfer/transfer_engine.h"

namespace triphase {

class HostTransferEngine final : public TransferEngine {
 public:
  explicit HostTransferEngine(std::optional<EmulatedLink> link);
  // Abandons what has not begun and joins the lanes.
  ~HostTransferEngine() override;
  HostTransferEngine(const HostTransferEngine&) = delete;
  HostTransferEngine& operator=(const HostTransferEngine&) = delete;

  void begin_step() override {}
  [[nodiscard]] Ticket move_tokens(Lane lane, const KvGeometry& geometry,
                                   std::span<const TokenRun> runs) override;
  [[nodiscard]] Ticket move_pieces(Lane lane, std::span<const BytePiece> pieces) override;
  // The lists are there when the call is made: it copies them.
  [[nodiscard]] bool reaches(const std::byte*, std::size_t) const override { return true; }
  [[nodiscard]] Ticket bring(const KvGeometry& geometry, const NameMissing& name) override;
  [[nodiscard]] Ticket bring_inputs(const KvGeometry& geometry, const SavedInputs& inputs,
                                    const RecomputedTokens& tokens) override;
  [[nodiscard]] bool counts_what_it_brings() const override { return true; }
  void hold(Ticket ticket) override { wait(ticket); }
  void wait(Ticket ticket) override;
  [[nodiscard]] bool done(Ticket ticket) const override;
  void drain() override;
  [[nodiscard]] LaneStats stats(Lane lane) const override;
  void set_trace(Trace* trace) override;

  // Tests: the n-th transfer from now on (1 = the next) fails.
  void fail_transfer(int nth);

 private:
  struct Job {
    KvGeometry geometry;
    std::vector<TokenRun> runs;
    std::vector<BytePiece> pieces;
    TransferSize size;
    std::chrono::steady_clock::time_point queued;  // where a trace records it
    bool fails = false;
  };
  struct LaneState {
    std::deque<Job> queue;
    std::vector<std::vector<TokenRun>> spare;  // run lists to reuse
    std::uint64_t submitted = 0;
    std::uint64_t finished = 0;  // of those submitted first
    std::map<std::uint64_t, std::exception_ptr> failures;
    LaneStats stats;
    std::condition_variable work;
    std::condition_variable progress;
    std::chrono::steady_clock::time_point free_at;  // when the emulated link is idle again
    std::thread thread;
  };

  [[nodiscard]] LaneState& at(Lane lane) { return lanes_[static_cast<std::size_t>(lane)]; }
  [[nodiscard]] const LaneState& at(Lane lane) const {
    return lanes_[static_cast<std::size_t>(lane)];
  }
  Ticket submit(Lane lane, Job job);
  void run_lane(Lane lane);
  void stop();
  static void execute(Lane lane, const Job& job);
  void pace(LaneState& lane, const Job& job, std::chrono::steady_clock::time_point start) const;
  static void record(Trace& trace, Lane lane, const Job& job,
                     std::chrono::steady_clock::time_point start,
                     std::chrono::steady_clock::time_point end);

  std::optional<EmulatedLink> link_;
  mutable std::mutex mutex_;
  std::array<LaneState, kLanes> lanes_;
  Trace* trace_ = nullptr;
  int fail_in_ = 0;
  bool stop_ = false;
  // Scratch of one call, kept to reuse its memory.
  std::vector<TokenRun> runs_;
  std::vector<BytePiece> pieces_;
};

}  // namespace triphase
