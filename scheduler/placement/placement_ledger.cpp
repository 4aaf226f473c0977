#include "scheduler/placement/placement_ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace triphase {

PlacementLedger::PlacementLedger(const StepView& view)
    : view_(view),
      gone_(view.running.size(), false),
      admitted_(view.waiting.size(), false),
      resumed_(view.suspended.size(), false) {
  const PlacementLimits& limits = view_.limits;
  TRIPHASE_CHECK(limits.layers > 0 && limits.block_tokens > 0 && limits.batch_size > 0,
                 "placement limits");
  prefill_left_ = limits.prefill_chunk;
  for (const RunningSequence& sequence : view_.running) {
    if (sequence.shared_blocks > 0) any_sharing_ = true;
    if (sequence.prefilling()) prefill_left_ -= sequence.step_tokens;
  }
  prefill_left_ = std::max<std::int64_t>(prefill_left_, 0);
}

void PlacementLedger::apply(const PlacementAction& action) {
  std::visit(
      [this](const auto& a) {
        using Action = std::decay_t<decltype(a)>;
        if constexpr (std::is_same_v<Action, Admit>) admit(a);
        if constexpr (std::is_same_v<Action, Offload>) offload(a);
        if constexpr (std::is_same_v<Action, Reload>) reload(a);
        if constexpr (std::is_same_v<Action, Discard>) discard(a);
        if constexpr (std::is_same_v<Action, Suspend>) suspend(a);
        if constexpr (std::is_same_v<Action, Resume>) resume(a);
      },
      action);
  actions_.push_back(action);
}

std::size_t PlacementLedger::index_of(SequenceId id) const {
  for (std::size_t index = 0; index < view_.running.size(); ++index) {
    if (view_.running[index].id == id && !gone_[index]) return index;
  }
  check_failed("known sequence", __FILE__, __LINE__,
               fmt::format("sequence {} is not running", id.value));
}

void PlacementLedger::require_not_started(std::string_view action) const {
  TRIPHASE_CHECK(started_.empty(), fmt::format("{} after the first admit or resume", action));
}

void PlacementLedger::take_device_pages(std::int64_t blocks) {
  const std::int64_t pages = blocks * view_.limits.layers;
  TRIPHASE_CHECK(
      pages <= view_.free_device_pages,
      fmt::format("{} device pages are needed and {} are free", pages, view_.free_device_pages));
  view_.free_device_pages -= pages;
}

void PlacementLedger::take_host_pages(RunningSequence& sequence, std::int64_t blocks) {
  const std::int64_t reserved = std::min(blocks, sequence.host_reserved);
  const std::int64_t pages = (blocks - reserved) * view_.limits.layers;
  TRIPHASE_CHECK(
      pages <= view_.free_host_pages,
      fmt::format("{} host pages are needed and {} are free", pages, view_.free_host_pages));
  sequence.host_reserved -= reserved;
  view_.free_host_pages -= pages;
}

std::int64_t PlacementLedger::common_blocks(std::size_t a, std::size_t b) const {
  // Each step goes to the earlier sequence with which the later one has most in common.
  std::int64_t common = std::numeric_limits<std::int64_t>::max();
  while (a != b) {
    const std::size_t later = std::max(a, b);
    const RunningSequence& sequence = view_.running[later];
    if (sequence.shares_with < 0 || sequence.shared_blocks == 0) return 0;
    common = std::min(common, sequence.shared_blocks);
    (later == a ? a : b) = static_cast<std::size_t>(sequence.shares_with);
  }
  return common;
}

std::int64_t PlacementLedger::shared_with_others(std::size_t index) const {
  if (!any_sharing_) return 0;
  std::int64_t most = 0;
  for (std::size_t other = 0; other < view_.running.size(); ++other) {
    if (other != index && !gone_[other]) most = std::max(most, common_blocks(index, other));
  }
  return most;
}

std::int64_t PlacementLedger::sharers(std::size_t index) const {
  if (!any_sharing_) return 1;
  std::int64_t count = 0;
  for (std::size_t other = 0; other < view_.running.size(); ++other) {
    if (!gone_[other] && (other == index || common_blocks(index, other) > 0)) ++count;
  }
  return count;
}

std::int64_t PlacementLedger::swap_host_blocks(std::size_t index) const {
  const RunningSequence& sequence = view_.running[index];
  const std::int64_t shared_away = std::min(shared_with_others(index), sequence.away_blocks());
  return sequence.device_blocks +
         std::max<std::int64_t>(shared_away - sequence.recompute_blocks, 0);
}

Suspend PlacementLedger::swap_if_it_fits(std::size_t index) const {
  const RunningSequence& sequence = view_.running[index];
  const std::int64_t room = view_.free_host_pages / view_.limits.layers + sequence.host_reserved;
  const bool fits = swap_host_blocks(index) <= room;
  return {sequence.id, fits ? SuspendMode::kSwap : SuspendMode::kDrop};
}

void PlacementLedger::admit(const Admit& action) {
  const PlacementLimits& limits = view_.limits;
  TRIPHASE_CHECK(action.waiting >= 0 &&
                     action.waiting < static_cast<std::int64_t>(view_.waiting.size()) &&
                     !admitted_[static_cast<std::size_t>(action.waiting)],
                 "a waiting prompt");
  TRIPHASE_CHECK(running_count() < limits.batch_size, "a place in the batch");
  TRIPHASE_CHECK(action.device_blocks >= 0 && action.host_blocks >= 0 && action.input_blocks >= 0,
                 "reservations are not negative");
  const auto waiting_index = static_cast<std::size_t>(action.waiting);
  const WaitingPrompt& prompt = view_.waiting[waiting_index];
  RunningSequence sequence{.prompt_tokens = prompt.prompt_tokens,
                           .prefill_tokens = prompt.prompt_tokens,
                           .max_tokens = prompt.max_tokens,
                           .input_blocks = action.input_blocks};
  if (prompt.shared_blocks > 0) {
    const auto owner_index = static_cast<std::size_t>(prompt.shares_with);
    TRIPHASE_CHECK(
        prompt.shares_with >= 0 && owner_index < view_.running.size() && !gone_[owner_index],
        "the sequence a prompt shares with is running");
    const RunningSequence& owner = view_.running[owner_index];
    sequence.recompute_blocks = std::min(owner.recompute_blocks, prompt.shared_blocks);
    sequence.host_blocks =
        std::min(owner.away_blocks(), prompt.shared_blocks) - sequence.recompute_blocks;
    TRIPHASE_CHECK(owner.input_blocks >= std::min(action.input_blocks, prompt.shared_blocks),
                   "X of shared blocks was saved");
  }
  TRIPHASE_CHECK(action.input_blocks == 0 || prompt.cached_blocks == 0,
                 "X of cached blocks was not saved");
  const std::int64_t found = prompt.shared_blocks + prompt.cached_blocks;
  sequence.context = found * limits.block_tokens;
  sequence.device_blocks = found - sequence.away_blocks();
  TRIPHASE_CHECK(prompt.cached_blocks == 0 || sequence.away_blocks() == 0 ||
                     sequence.away_blocks() <= prompt.shared_blocks,
                 "cached blocks are on the device");
  sequence.step_tokens =
      std::clamp<std::int64_t>(prompt.prompt_tokens - sequence.context, 0, prefill_left_);
  prefill_left_ -= sequence.step_tokens;

  take_device_pages(prompt.cached_blocks + action.device_blocks);
  sequence.device_reserved = action.device_blocks;
  take_host_pages(sequence, action.host_blocks);
  sequence.host_reserved = action.host_blocks;
  const std::int64_t input_pages =
      std::max<std::int64_t>(action.input_blocks - prompt.shared_blocks, 0) * limits.layers;
  TRIPHASE_CHECK(input_pages <= view_.free_input_pages,
                 fmt::format("{} pages of layer inputs are needed and {} are free", input_pages,
                             view_.free_input_pages));
  view_.free_input_pages -= input_pages;
  admitted_[waiting_index] = true;
  started_.push_back(sequence);
}

std::int64_t PlacementLedger::admission_pages(const Admit& action) const {
  const PlacementLimits& limits = view_.limits;
  const WaitingPrompt& prompt = view_.waiting[static_cast<std::size_t>(action.waiting)];
  const std::int64_t found = prompt.shared_blocks + prompt.cached_blocks;
  const std::int64_t context = found * limits.block_tokens;
  const std::int64_t step_tokens =
      std::clamp<std::int64_t>(prompt.prompt_tokens - context, 0, prefill_left_);
  const std::int64_t grown = limits.blocks_for(context + step_tokens) - found;
  return (prompt.cached_blocks + std::max(action.device_blocks, grown)) * limits.layers;
}

void PlacementLedger::offload(const Offload& action) {
  require_not_started("offload");
  const std::size_t index = index_of(action.sequence);
  RunningSequence& sequence = view_.running[index];
  TRIPHASE_CHECK(
      action.first_block == sequence.away_blocks() && action.end_block > action.first_block,
      fmt::format("{}: the oldest device block is {}", to_text(action), sequence.away_blocks()));
  TRIPHASE_CHECK(action.end_block <= sequence.closed_blocks(view_.limits.block_tokens),
                 fmt::format("{}: only closed blocks leave the device, and {} are closed",
                             to_text(action), sequence.closed_blocks(view_.limits.block_tokens)));
  const std::int64_t blocks = action.end_block - action.first_block;
  take_host_pages(sequence, blocks);
  view_.free_device_pages += blocks * view_.limits.layers;
  for (std::size_t other = 0; other < view_.running.size(); ++other) {
    if (gone_[other] || (other != index && !any_sharing_)) continue;
    RunningSequence& holder = view_.running[other];
    const std::int64_t end =
        other == index ? action.end_block : std::min(action.end_block, common_blocks(index, other));
    const std::int64_t moved = std::max<std::int64_t>(end - holder.away_blocks(), 0);
    holder.host_blocks += moved;
    holder.device_blocks -= moved;
  }
}

void PlacementLedger::reload(const Reload& action) {
  require_not_started("reload");
  const std::size_t index = index_of(action.sequence);
  const RunningSequence& sequence = view_.running[index];
  TRIPHASE_CHECK(action.end_block == sequence.away_blocks() &&
                     action.first_block < action.end_block &&
                     action.first_block >= sequence.recompute_blocks,
                 fmt::format("{}: host blocks are [{}, {})", to_text(action),
                             sequence.recompute_blocks, sequence.away_blocks()));
  const std::int64_t blocks = action.end_block - action.first_block;
  take_device_pages(blocks);
  view_.free_host_pages += blocks * view_.limits.layers;
  for (std::size_t other = 0; other < view_.running.size(); ++other) {
    if (gone_[other] || (other != index && !any_sharing_)) continue;
    RunningSequence& holder = view_.running[other];
    const std::int64_t common =
        other == index ? action.end_block : std::min(action.end_block, common_blocks(index, other));
    const std::int64_t moved = std::max<std::int64_t>(common - action.first_block, 0);
    // A holder with further blocks on the host would be left with a hole.
    TRIPHASE_CHECK(
        moved == 0 || holder.away_blocks() == common,
        fmt::format("{}: a sharing sequence has younger blocks on the host", to_text(action)));
    holder.host_blocks -= moved;
    holder.device_blocks += moved;
  }
}

void PlacementLedger::discard(const Discard& action) {
  require_not_started("discard");
  const std::size_t index = index_of(action.sequence);
  const RunningSequence& sequence = view_.running[index];
  TRIPHASE_CHECK(action.first_block == sequence.recompute_blocks &&
                     action.end_block > action.first_block &&
                     action.end_block <= sequence.away_blocks(),
                 fmt::format("{}: host blocks are [{}, {})", to_text(action),
                             sequence.recompute_blocks, sequence.away_blocks()));
  view_.free_host_pages += (action.end_block - action.first_block) * view_.limits.layers;
  for (std::size_t other = 0; other < view_.running.size(); ++other) {
    if (gone_[other] || (other != index && !any_sharing_)) continue;
    RunningSequence& holder = view_.running[other];
    const std::int64_t end =
        other == index ? action.end_block : std::min(action.end_block, common_blocks(index, other));
    const std::int64_t dropped = std::max<std::int64_t>(end - holder.recompute_blocks, 0);
    TRIPHASE_CHECK(
        end <= holder.input_blocks || dropped == 0,
        fmt::format("{}: X is saved for {} blocks", to_text(action), holder.input_blocks));
    holder.recompute_blocks += dropped;
    holder.host_blocks -= dropped;
  }
}

void PlacementLedger::suspend(const Suspend& action) {
  require_not_started("suspend");
  const std::size_t index = index_of(action.sequence);
  RunningSequence& sequence = view_.running[index];
  const std::int64_t layers = view_.limits.layers;
  const std::int64_t shared = shared_with_others(index);
  // Blocks that others hold too stay where they are.
  const auto own = [&](std::int64_t first, std::int64_t end) {
    return std::max<std::int64_t>(end - std::max(first, shared), 0);
  };
  const std::int64_t away = sequence.away_blocks();
  if (action.mode == SuspendMode::kSwap) {
    take_host_pages(sequence, swap_host_blocks(index));
  } else {
    view_.free_host_pages += own(sequence.recompute_blocks, away) * layers;
    view_.free_input_pages += own(0, sequence.input_blocks) * layers;
  }
  view_.free_device_pages += (own(away, sequence.blocks()) + sequence.device_reserved) * layers;
  view_.free_host_pages += sequence.host_reserved * layers;
  gone_[index] = true;
}

void PlacementLedger::resume(const Resume& action) {
  const auto found = std::ranges::find(view_.suspended, action.sequence, &SuspendedSequence::id);
  TRIPHASE_CHECK(found != view_.suspended.end(),
                 fmt::format("sequence {} is not suspended", action.sequence.value));
  const auto index = static_cast<std::size_t>(found - view_.suspended.begin());
  TRIPHASE_CHECK(!resumed_[index], "a sequence is resumed once");
  TRIPHASE_CHECK(running_count() < view_.limits.batch_size, "a place in the batch");
  RunningSequence sequence{.prompt_tokens = found->prompt_tokens,
                           .prefill_tokens = found->prefill_tokens,
                           .max_tokens = found->max_tokens,
                           .input_blocks = found->input_blocks};
  take_device_pages(action.device_blocks);
  if (found->mode == SuspendMode::kSwap) {
    const std::int64_t blocks = view_.limits.blocks_for(found->context);
    const std::int64_t closed = found->context / view_.limits.block_tokens;
    TRIPHASE_CHECK(
        action.device_blocks >= blocks - closed && action.device_blocks <= found->host_blocks,
        fmt::format("{}: the open block and at most {} blocks come back", to_text(action),
                    found->host_blocks));
    view_.free_host_pages += action.device_blocks * view_.limits.layers;
    sequence.context = found->context;
    sequence.recompute_blocks = found->recompute_blocks;
    sequence.host_blocks = found->host_blocks - action.device_blocks;
    sequence.device_blocks = action.device_blocks;
  } else {
    sequence.device_reserved = action.device_blocks;
  }
  sequence.step_tokens = 1;
  if (sequence.prefilling()) {
    sequence.step_tokens =
        std::clamp<std::int64_t>(sequence.prefill_tokens - sequence.context, 0, prefill_left_);
    prefill_left_ -= sequence.step_tokens;
  }
  resumed_[index] = true;
  started_.push_back(sequence);
}

std::int64_t PlacementLedger::new_blocks(const RunningSequence& sequence) const {
  return std::max<std::int64_t>(
      view_.limits.blocks_for(sequence.context + sequence.step_tokens) - sequence.blocks(), 0);
}

std::int64_t PlacementLedger::spare_device_pages() const {
  std::int64_t blocks = 0;
  const auto grow = [&](const RunningSequence& sequence) {
    blocks += std::max<std::int64_t>(new_blocks(sequence) - sequence.device_reserved, 0);
  };
  for (std::size_t index = 0; index < view_.running.size(); ++index) {
    if (!gone_[index]) grow(view_.running[index]);
  }
  for (const RunningSequence& sequence : started_) grow(sequence);
  return view_.free_device_pages - blocks * view_.limits.layers;
}

std::int64_t PlacementLedger::touched_away(const RunningSequence& sequence,
                                           std::int64_t away_blocks) const {
  const std::int64_t away = away_blocks * view_.limits.block_tokens;
  // Prefill is dense whatever the attention policy.
  if (sequence.prefilling() || view_.limits.touched_share >= 1.0) return away;
  const double context = static_cast<double>(sequence.context + sequence.step_tokens);
  return std::min(away, static_cast<std::int64_t>(std::ceil(context * view_.limits.touched_share)));
}

std::int64_t PlacementLedger::staged_tokens() const {
  std::int64_t most = 0;
  std::int64_t in_group = 0;
  std::int64_t members = 0;
  const auto add = [&](const RunningSequence& sequence) {
    if (view_.limits.staging_group > 0 && members == view_.limits.staging_group) {
      in_group = members = 0;
    }
    in_group += touched_away(sequence, sequence.away_blocks());
    ++members;
    most = std::max(most, in_group);
  };
  for (std::size_t index = 0; index < view_.running.size(); ++index) {
    if (!gone_[index]) add(view_.running[index]);
  }
  for (const RunningSequence& sequence : started_) add(sequence);
  return most;
}

std::int64_t PlacementLedger::running_count() const {
  return std::ranges::count(gone_, false) + static_cast<std::int64_t>(started_.size());
}

void PlacementLedger::check_step() const {
  const std::int64_t spare = spare_device_pages();
  TRIPHASE_CHECK(spare >= 0, fmt::format("the step needs {} more device pages", -spare));
  const std::int64_t staged = staged_tokens();
  TRIPHASE_CHECK(view_.limits.staging_tokens == 0 || staged <= view_.limits.staging_tokens,
                 fmt::format("the step stages {} tokens of a layer and there is room for {}",
                             staged, view_.limits.staging_tokens));
  const bool someone_waits =
      !view_.running.empty() || !view_.suspended.empty() || !view_.waiting.empty();
  TRIPHASE_CHECK(running_count() > 0 || !someone_waits, "something runs");
}

void validate_actions(const StepView& view, const PlacementActions& actions) {
  PlacementLedger ledger(view);
  for (std::size_t index = 0; index < actions.size(); ++index) {
    try {
      ledger.apply(actions[index]);
    } catch (const Error& error) {
      check_failed("allowed action", __FILE__, __LINE__,
                   fmt::format("step {}, action {} ({}): {}", view.step, index,
                               to_text(actions[index]), error.found()));
    }
  }
  ledger.check_step();
}

std::string to_text(const PlacementAction& action) {
  return std::visit(
      [](const auto& a) -> std::string {
        using Action = std::decay_t<decltype(a)>;
        if constexpr (std::is_same_v<Action, Admit>) {
          return fmt::format("admit #{} reserving {} device, {} host, {} input blocks", a.waiting,
                             a.device_blocks, a.host_blocks, a.input_blocks);
        } else if constexpr (std::is_same_v<Action, Suspend>) {
          return fmt::format("suspend {} by {}", a.sequence.value,
                             a.mode == SuspendMode::kSwap ? "swap" : "drop");
        } else if constexpr (std::is_same_v<Action, Resume>) {
          return fmt::format("resume {} with {} device blocks", a.sequence.value, a.device_blocks);
        } else {
          constexpr std::string_view kVerb = std::is_same_v<Action, Offload>  ? "offload"
                                             : std::is_same_v<Action, Reload> ? "reload"
                                                                              : "discard";
          return fmt::format("{} {} [{}, {})", kVerb, a.sequence.value, a.first_block, a.end_block);
        }
      },
      action);
}

}  // namespace triphase
