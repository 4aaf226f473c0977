#include "scheduler/placement/flexgen_policy.h"

#include <algorithm>
#include <cmath>

#include "scheduler/flexgen/weight_rounding.h"
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

// What the first `lines` waiting prompts are padded to. A line that may grow longer than others is
// padded to a longest line's length at most, which is known to fit.
class Padding {
 public:
  Padding(const StepView& view, std::int64_t lines) : block_(view.limits.block_tokens) {
    for (std::int64_t line = 0; line < lines; ++line) {
      const WaitingPrompt& prompt = view.waiting[static_cast<std::size_t>(line)];
      prompt_ = std::max(prompt_, prompt.prompt_tokens);
      longest_ = std::max(longest_, prompt.max_tokens);
    }
  }
  [[nodiscard]] std::int64_t of(const WaitingPrompt& prompt) const {
    // Shared blocks are where another line has them.
    if (prompt.shared_blocks > 0 || prompt.cached_blocks > 0) return 0;
    const std::int64_t missing =
        std::min(prompt_ - prompt.prompt_tokens, longest_ - prompt.max_tokens);
    return missing / block_ * block_;
  }

 private:
  std::int64_t block_;
  std::int64_t prompt_ = 0;
  std::int64_t longest_ = 0;
};

}  // namespace

StaticPlacement FlexGenPolicy::start(const JobView& job) const {
  StaticPlacement placement{.host_tier = options_.device_kv_share < 1.0,
                            .host_kv = options_.host_kv,
                            .host_lines = true,
                            .host_always = true,
                            .gpu_batch = options_.gpu_batch,
                            .num_batches = options_.num_batches,
                            .hidden_on_host = options_.hidden_on_host,
                            .overlap = options_.overlap,
                            .pinned = options_.pinned,
                            .padding = options_.padding,
                            .fp32_workspace = options_.fp32_workspace,
                            .copy_device = options_.copy_device,
                            .sync_each_layer = options_.sync_each_layer};
  placement.streamed_layers = job.layers - device_layers(job);
  return placement;
}

std::int64_t FlexGenPolicy::device_layers(const JobView& job) const {
  const auto layers = static_cast<double>(job.layers);
  if (options_.weight_rounding == WeightRounding::kLayer) {
    return round_down(options_.device_weight_share * layers);
  }
  // The engine streams whole layers: as many bytes stay as the tensors of all layers have.
  const double held = flexgen::held_share(job.layer_modules, options_.device_weight_share);
  return std::llround(held * layers);
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
  if (!options_.padding) {
    (void)admit_lines(ledger, lines);
    return;
  }
  // Fewer lines may have a shorter longest prompt; one alone is not padded.
  while (lines > 0) {
    PlacementLedger attempt = ledger;
    const std::int64_t fitting = admit_lines(attempt, lines);
    if (fitting == lines) {
      ledger = std::move(attempt);
      return;
    }
    lines = fitting > 0 ? fitting : lines - 1;
  }
}

std::int64_t FlexGenPolicy::admit_lines(PlacementLedger& ledger, std::int64_t lines) const {
  const StepView& view = ledger.view();
  const PlacementLimits& limits = view.limits;
  const std::int64_t device_lines =
      round_down(options_.device_kv_share * static_cast<double>(lines));
  const Padding paddings(view, options_.padding ? lines : 0);

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
    const std::int64_t padding = options_.padding ? paddings.of(prompt) : 0;
    const std::int64_t longest = padding + prompt.max_tokens;
    const std::int64_t whole = std::max<std::int64_t>(
        limits.blocks_for(longest) - prompt.shared_blocks - prompt.cached_blocks, 0);
    const Admit on_device{.waiting = line, .device_blocks = whole, .padding = padding};
    const bool fits_device = device_room(whole + prompt.cached_blocks, host_lines) &&
                             ledger.admission_pages(on_device) <= ledger.spare_device_pages();
    const Admit on_host{
        .waiting = line,
        .host_blocks = host_line_blocks(ledger, prompt) + padding / limits.block_tokens,
        .padding = padding};
    const bool fits_host =
        limits.host_pages > 0 && device_room(0, host_lines + 1) &&
        ledger.admission_pages(on_host) <= ledger.spare_device_pages() &&
        on_host.host_blocks * limits.layers <= ledger.free_host_pages() &&
        (limits.staging_tokens == 0 || staged + longest <= limits.staging_tokens);
    Home home = line < device_lines ? (fits_device ? Home::kDevice : Home::kNone)
                                    : (fits_host ? Home::kHost : Home::kNone);
    // Shares that fit no line at all must not stop the job.
    if (home == Home::kNone && line == 0 && fits_host) home = Home::kHost;
    if (home == Home::kNone && line == 0 && fits_device) home = Home::kDevice;
    if (home == Home::kNone) return line;
    if (home == Home::kDevice) {
      device_blocks += whole + prompt.cached_blocks;
      ledger.apply(on_device);
    } else {
      ++host_lines;
      staged += longest;
      ledger.apply(on_host);
    }
  }
  return lines;
}

}  // namespace triphase
