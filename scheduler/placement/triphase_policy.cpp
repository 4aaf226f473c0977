#include "scheduler/placement/triphase_policy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "scheduler/placement/host_lines.h"
#include "scheduler/placement/placement_ledger.h"

namespace triphase {
namespace {

std::int64_t share_of(double share, std::int64_t tokens) {
  return static_cast<std::int64_t>(std::floor(share * static_cast<double>(tokens) + 1e-9));
}

// Tokens of one layer that a line with so many blocks away needs staged, now or later: what a
// sparse step touches grows with the context, and prefill touches everything.
std::int64_t longest_staged(const PlacementLimits& limits, const RunningSequence& sequence,
                            std::int64_t away_blocks) {
  const std::int64_t away = away_blocks * limits.block_tokens;
  if (sequence.prefilling() || limits.touched_share >= 1.0) return away;
  return std::min(away, static_cast<std::int64_t>(std::ceil(
                            static_cast<double>(sequence.max_tokens) * limits.touched_share)));
}

// Tokens of one layer that staging can still take; no limit: a number larger than any.
std::int64_t staging_room(const PlacementLedger& ledger) {
  const PlacementLimits& limits = ledger.view().limits;
  if (limits.staging_tokens == 0) return std::numeric_limits<std::int64_t>::max();
  std::int64_t room = limits.staging_tokens;
  for (std::size_t index = 0; index < ledger.view().running.size(); ++index) {
    const RunningSequence& sequence = ledger.running(index);
    if (ledger.is_running(index)) room -= longest_staged(limits, sequence, sequence.away_blocks());
  }
  for (const RunningSequence& sequence : ledger.started()) {
    room -= longest_staged(limits, sequence, sequence.away_blocks());
  }
  return room;
}

// Offloads up to `blocks` of the oldest device blocks, as far as the host and staging have room.
// Returns how many went.
std::int64_t offload_oldest(PlacementLedger& ledger, std::size_t index, std::int64_t blocks) {
  const RunningSequence& sequence = ledger.running(index);
  const PlacementLimits& limits = ledger.view().limits;
  const std::int64_t host_room = sequence.host_reserved + ledger.free_host_pages() / limits.layers;
  blocks = std::min(blocks, host_room);
  if (blocks <= 0) return 0;
  const std::int64_t room = staging_room(ledger);
  const std::int64_t away = sequence.away_blocks();
  const std::int64_t staged = longest_staged(limits, sequence, away);
  // Every sharer of these blocks has them staged for itself.
  const std::int64_t sharers = ledger.sharers(index);
  while (blocks > 0 &&
         (longest_staged(limits, sequence, away + blocks) - staged) * sharers > room) {
    --blocks;
  }
  if (blocks == 0) return 0;
  ledger.apply(Offload{sequence.id, away, away + blocks});
  return blocks;
}

}  // namespace

StaticPlacement TriphasePolicy::start(const JobView& /*job*/) const {
  return {.streamed_layers = schedule_.streamed_layers,
          .host_tier = true,
          .kv_dtype = schedule_.kv_dtype,
          .block_tokens = schedule_.block_tokens};
}

std::int64_t TriphasePolicy::longest_line(const PlacementLimits& limits) const {
  const std::int64_t slack = kHostLineDeviceBlocks + prefill_blocks(limits);
  const std::int64_t device = limits.device_blocks();
  std::int64_t host = limits.host_blocks();
  if (limits.staging_tokens > 0) {
    // Prefill is dense, so that a prompt's host tokens are staged whole.
    host = std::min(host, limits.staging_tokens / limits.block_tokens);
  }
  return (device < slack || host == 0 ? device : device - slack + host) * limits.block_tokens;
}

PlacementActions TriphasePolicy::decide(const StepView& view) const {
  PlacementLedger ledger(view);
  follow_schedule(ledger);
  relieve_pressure(ledger);
  bool suspended = false;
  for (std::size_t index = view.running.size(); index-- > 1 && ledger.spare_device_pages() < 0;) {
    ledger.apply(ledger.swap_if_it_fits(index));
    // What it needed staged leaves room for blocks of others, also of those that it shared.
    relieve_pressure(ledger);
    suspended = true;
  }
  if (ledger.actions().empty()) reload_when_plenty(ledger);
  if (!suspended) admit_waiting(ledger);
  return ledger.actions();
}

std::int64_t TriphasePolicy::movable_end(const RunningSequence& sequence,
                                         const PlacementLimits& limits, bool keep_window) const {
  std::int64_t tokens = sequence.context;
  if (keep_window) {
    tokens -= std::max(schedule_.window_tokens, share_of(schedule_.window_share, tokens));
  }
  return std::max<std::int64_t>(tokens, 0) / limits.block_tokens;
}

std::int64_t TriphasePolicy::target_away(const RunningSequence& sequence,
                                         const PlacementLimits& limits) const {
  if (scheduled_phase(schedule_, sequence.decode_step()) == Phase::kOne) return 0;
  const std::int64_t away = schedule_.device_tokens > 0
                                ? sequence.context - schedule_.device_tokens
                                : share_of(schedule_.alpha, sequence.context);
  return std::min(std::max<std::int64_t>(away, 0) / limits.block_tokens,
                  movable_end(sequence, limits, /*keep_window=*/true));
}

void TriphasePolicy::follow_schedule(PlacementLedger& ledger) const {
  const PlacementLimits& limits = ledger.view().limits;
  if (limits.host_pages == 0) return;
  for (std::size_t index = 0; index < ledger.view().running.size(); ++index) {
    const RunningSequence& sequence = ledger.running(index);
    offload_oldest(ledger, index, target_away(sequence, limits) - sequence.away_blocks());
    if (scheduled_phase(schedule_, sequence.decode_step()) != Phase::kThree) continue;
    const std::int64_t target =
        std::min(share_of(schedule_.beta, sequence.away_blocks()), sequence.input_blocks);
    // Sharers with less X saved decide for the blocks that they hold.
    if (target > sequence.recompute_blocks && ledger.shared_with_others(index) == 0) {
      ledger.apply(Discard{sequence.id, sequence.recompute_blocks, target});
    }
  }
}

void TriphasePolicy::relieve_pressure(PlacementLedger& ledger) const {
  relieve_pressure(ledger, /*keep_window=*/true);
  relieve_pressure(ledger, /*keep_window=*/false);
}

void TriphasePolicy::relieve_pressure(PlacementLedger& ledger, bool keep_window) const {
  const PlacementLimits& limits = ledger.view().limits;
  if (limits.host_pages == 0) return;
  std::vector<bool> stuck(ledger.view().running.size(), false);
  while (ledger.spare_device_pages() < 0) {
    // The sequence with most to give, the oldest of equals.
    std::size_t best = stuck.size();
    std::int64_t most = 0;
    for (std::size_t index = 0; index < stuck.size(); ++index) {
      const RunningSequence& sequence = ledger.running(index);
      const std::int64_t movable =
          movable_end(sequence, limits, keep_window) - sequence.away_blocks();
      if (!stuck[index] && ledger.is_running(index) && movable > most) {
        most = movable;
        best = index;
      }
    }
    if (best == stuck.size()) return;
    const std::int64_t missing = (-ledger.spare_device_pages() + limits.layers - 1) / limits.layers;
    // A part at a time, so that the burden spreads over the batch.
    const auto sequences = static_cast<std::int64_t>(stuck.size());
    const std::int64_t part = (missing + sequences - 1) / sequences;
    if (offload_oldest(ledger, best, std::min(most, part)) == 0) stuck[best] = true;
  }
}

void TriphasePolicy::admit_waiting(PlacementLedger& ledger) const {
  const StepView& view = ledger.view();
  const PlacementLimits& limits = view.limits;
  const std::int64_t window = limits.host_pages == 0 ? 0 : kHostLineDeviceBlocks;
  const std::int64_t passing = limits.host_pages == 0 ? 0 : prefill_blocks(limits);

  // Blocks that running lines may still need, and tokens they may need staged at their longest.
  std::int64_t future = 0;
  std::int64_t staged = 0;
  const auto touched_at_longest = [&](std::int64_t prompt_tokens, std::int64_t max_tokens) {
    if (limits.touched_share >= 1.0) return max_tokens;
    const auto touched = static_cast<std::int64_t>(
        std::ceil(static_cast<double>(max_tokens) * limits.touched_share));
    return std::max(prompt_tokens, touched);
  };
  for (const RunningSequence& sequence : view.running) {
    future += std::max<std::int64_t>(
        limits.blocks_for(sequence.max_tokens) - sequence.blocks() - sequence.device_reserved, 0);
    staged += touched_at_longest(sequence.prompt_tokens, sequence.max_tokens);
  }
  for (const SuspendedSequence& sequence : view.suspended) {
    // Swapped: as much of its KV comes back as there is room for. Dropped: it starts over.
    const bool swapped = sequence.mode == SuspendMode::kSwap;
    const bool alone = ledger.running_count() == 0;
    const std::int64_t step = std::max<std::int64_t>(
        std::min(sequence.prefill_tokens - sequence.context, ledger.prefill_left()), 1);
    const std::int64_t growth = limits.blocks_for(sequence.context + step) -
                                (swapped ? limits.blocks_for(sequence.context) : 0);
    const std::int64_t room = ledger.spare_device_pages() / limits.layers - growth -
                              (alone ? 0 : prefill_blocks(limits) + kHostLineDeviceBlocks);
    const std::int64_t open =
        limits.blocks_for(sequence.context) - sequence.context / limits.block_tokens;
    const std::int64_t device =
        swapped ? std::clamp<std::int64_t>(room, open, sequence.host_blocks) : 0;
    const std::int64_t staged_now =
        (limits.blocks_for(sequence.context) - device) * limits.block_tokens;
    const bool fits = room >= device && (alone || staged_now <= staging_room(ledger));
    if (ledger.running_count() >= limits.batch_size || !fits) return;
    ledger.apply(Resume{sequence.id, device});
    future += limits.blocks_for(sequence.max_tokens) - sequence.recompute_blocks - device;
    staged += touched_at_longest(sequence.prompt_tokens, sequence.max_tokens);
  }

  for (std::size_t index = 0; index < view.waiting.size(); ++index) {
    const WaitingPrompt& prompt = view.waiting[index];
    const std::int64_t running = ledger.running_count();
    if (running >= limits.batch_size) return;
    Admit admit{.waiting = static_cast<std::int64_t>(index)};
    if (schedule_.input_tokens > 0 && prompt.shared_blocks + prompt.cached_blocks == 0) {
      const std::int64_t wanted =
          limits.blocks_for(std::min(schedule_.input_tokens, prompt.max_tokens));
      admit.input_blocks = std::min(wanted, ledger.free_input_pages() / limits.layers);
    }
    future +=
        std::max<std::int64_t>(limits.blocks_for(prompt.max_tokens) - prompt.shared_blocks, 0);
    staged += touched_at_longest(prompt.prompt_tokens, prompt.max_tokens);
    // The host takes what the device cannot hold, as far as staging can bring it back.
    std::int64_t host = ledger.free_host_pages() / limits.layers;
    const std::int64_t device = ledger.free_device_pages() / limits.layers;
    bool fits =
        future + window * (running + 1) + passing <= device + host &&
        (limits.host_pages == 0 || window * (running + 1) + passing <= limits.device_blocks());
    if (limits.host_pages == 0) fits = future <= device;
    if (limits.host_pages > 0 && limits.staging_tokens > 0 && staged > limits.staging_tokens) {
      // Too much to bring back if it all left: then the device has to hold what staging cannot.
      if (limits.touched_share >= 1.0) {
        host =
            std::min(host, std::max<std::int64_t>(staging_room(ledger), 0) / limits.block_tokens);
        fits = fits && future + window * (running + 1) + passing <= device + host;
      } else {
        fits = false;
      }
    }
    if (prompt.shared_blocks > 0) {
      const auto owner = static_cast<std::size_t>(prompt.shares_with);
      const std::int64_t away = std::min(ledger.running(owner).away_blocks(), prompt.shared_blocks);
      fits = fits && away * limits.block_tokens <= staging_room(ledger);
    }
    fits = fits && ledger.admission_pages(admit) <= ledger.spare_device_pages();
    if (!fits && !(running == 0 && ledger.admission_pages(admit) <= ledger.spare_device_pages())) {
      return;
    }
    ledger.apply(admit);
  }
}

void TriphasePolicy::reload_when_plenty(PlacementLedger& ledger) const {
  const PlacementLimits& limits = ledger.view().limits;
  const auto running = static_cast<std::int64_t>(ledger.view().running.size());
  for (std::size_t index = 0; index < ledger.view().running.size(); ++index) {
    const RunningSequence& sequence = ledger.running(index);
    const std::int64_t surplus =
        std::min(sequence.away_blocks() - target_away(sequence, limits), sequence.host_blocks);
    // A block more for every line must stay free, else the next steps would send these back.
    const std::int64_t plenty =
        ledger.spare_device_pages() / limits.layers - running - prefill_blocks(limits);
    const std::int64_t blocks = std::min(surplus, plenty);
    if (blocks > 0 && ledger.shared_with_others(index) == 0) {
      const std::int64_t end = sequence.away_blocks();
      ledger.apply(Reload{sequence.id, end - blocks, end});
    }
  }
}

}  // namespace triphase
