#pragma once

// `triphase`: ALISA's three phases per sequence, by a plan's schedule. In Phase I every token is on
// the device; in Phase II a share alpha of the context, the oldest full blocks outside the local
// window, lives on the host; in Phase III a share beta of those is recomputed from cached hidden
// states. Under memory pressure blocks are offloaded earlier; they come back when pages are plenty.
// Requests are admitted while both tiers together can hold every running request at its longest, so
// that none has to make room. If one must all the same, it waits on the host. A schedule without a
// host tier may give the device's blocks on demand instead; then the latest request makes room.

#include "scheduler/kv/block_tokens.h"
#include "scheduler/placement/phase_schedule.h"
#include "scheduler/placement/placement_policy.h"

namespace triphase {

class TriphasePolicy final : public PlacementPolicy {
 public:
  explicit TriphasePolicy(const PhaseSchedule& schedule) : schedule_(schedule) {}

  [[nodiscard]] std::string_view name() const override { return "triphase"; }
  [[nodiscard]] StaticPlacement start(const JobView& job) const override;
  [[nodiscard]] std::int64_t longest_request(const PlacementLimits& limits) const override;
  [[nodiscard]] std::int64_t input_blocks(std::int64_t block_tokens) const override {
    return blocks_for(schedule_.input_tokens, block_tokens);
  }
  void decide(PlacementStep& step) const override;

 private:
  // Blocks that may leave the device: full, and outside the local window if that is kept.
  [[nodiscard]] std::int64_t movable_end(const PlacedRequest& request,
                                         const PlacementLimits& limits, bool keep_window) const;
  [[nodiscard]] std::int64_t offload_target(const PlacedRequest& request,
                                            const PlacementLimits& limits) const;
  void follow_schedule(PlacementStep& step) const;
  void relieve_pressure(PlacementStep& step) const;
  void relieve_pressure(PlacementStep& step, bool keep_window) const;
  void reload_when_plenty(PlacementStep& step) const;
  // Blocks that running requests may still need when they reach their longest.
  [[nodiscard]] static std::int64_t demand_of_running(const PlacementStep& step);
  // Returns whether no request is preempted any more.
  static bool resume_preempted(PlacementStep& step);
  // Whether one more request fits, which takes `windows` device blocks for its window blocks, when
  // all together demand `demand` others.
  [[nodiscard]] static bool fits(const PlacementStep& step, std::int64_t demand,
                                 std::int64_t windows);
  void admit_waiting(PlacementStep& step, std::int64_t demand) const;

  PhaseSchedule schedule_;
};

}  // namespace triphase
