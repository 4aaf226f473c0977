#pragma once

// `flexgen`: a static split fixed before the first token (FlexGen, ICML 2023). A zig-zag block of
// gpu_batch x num_batches sequences is admitted at once, with all its KV allocated up front; a
// share of its sequences, rounded down to whole sequences as the original does, has its KV on the
// device, the rest on the host. The next block starts when the last sequence of this one has ended.

#include "scheduler/placement/placement_policy.h"

namespace triphase {

struct FlexGenOptions {
  double device_kv_share = 0.0;      // cg: share of the block's sequences with KV on the device
  double device_weight_share = 1.0;  // wg: share of the layers' weights on the device
  std::int64_t gpu_batch = 0;        // sequences computed together; 0: the whole batch
  std::int64_t num_batches = 1;      // batches for which a layer's weights are loaded once
  HostKvUse host_kv = HostKvUse::kStream;
  bool overlap = true;
};

class FlexGenPolicy final : public PlacementPolicy {
 public:
  explicit FlexGenPolicy(const FlexGenOptions& options) : options_(options) {}

  [[nodiscard]] std::string_view name() const override { return "flexgen"; }
  [[nodiscard]] StaticPlacement start(const JobView& job) const override;
  [[nodiscard]] std::int64_t longest_request(const PlacementLimits& limits) const override;
  void decide(PlacementStep& step) const override;

  [[nodiscard]] const FlexGenOptions& options() const { return options_; }

 private:
  void admit_block(PlacementStep& step) const;

  FlexGenOptions options_;
};

}  // namespace triphase
