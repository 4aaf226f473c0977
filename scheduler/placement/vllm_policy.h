#pragma once

// `vllm`: paged KV on the device alone, continuous batching, optimistic admission (SOSP 2023).
// Prompts are admitted first come, first served while blocks are free; when running sequences need
// more blocks than there are, the most recently admitted is preempted and later computed again, or
// swapped to the host as the 2023 version that ALISA measured could. Where it knows what both cost
// it swaps, and computes again as much of each prompt as that is cheaper for. Or, as with its
// offloading connector, full blocks wait on the host and the tokens after them are computed again.

#include <memory>
#include <utility>

#include "scheduler/cost/replay_costs.h"
#include "scheduler/placement/placement_policy.h"

namespace triphase {

struct VllmOptions {
  SuspendMode preemption = SuspendMode::kDrop;
  // Share of the device's blocks kept free at admission, against preempting at once.
  double watermark = 0.01;
  bool keep_prefixes = false;  // kSwap: closed blocks wait on the host alone (keep_prefix.h)
  bool weigh = false;          // kSwap: prefixes are computed again where that is cheaper
  std::shared_ptr<const ReplayCosts> replay;  // to weigh with; null: it swaps whole sequences
};

inline constexpr std::int64_t kVllmBlockTokens = 16;

class VllmPolicy final : public PlacementPolicy {
 public:
  explicit VllmPolicy(VllmOptions options = {}) : options_(std::move(options)) {}

  [[nodiscard]] std::string_view name() const override { return "vllm"; }
  [[nodiscard]] StaticPlacement start(const JobView& job) const override;
  [[nodiscard]] std::int64_t longest_line(const PlacementLimits& limits) const override;
  [[nodiscard]] WantsCosts wants_costs() const override {
    return options_.weigh && options_.replay == nullptr ? WantsCosts::kYes : WantsCosts::kNo;
  }
  [[nodiscard]] PlacementActions decide(const StepView& view) const override;

 private:
  VllmOptions options_;
};

}  // namespace triphase
