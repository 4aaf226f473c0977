#pragma once

// `zero`, after DeepSpeed ZeRO-Inference as ALISA measured it: weights are streamed from the host
// layer by layer in every step, KV stays on the device, and a batch whose KV does not fit is
// refused (it offloads weights, not KV).

#include "scheduler/placement/placement_policy.h"

namespace triphase {

struct ZeroOptions {
  // Stream every layer, as the original does. Off: only as many as the batch's KV needs room.
  bool stream_all = false;
  bool overlap = true;
};

class ZeroPolicy final : public PlacementPolicy {
 public:
  explicit ZeroPolicy(const ZeroOptions& options = {}) : options_(options) {}

  [[nodiscard]] std::string_view name() const override { return "zero"; }
  // Throws E-MEM-FIT when the KV of a full batch does not fit beside two streamed layers.
  [[nodiscard]] StaticPlacement start(const JobView& job) const override;
  [[nodiscard]] std::int64_t longest_line(const PlacementLimits& limits) const override;
  [[nodiscard]] PlacementActions decide(const StepView& view) const override;

 private:
  ZeroOptions options_;
};

}  // namespace triphase
