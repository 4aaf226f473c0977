#include "scheduler/placement/zero_policy.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/format_bytes.h"
#include "scheduler/placement/device_only_policy.h"
#include "scheduler/placement/host_requests.h"

namespace triphase {

StaticPlacement ZeroPolicy::start(const JobView& job) const {
  if (options_.mode == ZeroMode::k2023) {
    return {.streamed_layers = job.layers,
            .host_tier = true,
            .host_kv = HostKvUse::kCpuAttention,
            .host_requests = true,
            .host_always = true,
            .overlap = options_.overlap};
  }
  const std::uint64_t kv = full_batch_kv(job);
  if (device_kv_room(job, job.layers) < kv) {
    const std::uint64_t room = device_kv_room(job, job.layers);
    const std::uint64_t one = kv / static_cast<std::uint64_t>(job.batch_size);
    Error error(ErrorRole::kResources, "E-MEM-FIT", "device memory");
    error
        .found(fmt::format("--policy zero keeps KV on the device, and a batch of {} with {} tokens "
                           "each needs {} of KV; beside two streamed layers {} are left",
                           job.batch_size, job.longest_tokens, format_bytes(kv),
                           format_bytes(room)))
        .expected("a batch whose KV fits");
    if (one > 0 && room >= one) {
      error.hint(fmt::format("--batch-size {} fits", room / one));
    } else {
      error.hint("--policy triphase places KV on the host");
    }
    throw error;
  }
  StaticPlacement placement{.overlap = options_.overlap};
  while (placement.streamed_layers < job.layers &&
         device_kv_room(job, placement.streamed_layers) < kv) {
    ++placement.streamed_layers;
  }
  return placement;
}

std::int64_t ZeroPolicy::longest_request(const PlacementLimits& limits) const {
  return options_.mode == ZeroMode::k2023 ? longest_host_request(limits)
                                          : longest_device_request(limits);
}

void ZeroPolicy::decide(PlacementStep& step) const {
  if (options_.mode == ZeroMode::k2023) {
    keep_requests_on_host(step);
  } else {
    admit_with_full_reservation(step);
  }
}

}  // namespace triphase
