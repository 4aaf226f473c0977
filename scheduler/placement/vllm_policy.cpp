#include "scheduler/placement/vllm_policy.h"

#include <algorithm>
#include <cmath>

#include "scheduler/placement/device_only_policy.h"
#include "scheduler/placement/placement_ledger.h"

namespace triphase {
namespace {

// Share of the device's blocks kept free at admission, against preempting at once.
constexpr double kWatermark = 0.01;

// The most recently admitted sequence makes room. Returns whether any had to.
bool preempt_until_it_fits(PlacementLedger& ledger, const VllmOptions& options) {
  bool preempted = false;
  for (std::size_t index = ledger.view().running.size();
       index-- > 1 && ledger.spare_device_pages() < 0;) {
    ledger.apply(options.preemption == SuspendMode::kSwap
                     ? ledger.swap_if_it_fits(index)
                     : Suspend{ledger.running(index).id, SuspendMode::kDrop});
    preempted = true;
  }
  return preempted;
}

}  // namespace

StaticPlacement VllmPolicy::start(const JobView& /*job*/) const {
  return {.host_tier = options_.preemption == SuspendMode::kSwap, .block_tokens = kVllmBlockTokens};
}

std::int64_t VllmPolicy::longest_line(const PlacementLimits& limits) const {
  return longest_device_line(limits);
}

PlacementActions VllmPolicy::decide(const StepView& view) const {
  PlacementLedger ledger(view);
  if (preempt_until_it_fits(ledger, options_)) return ledger.actions();

  const PlacementLimits& limits = view.limits;
  const auto watermark = static_cast<std::int64_t>(
      std::ceil(kWatermark * static_cast<double>(limits.device_blocks())));
  const auto has_room = [&](std::int64_t pages) {
    const std::int64_t kept = ledger.running_count() == 0 ? 0 : watermark * limits.layers;
    return ledger.running_count() < limits.batch_size &&
           pages + kept <= ledger.spare_device_pages();
  };
  for (const SuspendedSequence& sequence : view.suspended) {
    // Room for all that it had and for the next step.
    const std::int64_t tokens = std::max(sequence.prefill_tokens, sequence.context + 1);
    const std::int64_t blocks = limits.blocks_for(tokens);
    if (!has_room(blocks * limits.layers)) return ledger.actions();
    ledger.apply(Resume{sequence.id, sequence.mode == SuspendMode::kSwap
                                         ? limits.blocks_for(sequence.context)
                                         : blocks});
  }
  for (std::size_t index = 0; index < view.waiting.size(); ++index) {
    const WaitingPrompt& prompt = view.waiting[index];
    const Admit admit{
        .waiting = static_cast<std::int64_t>(index),
        .device_blocks = std::max<std::int64_t>(
            limits.blocks_for(prompt.prompt_tokens) - prompt.shared_blocks - prompt.cached_blocks,
            0)};
    if (!has_room(ledger.admission_pages(admit))) break;
    ledger.apply(admit);
  }
  return ledger.actions();
}

}  // namespace triphase
