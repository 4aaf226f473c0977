#include "scheduler/placement/flexgen_policy.h"

#include <algorithm>
#include <cmath>

#include "scheduler/placement/device_only_policy.h"
#include "scheduler/placement/host_requests.h"

namespace triphase {
namespace {

// A request of the block: on the device when its whole length fits there, else on the host.
enum class Home : std::uint8_t { kDevice, kHost, kNone };

// A share such as 0.3 of 10 sequences means three sequences, whatever its binary rounding.
std::int64_t round_down(double value) {
  return static_cast<std::int64_t>(std::floor(value + 1e-9));
}

}  // namespace

StaticPlacement FlexGenPolicy::start(const JobView& job) const {
  StaticPlacement placement{.host_tier = options_.device_kv_share < 1.0,
                            .host_kv = options_.host_kv,
                            .host_requests = true,
                            .host_always = true,
                            .gpu_batch = options_.gpu_batch,
                            .num_batches = options_.num_batches,
                            .overlap = options_.overlap};
  placement.streamed_layers =
      job.layers - round_down(options_.device_weight_share * static_cast<double>(job.layers));
  return placement;
}

std::int64_t FlexGenPolicy::longest_request(const PlacementLimits& limits) const {
  return std::max(longest_device_request(limits), longest_host_request(limits));
}

void FlexGenPolicy::decide(PlacementStep& step) const {
  for (const PlacedRequest& request : step.running()) {
    // Requests of the device share have no room on the host, though a prefix that they share may be
    // there. All other requests have room for every block that may still leave.
    if (step.book().sequence(request.id).reserved_host > 0) offload_full_blocks(step, request.id);
  }
  if (step.running().empty()) admit_block(step);
}

void FlexGenPolicy::admit_block(PlacementStep& step) const {
  const PlacementLimits& limits = step.limits();
  std::int64_t most = limits.batch_size;
  if (options_.gpu_batch > 0) most = std::min(most, options_.gpu_batch * options_.num_batches);
  std::int64_t requests = 0;
  while (requests < most && step.waiting(static_cast<std::size_t>(requests)) != nullptr) ++requests;
  const std::int64_t device_requests =
      round_down(options_.device_kv_share * static_cast<double>(requests));

  // Everything the block will ever hold, in blocks: reserved on the device, on the host, and the
  // device blocks that pass through on their way to the host.
  std::int64_t device_blocks = 0;
  std::int64_t host_requests = 0;
  for (std::int64_t index = 0; index < requests; ++index) {
    const WaitingRequest& request = *step.waiting(static_cast<std::size_t>(index));
    const auto device_room = [&](std::int64_t more, std::int64_t on_host) {
      const std::int64_t passing =
          on_host == 0 ? 0 : on_host * kHostRequestDeviceBlocks + prefill_blocks(limits);
      return device_blocks + more + passing <= limits.device_blocks;
    };
    const std::int64_t whole =
        std::max<std::int64_t>(limits.blocks_for(request.max_tokens) - request.found_blocks(), 0);
    const Admit on_device{.waiting = request.place, .device_blocks = whole};
    const std::int64_t host_room = step.book().tiers().host.free() - request.cached_host_blocks;
    const bool fits_device = device_room(whole + request.cached_blocks, host_requests) &&
                             step.admission_blocks(on_device) <= step.spare_device_blocks() &&
                             host_room >= 0;
    const Admit on_host{.waiting = request.place,
                        .host_blocks = host_request_blocks(step, request)};
    const bool fits_host = limits.host_blocks > 0 && device_room(0, host_requests + 1) &&
                           step.admission_blocks(on_host) <= step.spare_device_blocks() &&
                           on_host.host_blocks <= host_room;
    Home home = index < device_requests ? (fits_device ? Home::kDevice : Home::kNone)
                                        : (fits_host ? Home::kHost : Home::kNone);
    // Shares that fit no request at all must not stop the job.
    if (home == Home::kNone && index == 0 && fits_host) home = Home::kHost;
    if (home == Home::kNone && index == 0 && fits_device) home = Home::kDevice;
    if (home == Home::kNone) break;
    if (home == Home::kDevice) {
      device_blocks += whole + request.cached_blocks;
      step.admit(on_device);
    } else {
      ++host_requests;
      step.admit(on_host);
    }
  }
}

}  // namespace triphase
