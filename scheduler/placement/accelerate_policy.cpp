#include "scheduler/placement/accelerate_policy.h"

#include "scheduler/placement/device_only_policy.h"
#include "scheduler/placement/host_requests.h"

namespace triphase {
StaticPlacement AcceleratePolicy::start(const JobView& job) const {
  return {.host_tier = device_kv_room(job, 0) < full_batch_kv(job),
          .host_requests = true,
          .host_streams_all = true,
          .overlap = options_.overlap};
}

std::int64_t AcceleratePolicy::longest_request(const PlacementLimits& limits) const {
  return limits.host_blocks == 0 ? longest_device_request(limits) : longest_host_request(limits);
}

void AcceleratePolicy::decide(PlacementStep& step) const {
  if (step.limits().host_blocks == 0) {
    admit_with_full_reservation(step);
  } else {
    keep_requests_on_host(step);
  }
}

}  // namespace triphase
