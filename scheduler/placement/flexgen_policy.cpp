#include "scheduler/placement/flexgen_policy.h"

#include <algorithm>
#include <cmath>

#include "scheduler/placement/device_only_policy.h"
#include "scheduler/placement/host_lines.h"

namespace triphase {
namespace {

// A line of the block: on the device when its whole length fits there, else on the host.
enum class Home : std::uint8_t { kDevice, kHost, kNone };

// A share such as 0.3 of 10 sequences means three of them, whatever its binary rounding.
std::int64_t round_down(double value) {
  return static_cast<std::int64_t>(std::floor(value + 1e-9));
}

}  // namespace

StaticPlacement FlexGenPolicy::start(const JobView& job) const {
  StaticPlacement placement{.host_tier = options_.device_kv_share < 1.0,
                            .host_kv = options_.host_kv,
                            .host_lines = true,
                            .host_always = true,
                            .gpu_batch = options_.gpu_batch,
                            .num_batches = options_.num_batches,
                            .overlap = options_.overlap};
  placement.streamed_layers =
      job.layers - round_down(options_.device_weight_share * static_cast<double>(job.layers));
  return placement;
}

std::int64_t FlexGenPolicy::longest_line(const PlacementLimits& limits) const {
  return std::max(longest_device_line(limits), longest_host_line(limits));
}

PlacementActions FlexGenPolicy::decide(const StepView& view) const {
  PlacementLedger ledger(view);
  for (std::size_t index = 0; index < view.running.size(); ++index) {
    // Lines of the device share were given no room on the host, though a prefix that they share
    // with others may be there; the others have room for all that may still leave.
    if (view.running[index].host_reserved > 0) {
      offload_closed_blocks(ledger, index);
    }
  }
  if (view.running.empty()) admit_block(ledger);
  return ledger.actions();
}

void FlexGenPolicy::admit_block(PlacementLedger& ledger) const {
  const StepView& view = ledger.view();
  const PlacementLimits& limits = view.limits;
  std::int64_t lines = std::min(limits.batch_size, static_cast<std::int64_t>(view.waiting.size()));
  if (options_.gpu_batch > 0) lines = std::min(lines, options_.gpu_batch * options_.num_batches);
  const std::int64_t device_lines =
      round_down(options_.device_kv_share * static_cast<double>(lines));

  // Everything the block will ever hold, in blocks: reserved on the device, on the host, and the
  // device blocks that pass through on their way to the host.
  std::int64_t device_blocks = 0;
  std::int64_t host_lines = 0;
  std::int64_t staged = 0;
  for (std::int64_t line = 0; line < lines; ++line) {
    const WaitingPrompt& prompt = view.waiting[static_cast<std::size_t>(line)];
    if (options_.gpu_batch > 0 && line % options_.gpu_batch == 0) staged = 0;
    const auto device_room = [&](std::int64_t more, std::int64_t on_host) {
      const std::int64_t passing =
          on_host == 0 ? 0 : on_host * kHostLineDeviceBlocks + prefill_blocks(limits);
      return device_blocks + more + passing <= limits.device_blocks();
    };
    const std::int64_t whole = std::max<std::int64_t>(
        limits.blocks_for(prompt.max_tokens) - prompt.shared_blocks - prompt.cached_blocks, 0);
    const Admit on_device{.waiting = line, .device_blocks = whole};
    const bool fits_device = device_room(whole + prompt.cached_blocks, host_lines) &&
                             ledger.admission_pages(on_device) <= ledger.spare_device_pages();
    const Admit on_host{.waiting = line, .host_blocks = host_line_blocks(ledger, prompt)};
    const bool fits_host =
        limits.host_pages > 0 && device_room(0, host_lines + 1) &&
        ledger.admission_pages(on_host) <= ledger.spare_device_pages() &&
        on_host.host_blocks * limits.layers <= ledger.free_host_pages() &&
        (limits.staging_tokens == 0 || staged + prompt.max_tokens <= limits.staging_tokens);
    Home home = line < device_lines ? (fits_device ? Home::kDevice : Home::kNone)
                                    : (fits_host ? Home::kHost : Home::kNone);
    // Shares that fit no line at all must not stop the job.
    if (home == Home::kNone && line == 0 && fits_host) home = Home::kHost;
    if (home == Home::kNone && line == 0 && fits_device) home = Home::kDevice;
    if (home == Home::kNone) break;
    if (home == Home::kDevice) {
      device_blocks += whole + prompt.cached_blocks;
      ledger.apply(on_device);
    } else {
      ++host_lines;
      staged += prompt.max_tokens;
      ledger.apply(on_host);
    }
  }
}

}  // namespace triphase
