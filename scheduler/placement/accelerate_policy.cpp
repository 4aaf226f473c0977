#include "scheduler/placement/accelerate_policy.h"

#include "scheduler/placement/device_only_policy.h"
#include "scheduler/placement/host_lines.h"

namespace triphase {
namespace {

void admit_to_host(PlacementLedger& ledger) {
  const StepView& view = ledger.view();
  const PlacementLimits& limits = view.limits;
  std::int64_t staged = 0;  // once every line has its longest length
  for (const RunningSequence& sequence : view.running) staged += sequence.max_tokens;
  for (std::size_t index = 0; index < view.waiting.size(); ++index) {
    const WaitingPrompt& prompt = view.waiting[index];
    const std::int64_t running = ledger.running_count();
    if (running >= limits.batch_size) break;
    const Admit admit{.waiting = static_cast<std::int64_t>(index),
                      .host_blocks = host_line_blocks(ledger, prompt)};
    staged += prompt.max_tokens;
    const bool fits =
        (running + 1) * kHostLineDeviceBlocks + prefill_blocks(limits) <= limits.device_blocks() &&
        ledger.admission_pages(admit) <= ledger.spare_device_pages() &&
        admit.host_blocks * limits.layers <= ledger.free_host_pages() &&
        (limits.staging_tokens == 0 || staged <= limits.staging_tokens);
    if (!fits) break;
    ledger.apply(admit);
  }
}

}  // namespace

StaticPlacement AcceleratePolicy::start(const JobView& job) const {
  return {.host_tier = device_kv_room(job, 0) < full_batch_kv(job),
          .overlap = options_.overlap,
          .pinned = options_.pinned};
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
  for (std::size_t index = 0; index < view.running.size(); ++index) {
    offload_closed_blocks(ledger, index);
  }
  admit_to_host(ledger);
  return ledger.actions();
}

}  // namespace triphase
