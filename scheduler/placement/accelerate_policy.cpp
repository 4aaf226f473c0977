#include "scheduler/placement/accelerate_policy.h"

#include "scheduler/placement/device_only_policy.h"
#include "scheduler/placement/host_lines.h"

namespace triphase {
StaticPlacement AcceleratePolicy::start(const JobView& job) const {
  return {.host_tier = device_kv_room(job, 0) < full_batch_kv(job),
          .host_lines = true,
          .host_streams_all = true,
          .overlap = options_.overlap};
}

std::int64_t AcceleratePolicy::longest_line(const PlacementLimits& limits) const {
  return limits.host_pages == 0 ? longest_device_line(limits) : longest_host_line(limits);
}

PlacementActions AcceleratePolicy::decide(const StepView& view) const {
  PlacementLedger ledger(view);
  if (view.limits.host_pages == 0) {
    admit_with_full_reservation(ledger);
    return ledger.actions();
  }
  keep_lines_on_host(ledger);
  return ledger.actions();
}

}  // namespace triphase
