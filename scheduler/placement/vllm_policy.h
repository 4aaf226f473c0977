#pragma once

// `vllm`: paged KV on the device alone, continuous batching, optimistic admission (SOSP 2023).
// Prompts are admitted first come, first served while blocks are free; when running sequences need
// more blocks than there are, the most recently admitted is preempted and later computed again, or
// swapped to the host as the 2023 version that ALISA measured could.

#include "scheduler/placement/placement_policy.h"

namespace triphase {

struct VllmOptions {
  PreemptMode preemption = PreemptMode::kDrop;
};

inline constexpr std::int64_t kVllmBlockTokens = 16;

class VllmPolicy final : public PlacementPolicy {
 public:
  explicit VllmPolicy(VllmOptions options = {}) : options_(options) {}

  [[nodiscard]] std::string_view name() const override { return "vllm"; }
  [[nodiscard]] StaticPlacement start(const JobView& job) const override;
  [[nodiscard]] std::int64_t longest_request(const PlacementLimits& limits) const override;
  void decide(PlacementStep& step) const override;

 private:
  VllmOptions options_;
};

// What it does in a step: also a schedule of `triphase` (PhaseSchedule::on_demand).
void run_on_demand(PlacementStep& step, PreemptMode preemption);

}  // namespace triphase
