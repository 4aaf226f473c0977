#pragma once

// `accelerate`, after Hugging Face's offloaded cache: the whole KV lives on the host and crosses
// the link layer by layer in every step; device-only when a full batch fits on the device.

#include "scheduler/placement/placement_policy.h"

namespace triphase {

struct AccelerateOptions {
  bool overlap = true;  // off: no prefetch of the next layer, as older releases
};

class AcceleratePolicy final : public PlacementPolicy {
 public:
  explicit AcceleratePolicy(const AccelerateOptions& options = {}) : options_(options) {}

  [[nodiscard]] std::string_view name() const override { return "accelerate"; }
  [[nodiscard]] StaticPlacement start(const JobView& job) const override;
  [[nodiscard]] std::int64_t longest_request(const PlacementLimits& limits) const override;
  void decide(PlacementStep& step) const override;

 private:
  AccelerateOptions options_;
};

}  // namespace triphase
