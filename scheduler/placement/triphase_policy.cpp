#include "scheduler/placement/triphase_policy.h"

#include <algorithm>
#include <cmath>

#include "scheduler/placement/host_requests.h"
#include "scheduler/placement/vllm_policy.h"

namespace triphase {
namespace {

std::int64_t share_of(double share, std::int64_t tokens) {
  return static_cast<std::int64_t>(std::floor(share * static_cast<double>(tokens) + 1e-9));
}

// Offloads up to `blocks` of the oldest device blocks, as far as the host has room. Returns how
// many went.
std::int64_t offload_oldest(PlacementStep& step, const PlacedRequest& request,
                            std::int64_t blocks) {
  const KvBook& book = step.book();
  blocks = std::min(blocks, book.sequence(request.id).reserved_host + book.tiers().host.free());
  if (blocks <= 0) return 0;
  step.offload(request.id, blocks);
  return blocks;
}

}  // namespace

StaticPlacement TriphasePolicy::start(const JobView& /*job*/) const {
  return {.streamed_layers = schedule_.streamed_layers,
          .host_tier = schedule_.host_tier,
          .windows_apart = true,
          .kv_dtype = schedule_.kv_dtype,
          .block_tokens = schedule_.block_tokens};
}

std::int64_t TriphasePolicy::longest_request(const PlacementLimits& limits) const {
  const std::int64_t slack = kHostRequestDeviceBlocks + prefill_blocks(limits);
  const std::int64_t host = limits.host_blocks;
  // Beside the window blocks of a request of any length.
  const std::int64_t device = limits.device_blocks - limits.batch_windows(1, INT32_MAX);
  const bool alone = device < slack || host == 0;
  return (alone ? limits.most_blocks() : device - slack + host) * limits.block_tokens;
}

void TriphasePolicy::decide(PlacementStep& step) const {
  if (schedule_.on_demand) {
    run_on_demand(step, PreemptMode::kDrop);
    return;
  }
  follow_schedule(step);
  relieve_pressure(step);
  bool preempted = false;
  while (step.running().size() > 1 && step.spare_device_blocks() < 0) {
    step.preempt(step.running().back().id);
    // Blocks that it shared may move now.
    relieve_pressure(step);
    preempted = true;
  }
  if (step.actions().empty()) reload_when_plenty(step);
  if (preempted) return;
  if (resume_preempted(step)) admit_waiting(step, demand_of_running(step));
}

std::int64_t TriphasePolicy::movable_end(const PlacedRequest& request,
                                         const PlacementLimits& limits, bool keep_window) const {
  std::int64_t tokens = request.context;
  if (keep_window) {
    tokens -= std::max(schedule_.window_tokens, share_of(schedule_.window_share, tokens));
  }
  return std::max<std::int64_t>(tokens, 0) / limits.block_tokens;
}

std::int64_t TriphasePolicy::offload_target(const PlacedRequest& request,
                                            const PlacementLimits& limits) const {
  if (scheduled_phase(schedule_, request.decode_step()) == Phase::kOne) return 0;
  const std::int64_t tokens = schedule_.device_tokens > 0
                                  ? request.context - schedule_.device_tokens
                                  : share_of(schedule_.alpha, request.context);
  return std::min(std::max<std::int64_t>(tokens, 0) / limits.block_tokens,
                  movable_end(request, limits, /*keep_window=*/true));
}

void TriphasePolicy::follow_schedule(PlacementStep& step) const {
  const PlacementLimits& limits = step.limits();
  const KvBook& book = step.book();
  if (limits.host_blocks == 0) return;
  for (const PlacedRequest& request : step.running()) {
    offload_oldest(step, request,
                   offload_target(request, limits) - book.table(request.id).offloaded());
    if (scheduled_phase(schedule_, request.decode_step()) != Phase::kThree) continue;
    const std::int64_t more = std::min(share_of(schedule_.beta, book.table(request.id).offloaded()),
                                       book.table(request.id).with_inputs()) -
                              book.table(request.id).recomputable();
    // A shared block stays: another of its requests may have no X of it saved.
    if (more > 0 && book.table(request.id).shared() == 0) step.discard(request.id, more);
  }
}

void TriphasePolicy::relieve_pressure(PlacementStep& step) const {
  relieve_pressure(step, /*keep_window=*/true);
  relieve_pressure(step, /*keep_window=*/false);
}

void TriphasePolicy::relieve_pressure(PlacementStep& step, bool keep_window) const {
  const PlacementLimits& limits = step.limits();
  if (limits.host_blocks == 0) return;
  std::vector<bool> stuck(step.running().size(), false);
  for (std::int64_t spare = step.spare_device_blocks(); spare < 0;
       spare = step.spare_device_blocks()) {
    // The request with the most movable blocks; among equals the oldest.
    std::size_t best = stuck.size();
    std::int64_t most = 0;
    for (std::size_t index = 0; index < stuck.size(); ++index) {
      const PlacedRequest& request = step.running()[index];
      const std::int64_t movable =
          movable_end(request, limits, keep_window) - step.book().table(request.id).offloaded();
      if (!stuck[index] && movable > most) {
        most = movable;
        best = index;
      }
    }
    if (best == stuck.size()) return;
    // A part at a time, so that the burden spreads over the batch.
    const auto requests = static_cast<std::int64_t>(stuck.size());
    const std::int64_t part = (-spare + requests - 1) / requests;
    if (offload_oldest(step, step.running()[best], std::min(most, part)) == 0) stuck[best] = true;
  }
}

std::int64_t TriphasePolicy::demand_of_running(const PlacementStep& step) {
  std::int64_t demand = 0;
  for (const PlacedRequest& request : step.running()) {
    const std::int64_t reserved = step.book().sequence(request.id).reserved_device;
    demand += std::max<std::int64_t>(step.limits().blocks_for(request.max_tokens) -
                                         step.book().table(request.id).size() - reserved,
                                     0);
  }
  return demand;
}

bool TriphasePolicy::resume_preempted(PlacementStep& step) {
  const PlacementLimits& limits = step.limits();
  for (std::size_t index = 0; index < step.preempted().size(); ++index) {
    const PlacedRequest& request = step.preempted()[index];
    // Swapped: as much of its KV comes back as there is room for. Dropped: it starts over.
    const bool swapped = request.mode == PreemptMode::kSwap;
    const bool alone = step.running().empty();
    const std::int64_t there =
        swapped ? request.context : step.resumption_shared(request) * limits.block_tokens;
    const std::int64_t rows =
        std::max<std::int64_t>(std::min(request.prefill_tokens - there, step.prefill_left()), 1);
    const std::int64_t growth = limits.blocks_for(there + rows) - limits.blocks_for(there);
    const std::int64_t room = step.spare_device_blocks() - growth -
                              step.resumption_windows(request) -
                              (alone ? 0 : prefill_blocks(limits) + kHostRequestDeviceBlocks);
    const std::int64_t partial =
        limits.blocks_for(request.context) - request.context / limits.block_tokens;
    const std::int64_t device =
        swapped ? std::clamp(room, partial, step.book().table(request.id).on_host()) : 0;
    if (step.running_count() >= limits.batch_size || room < device) return false;
    step.resume(index, device);
  }
  return true;
}

bool TriphasePolicy::fits(const PlacementStep& step, std::int64_t demand, std::int64_t windows) {
  const PlacementLimits& limits = step.limits();
  const std::int64_t device = step.book().tiers().device.free() - windows;
  if (limits.host_blocks == 0) return demand <= device;
  // The host takes what the device cannot hold.
  const std::int64_t passing =
      kHostRequestDeviceBlocks * (step.running_count() + 1) + prefill_blocks(limits);
  return demand + passing <= device + step.book().tiers().host.free() &&
         passing <= limits.device_blocks - step.window_blocks() - windows;
}

void TriphasePolicy::admit_waiting(PlacementStep& step, std::int64_t demand) const {
  const PlacementLimits& limits = step.limits();
  for (std::size_t index = 0; const WaitingRequest* next = step.waiting(index); ++index) {
    const WaitingRequest& request = *next;
    Admit admit{.waiting = request.place};
    if (schedule_.input_tokens > 0 && request.found_blocks() == 0) {
      const std::int64_t wanted =
          limits.blocks_for(std::min(schedule_.input_tokens, request.max_tokens));
      admit.input_blocks = std::min(wanted, step.book().tiers().inputs.free());
    }
    demand +=
        std::max<std::int64_t>(limits.blocks_for(request.max_tokens) - request.shared_blocks, 0);
    const std::int64_t windows = step.book().window_reservation(request.max_tokens);
    if (!step.running().empty() && !fits(step, demand, windows)) return;
    if (step.admission_blocks(admit) > step.spare_device_blocks()) return;
    step.admit(admit);
  }
}

void TriphasePolicy::reload_when_plenty(PlacementStep& step) const {
  const PlacementLimits& limits = step.limits();
  const KvBook& book = step.book();
  for (const PlacedRequest& request : step.running()) {
    const std::int64_t surplus =
        std::min(book.table(request.id).offloaded() - offload_target(request, limits),
                 book.table(request.id).on_host());
    // A block more for every request must stay free, else the next steps would send these back.
    const std::int64_t plenty =
        step.spare_device_blocks() - step.running_count() - prefill_blocks(limits);
    const std::int64_t blocks = std::min(surplus, plenty);
    if (blocks > 0 && book.table(request.id).shared() == 0) step.load(request.id, blocks);
  }
}

}  // namespace triphase
