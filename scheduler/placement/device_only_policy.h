#pragma once

// `device-only`: every token on the device. A request's longest length is reserved when it is
// admitted, so that a running request never runs out; first come, first served. `zero` uses the
// same rule.

#include "scheduler/placement/placement_policy.h"

namespace triphase {

class DeviceOnlyPolicy final : public PlacementPolicy {
 public:
  [[nodiscard]] std::string_view name() const override { return "device-only"; }
  [[nodiscard]] StaticPlacement start(const JobView& job) const override;
  [[nodiscard]] std::int64_t longest_request(const PlacementLimits& limits) const override;
  void decide(PlacementStep& step) const override;
};

// Admits waiting requests in order while the device can hold their longest length.
void admit_with_full_reservation(PlacementStep& step);

// Longest request when every block must be on the device.
[[nodiscard]] std::int64_t longest_device_request(const PlacementLimits& limits);

// Device bytes that a job has for KV beside the weights that stay and `buffers` streamed layers.
[[nodiscard]] std::uint64_t device_kv_room(const JobView& job, std::int64_t streamed_layers);

// Bytes of KV when a whole batch has reached its longest length, in whole blocks.
[[nodiscard]] std::uint64_t full_batch_kv(const JobView& job);

}  // namespace triphase
