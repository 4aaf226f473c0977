#include "scheduler/placement/host_requests.h"

#include <algorithm>

namespace triphase {

void offload_full_blocks(PlacementStep& step, SequenceId id) {
  const std::int64_t full = step.book().sequence(id).tokens / step.limits().block_tokens;
  const std::int64_t offloaded = step.book().table(id).offloaded();
  if (full > offloaded) step.offload(id, full - offloaded);
}

std::int64_t prefill_blocks(const PlacementLimits& limits) {
  return limits.blocks_for(limits.prefill_chunk);
}

std::int64_t host_request_blocks(const PlacementStep& step, const WaitingRequest& request) {
  return step.limits().blocks_for(request.max_tokens) - step.offloaded_blocks(request);
}

void keep_requests_on_host(PlacementStep& step) {
  const PlacementLimits& limits = step.limits();
  for (const PlacedRequest& request : step.running()) {
    offload_full_blocks(step, request.id);
  }
  for (std::size_t index = 0; const WaitingRequest* next = step.waiting(index); ++index) {
    const WaitingRequest& request = *next;
    const Admit admit{.waiting = request.place, .host_blocks = host_request_blocks(step, request)};
    const bool fits =
        (step.running_count() + 1) * kHostRequestDeviceBlocks + prefill_blocks(limits) <=
            limits.device_blocks &&
        step.admission_blocks(admit) <= step.spare_device_blocks() &&
        admit.host_blocks + request.cached_host_blocks <= step.book().tiers().host.free();
    if (!fits) break;
    step.admit(admit);
  }
}

std::int64_t longest_host_request(const PlacementLimits& limits) {
  if (limits.device_blocks < kHostRequestDeviceBlocks + prefill_blocks(limits)) return 0;
  return limits.host_blocks * limits.block_tokens;
}

}  // namespace triphase
