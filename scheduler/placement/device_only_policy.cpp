#include "scheduler/placement/device_only_policy.h"

#include <algorithm>

#include "scheduler/kv/block_tokens.h"

namespace triphase {

StaticPlacement DeviceOnlyPolicy::start(const JobView& /*job*/) const {
  return {.windows_apart = true};
}

std::int64_t DeviceOnlyPolicy::longest_request(const PlacementLimits& limits) const {
  return longest_device_request(limits);
}

void DeviceOnlyPolicy::decide(PlacementStep& step) const { admit_with_full_reservation(step); }

void admit_with_full_reservation(PlacementStep& step) {
  for (std::size_t index = 0; const WaitingRequest* next = step.waiting(index); ++index) {
    const WaitingRequest& request = *next;
    Admit admit{.waiting = request.place};
    admit.device_blocks = std::max<std::int64_t>(
        step.limits().blocks_for(request.max_tokens) - request.found_blocks(), 0);
    // Strictly in order: a long request must not starve behind short ones.
    if (step.admission_blocks(admit) > step.spare_device_blocks()) break;
    step.admit(admit);
  }
}

std::int64_t longest_device_request(const PlacementLimits& limits) {
  return limits.most_blocks() * limits.block_tokens;
}

std::uint64_t device_kv_room(const JobView& job, std::int64_t streamed_layers) {
  // A streamed layer computes while the next one arrives.
  const std::int64_t buffers = std::min<std::int64_t>(streamed_layers, 2);
  const std::uint64_t taken =
      job.other_weights + job.scratch +
      job.layer_weights * static_cast<std::uint64_t>(job.layers - streamed_layers + buffers);
  return job.device_budget > taken ? job.device_budget - taken : 0;
}

std::uint64_t full_batch_kv(const JobView& job) {
  const std::int64_t blocks = blocks_for(job.longest_tokens, job.block_tokens);
  return job.kv_bytes_per_token *
         static_cast<std::uint64_t>(job.batch_size * blocks * job.block_tokens);
}

}  // namespace triphase
