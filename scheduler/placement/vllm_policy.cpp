#include "scheduler/placement/vllm_policy.h"

#include <algorithm>
#include <cmath>

#include "scheduler/placement/device_only_policy.h"

namespace triphase {
namespace {

// Share of the device's blocks kept free at admission, against preempting at once.
constexpr double kWatermark = 0.01;

// The most recently admitted request makes room. Returns whether any had to.
bool preempt_until_it_fits(PlacementStep& step, PreemptMode preemption) {
  bool preempted = false;
  while (step.running().size() > 1 && step.spare_device_blocks() < 0) {
    const SequenceId last = step.running().back().id;
    if (preemption == PreemptMode::kSwap) {
      step.preempt(last);
    } else {
      step.preempt(last, PreemptMode::kDrop);
    }
    preempted = true;
  }
  return preempted;
}

}  // namespace

StaticPlacement VllmPolicy::start(const JobView& job) const {
  StaticPlacement placement{.host_tier = options_.preemption == PreemptMode::kSwap,
                            .windows_apart = true};
  // A policy must not change an answer, as INT8 blocks of another length would.
  if (!job.int8_kv) placement.block_tokens = kVllmBlockTokens;
  return placement;
}

std::int64_t VllmPolicy::longest_request(const PlacementLimits& limits) const {
  return longest_device_request(limits);
}

void VllmPolicy::decide(PlacementStep& step) const { run_on_demand(step, options_.preemption); }

void run_on_demand(PlacementStep& step, PreemptMode preemption) {
  if (preempt_until_it_fits(step, preemption)) return;

  const PlacementLimits& limits = step.limits();
  const auto watermark =
      static_cast<std::int64_t>(std::ceil(kWatermark * static_cast<double>(limits.device_blocks)));
  const auto has_room = [&](std::int64_t blocks) {
    const std::int64_t kept = step.running().empty() ? 0 : watermark;
    return step.running_count() < limits.batch_size && blocks + kept <= step.spare_device_blocks();
  };
  for (std::size_t index = 0; index < step.preempted().size(); ++index) {
    const PlacedRequest& request = step.preempted()[index];
    // Room for all that it had and for the next step.
    const std::int64_t tokens = std::max(request.prefill_tokens, request.context + 1);
    const std::int64_t blocks = limits.blocks_for(tokens) - step.resumption_shared(request);
    if (!has_room(blocks + step.resumption_windows(request))) return;
    step.resume(index,
                request.mode == PreemptMode::kSwap ? limits.blocks_for(request.context) : blocks);
  }
  for (std::size_t index = 0; const WaitingRequest* next = step.waiting(index); ++index) {
    const WaitingRequest& request = *next;
    const Admit admit{.waiting = request.place,
                      .device_blocks = std::max<std::int64_t>(
                          limits.blocks_for(request.prompt_tokens) - request.found_blocks(), 0)};
    if (!has_room(step.admission_blocks(admit))) break;
    step.admit(admit);
  }
}

}  // namespace triphase
