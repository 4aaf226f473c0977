#pragma once

// `triphase`: ALISA's three phases per sequence, by a plan's schedule. In Phase I every token is on
// the device; in Phase II a share alpha of the context, the oldest closed blocks outside the local
// window, lives on the host; in Phase III a share beta of those is recomputed from saved layer
// inputs. Memory pressure brings a switch forward, never past a budget; a sequence whose blocks
// left early gets them back when pages are plenty. Lines are admitted while both tiers together can
// hold every running line at its longest, so that nobody has to be suspended; a line that has to
// waits on the host.

#include "scheduler/placement/phase_schedule.h"
#include "scheduler/placement/placement_policy.h"

namespace triphase {

class PlacementLedger;

class TriphasePolicy final : public PlacementPolicy {
 public:
  explicit TriphasePolicy(const PhaseSchedule& schedule) : schedule_(schedule) {}

  [[nodiscard]] std::string_view name() const override { return "triphase"; }
  [[nodiscard]] StaticPlacement start(const JobView& job) const override;
  [[nodiscard]] std::int64_t longest_line(const PlacementLimits& limits) const override;
  [[nodiscard]] std::int64_t input_blocks(std::int64_t block_tokens) const override {
    return (schedule_.input_tokens + block_tokens - 1) / block_tokens;
  }
  [[nodiscard]] PlacementActions decide(const StepView& view) const override;

  [[nodiscard]] const PhaseSchedule& schedule() const { return schedule_; }

 private:
  // Blocks that may leave the device: closed, and outside the local window if that is `kept`.
  [[nodiscard]] std::int64_t movable_end(const RunningSequence& sequence,
                                         const PlacementLimits& limits, bool keep_window) const;
  [[nodiscard]] std::int64_t target_away(const RunningSequence& sequence,
                                         const PlacementLimits& limits) const;
  void follow_schedule(PlacementLedger& ledger) const;
  void relieve_pressure(PlacementLedger& ledger) const;
  void relieve_pressure(PlacementLedger& ledger, bool keep_window) const;
  void admit_waiting(PlacementLedger& ledger) const;
  void reload_when_plenty(PlacementLedger& ledger) const;

  PhaseSchedule schedule_;
};

}  // namespace triphase
