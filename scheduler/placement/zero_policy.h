#pragma once

// `zero`, after DeepSpeed ZeRO-Inference as ALISA measured it: weights are streamed from the host
// layer by layer in every step, KV stays on the device, and a batch whose KV does not fit is
// refused (it offloads weights, not KV). An option selects its release of 2023, which keeps all KV
// on the host and attends it there in decode.

#include "scheduler/placement/placement_policy.h"

namespace triphase {

enum class ZeroMode : std::uint8_t { k2022, k2023 };

struct ZeroOptions {
  ZeroMode mode = ZeroMode::k2022;
  bool overlap = true;
};

class ZeroPolicy final : public PlacementPolicy {
 public:
  explicit ZeroPolicy(const ZeroOptions& options = {}) : options_(options) {}

  [[nodiscard]] std::string_view name() const override { return "zero"; }
  // k2022: throws E-MEM-FIT when the KV of a full batch does not fit beside two streamed layers.
  [[nodiscard]] StaticPlacement start(const JobView& job) const override;
  [[nodiscard]] std::int64_t longest_request(const PlacementLimits& limits) const override;
  void decide(PlacementStep& step) const override;

 private:
  ZeroOptions options_;
};

}  // namespace triphase
