#include "runtime/engine/placement_driver.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "scheduler/batch_planner.h"
#include "scheduler/placement/placement_ledger.h"

namespace triphase {
namespace {

std::int64_t line_index(const RunningLine& line) {
  return static_cast<std::int64_t>(line.sequence->request().index);
}

}  // namespace

PlacementDriver::PlacementDriver(const PlacementPolicy& policy, const PlacementLimits& limits,
                                 KvStore& kv, DecoderModel& model)
    : policy_(&policy), limits_(limits), kv_(&kv), model_(&model) {
  view_.limits = limits;
  view_.running.reserve(static_cast<std::size_t>(limits.batch_size));
}

std::vector<std::int64_t> PlacementDriver::step_tokens(
    const std::vector<RunningLine>& running) const {
  std::vector<SequenceProgress> progress;
  progress.reserve(running.size());
  for (const RunningLine& line : running) progress.push_back(line.progress());
  return plan_step(progress, {.rows = limits_.batch_size + limits_.prefill_chunk,
                              .prefill_chunk = limits_.prefill_chunk,
                              .units = model_->prompt_units()});
}

void PlacementDriver::place(const Lines& lines) {
  // What the step before set in motion has had the whole step to arrive.
  if (kv_->moving()) {
    const TraceSpan span(trace_, TraceLane::kHost, "wait for moves");
    kv_->settle(/*all=*/true);
  }
  if (observer_ || !nothing_to_decide(lines)) {
    const PlacementStats before = stats_;
    TraceSpan span(trace_, TraceLane::kHost, "place");
    decide(lines);
    const auto noted = [&](const char* name, std::uint64_t now, std::uint64_t then) {
      if (now > then) span.note(name, static_cast<std::int64_t>(now - then));
    };
    noted("offloaded_blocks", stats_.offloaded_blocks, before.offloaded_blocks);
    noted("reloaded_blocks", stats_.reloaded_blocks, before.reloaded_blocks);
    noted("discarded_blocks", stats_.discarded_blocks, before.discarded_blocks);
    noted("suspended", stats_.swaps + stats_.drops, before.swaps + before.drops);
  }
  see_phases(lines);
  ++view_.step;
}

void PlacementDriver::decide(const Lines& lines) {
  look(lines);
  const PlacementActions actions = policy_->decide(view_);
  if (checking_) validate_actions(view_, actions);
  if (observer_) observer_(view_, actions);
  for (const PlacementAction& action : actions) {
    std::visit([&](const auto& one) { apply(one, lines); }, action);
  }
  std::erase(lines.waiting, nullptr);
}

void PlacementDriver::set_trace(Trace* trace) {
  trace_ = trace;
  phases_.set_trace(trace);
}

void PlacementDriver::line_ended(const RunningLine& line) const {
  phases_.ended(line.phase, line_index(line));
}

void PlacementDriver::see_phases(const Lines& lines) {
  if (lines.running.empty()) return;
  phases_.begin_step(view_.step);
  for (RunningLine& line : lines.running) {
    phases_.see(line.phase, phase_of(line), line_index(line), line.computed,
                line.sequence->prompt_tokens());
  }
  phases_.end_step();
}

// Homes are ordered by age, so the oldest block tells. One on its way is where the policy put it.
Phase PlacementDriver::phase_of(const RunningLine& line) const {
  const KvResidency& residency = kv_->residency();
  if (limits_.host_pages == 0 || residency.blocks(line.id) == 0) return Phase::kOne;
  const BlockPlace oldest = residency.block_place(line.id, 0);
  if (oldest == BlockPlace::kRecomputable) return Phase::kThree;
  const bool away = oldest == BlockPlace::kHost || oldest == BlockPlace::kLeaving;
  return away ? Phase::kTwo : Phase::kOne;
}

// Running lines that grow within what is reserved for them need nobody's decision.
bool PlacementDriver::nothing_to_decide(const Lines& lines) const {
  if (!lines.waiting.empty() || !lines.suspended.empty() || limits_.host_pages > 0) return false;
  return std::ranges::all_of(lines.running, [&](const RunningLine& line) {
    const std::int64_t needed = limits_.blocks_for(line.sequence->max_kv_tokens());
    return kv_->residency().blocks(line.id) + kv_->residency().reserved_blocks(line.id) >= needed;
  });
}

void PlacementDriver::look(const Lines& lines) {
  const KvResidency& residency = kv_->residency();
  view_.free_device_pages =
      residency.free_pages() + residency.evictable_pages() - residency.reserved_pages();
  view_.free_host_pages = residency.free_host_blocks() * limits_.layers;
  view_.free_input_pages = residency.free_input_blocks() * limits_.layers;
  look_at_running(lines);
  look_at_suspended(lines);
  look_at_waiting(lines);
}

void PlacementDriver::look_at_running(const Lines& lines) {
  const KvResidency& residency = kv_->residency();
  const std::vector<std::int64_t> counts = step_tokens(lines.running);
  view_.running.clear();
  for (std::size_t index = 0; index < lines.running.size(); ++index) {
    const RunningLine& line = lines.running[index];
    const std::int64_t blocks = residency.blocks(line.id);
    const std::int64_t recomputable = leading_blocks(line.id, 0, BlockPlace::kRecomputable);
    const std::int64_t on_host = leading_blocks(line.id, recomputable, BlockPlace::kHost);
    view_.running.push_back({.id = line.id,
                             .prompt_tokens = line.sequence->prompt_tokens(),
                             .prefill_tokens = line.prefill_tokens,
                             .context = line.computed,
                             .step_tokens = counts[index],
                             .max_tokens = line.sequence->max_kv_tokens(),
                             .recompute_blocks = recomputable,
                             .host_blocks = on_host,
                             .device_blocks = blocks - recomputable - on_host,
                             .input_blocks = residency.input_blocks(line.id),
                             .device_reserved = residency.reserved_blocks(line.id),
                             .host_reserved = residency.reserved_host_blocks(line.id)});
  }
  find_shared_blocks(lines);
}

// Blocks of the sequence at `place` from `first` on, up to the first that is elsewhere.
std::int64_t PlacementDriver::leading_blocks(SequenceId sequence, std::int64_t first,
                                             BlockPlace place) const {
  const KvResidency& residency = kv_->residency();
  const std::int64_t blocks = residency.blocks(sequence);
  std::int64_t block = first;
  while (block < blocks && residency.block_place(sequence, block) == place) ++block;
  return block - first;
}

void PlacementDriver::find_shared_blocks(const Lines& lines) {
  const KvResidency& residency = kv_->residency();
  for (std::size_t index = 1; index < lines.running.size(); ++index) {
    RunningSequence& sequence = view_.running[index];
    const SequenceId id = lines.running[index].id;
    for (std::size_t other = 0; other < index; ++other) {
      const SequenceId other_id = lines.running[other].id;
      const std::int64_t limit = std::min(residency.blocks(id), residency.blocks(other_id));
      std::int64_t common = 0;
      while (common < limit &&
             residency.block_index(id, common) == residency.block_index(other_id, common)) {
        ++common;
      }
      if (common > sequence.shared_blocks) {
        sequence.shared_blocks = common;
        sequence.shares_with = static_cast<std::int64_t>(other);
      }
    }
  }
}

void PlacementDriver::look_at_suspended(const Lines& lines) {
  view_.suspended.clear();
  for (const SuspendedLine& suspended : lines.suspended) {
    const RunningLine& line = suspended.line;
    const bool swapped = suspended.mode == SuspendMode::kSwap;
    const std::int64_t recomputable =
        swapped ? leading_blocks(line.id, 0, BlockPlace::kRecomputable) : 0;
    view_.suspended.push_back(
        {.id = line.id,
         .mode = suspended.mode,
         .prompt_tokens = line.sequence->prompt_tokens(),
         .prefill_tokens = line.prefill_tokens,
         .context = line.computed,
         .max_tokens = line.sequence->max_kv_tokens(),
         .recompute_blocks = recomputable,
         .host_blocks = swapped ? kv_->residency().blocks(line.id) - recomputable : 0,
         .input_blocks = swapped ? kv_->residency().input_blocks(line.id) : 0});
  }
}

void PlacementDriver::look_at_waiting(const Lines& lines) {
  const KvResidency& residency = kv_->residency();
  view_.waiting.clear();
  shown_.clear();
  if (lines.running.size() >= static_cast<std::size_t>(limits_.batch_size)) return;
  const std::size_t end = std::min(lines.waiting.size(), waiting_in_view());
  for (std::size_t index = 0; index < end; ++index) {
    const Sequence& sequence = *lines.waiting[index];
    const std::uint64_t rope_key = model_->rope_key_for_prompt(sequence.given_tokens());
    const bool shares = may_share(sequence);
    if (shares && should_wait_for_shared_prefix(sequence, rope_key, lines)) continue;
    WaitingPrompt prompt{.prompt_tokens = sequence.prompt_tokens(),
                         .max_tokens = sequence.max_kv_tokens()};
    const KvResidency::Prefix prefix = residency.find_prefix(sequence.shareable_tokens(), rope_key);
    for (std::size_t other = 0; other < lines.running.size() && prefix.held > 0; ++other) {
      const SequenceId id = lines.running[other].id;
      const std::int64_t limit = std::min(prefix.held, residency.blocks(id));
      std::int64_t common = 0;
      while (common < limit &&
             residency.block_index(id, common) == prefix.blocks[static_cast<std::size_t>(common)]) {
        ++common;
      }
      if (common > prompt.shared_blocks) {
        prompt.shared_blocks = common;
        prompt.shares_with = static_cast<std::int64_t>(other);
      }
    }
    // Blocks that only suspended lines hold count for nobody; those after them are out of reach.
    if (prompt.shared_blocks == prefix.held) {
      prompt.cached_blocks = static_cast<std::int64_t>(prefix.blocks.size()) - prefix.held;
    }
    // Rows that an attention method must see cannot come from another sequence.
    if (const AttentionRunner* attention = model_->attention()) {
      const std::int64_t most =
          attention->shareable_tokens(prompt.prompt_tokens) / limits_.block_tokens;
      prompt.shared_blocks = std::min(prompt.shared_blocks, most);
      prompt.cached_blocks = std::min(prompt.cached_blocks, most - prompt.shared_blocks);
    }
    if (shares && should_wait_for_prompt_before(sequence, rope_key, prompt, lines)) continue;
    view_.waiting.push_back(prompt);
    shown_.push_back(index);
  }
}

bool PlacementDriver::may_share(const Sequence& waiting) const {
  const AttentionRunner* attention = model_->attention();
  return attention == nullptr ||
         attention->shareable_tokens(waiting.prompt_tokens()) >= limits_.block_tokens;
}

bool PlacementDriver::should_wait_for_shared_prefix(const Sequence& waiting, std::uint64_t rope_key,
                                                    const Lines& lines) const {
  return std::ranges::any_of(lines.running, [&](const RunningLine& line) {
    if (line.prefill_left() == 0 || line.rope_key != rope_key) return false;
    return shareable_tokens(waiting.shareable_tokens(), line.sequence->shareable_tokens(),
                            limits_.block_tokens) > line.computed;
  });
}

// Prompts that arrive together: the first computes the prefix that the others then share.
bool PlacementDriver::should_wait_for_prompt_before(const Sequence& waiting, std::uint64_t rope_key,
                                                    const WaitingPrompt& prompt,
                                                    const Lines& lines) const {
  const std::int64_t there = (prompt.shared_blocks + prompt.cached_blocks) * limits_.block_tokens;
  return std::ranges::any_of(shown_, [&](std::size_t before) {
    const Sequence& other = *lines.waiting[before];
    return model_->rope_key_for_prompt(other.given_tokens()) == rope_key &&
           shareable_tokens(waiting.shareable_tokens(), other.shareable_tokens(),
                            limits_.block_tokens) > there;
  });
}

void PlacementDriver::apply(const Admit& action, const Lines& lines) {
  const auto shown = static_cast<std::size_t>(action.waiting);
  const WaitingPrompt& prompt = view_.waiting[shown];
  std::unique_ptr<Sequence>& waiting = lines.waiting[shown_[shown]];
  const std::uint64_t rope_key = model_->rope_key_for_prompt(waiting->given_tokens());
  const KvResidency::Admission admission =
      kv_->residency().admit(waiting->shareable_tokens(), waiting->max_kv_tokens(), rope_key,
                             {.device_blocks = action.device_blocks,
                              .host_blocks = action.host_blocks,
                              .input_blocks = action.input_blocks,
                              .most_shared_blocks = prompt.shared_blocks + prompt.cached_blocks});
  TRIPHASE_CHECK(admission.sequence.valid(), "an admission that the policy counted out");
  const std::int64_t prompt_tokens = waiting->prompt_tokens();
  stats_.prompt_tokens += static_cast<std::uint64_t>(waiting->given_tokens());
  stats_.shared_prompt_tokens += static_cast<std::uint64_t>(admission.shared_tokens);
  model_->begin_sequence(admission.sequence, prompt_tokens);
  lines.running.push_back({.sequence = std::move(waiting),
                           .id = admission.sequence,
                           .rope_key = rope_key,
                           .admission = admissions_++,
                           .computed = admission.shared_tokens,
                           .prefill_tokens = prompt_tokens});
  phases_.admitted(lines.running.back().phase, admission.shared_tokens);
}

void PlacementDriver::apply(const Offload& action, const Lines& /*lines*/) {
  kv_->offload(action.sequence, action.first_block, action.end_block - action.first_block);
  stats_.offloaded_blocks += static_cast<std::uint64_t>(action.end_block - action.first_block);
}

void PlacementDriver::apply(const Reload& action, const Lines& /*lines*/) {
  kv_->reload(action.sequence, action.first_block, action.end_block - action.first_block);
  stats_.reloaded_blocks += static_cast<std::uint64_t>(action.end_block - action.first_block);
}

void PlacementDriver::apply(const Discard& action, const Lines& /*lines*/) {
  kv_->discard(action.sequence, action.first_block, action.end_block - action.first_block);
  stats_.discarded_blocks += static_cast<std::uint64_t>(action.end_block - action.first_block);
}

void PlacementDriver::apply(const Suspend& action, const Lines& lines) {
  const auto entry = std::ranges::find(lines.running, action.sequence, &RunningLine::id);
  TRIPHASE_CHECK(entry != lines.running.end(), "a suspended line must be running");
  KvResidency& residency = kv_->residency();
  SuspendMode mode = action.mode;
  // Blocks that others hold stay with them, so a line that shares some is computed again.
  const std::int64_t held_blocks = residency.blocks(entry->id);
  for (std::int64_t block = 0; block < held_blocks && mode == SuspendMode::kSwap; ++block) {
    if (residency.shared(entry->id, block)) mode = SuspendMode::kDrop;
  }
  // A waiting line's open INT8 blocks stay in their pages, of which there are so many for each line
  // of a batch.
  const auto held = static_cast<std::int64_t>(lines.running.size() + lines.suspended.size());
  if (kv_->shape().quantized() && held > limits_.batch_size &&
      kv_->open_pages().pages() < 2 * limits_.batch_size * limits_.layers) {
    mode = SuspendMode::kDrop;
  }
  phases_.suspended(entry->phase, line_index(*entry));
  if (mode == SuspendMode::kSwap) {
    residency.drop_reservations(entry->id);
    // Blocks that the same decision sent away are on the host as good as the others.
    const auto away = [&](BlockPlace place) {
      return place == BlockPlace::kHost || place == BlockPlace::kLeaving ||
             place == BlockPlace::kRecomputable;
    };
    std::int64_t first = 0;
    while (first < held_blocks && away(residency.block_place(entry->id, first))) ++first;
    kv_->offload(entry->id, first, held_blocks - first, /*open=*/true);
    stats_.offloaded_blocks += static_cast<std::uint64_t>(held_blocks - first);
    ++stats_.swaps;
  } else {
    kv_->release(entry->id);
    model_->end_sequence(entry->id);
    stats_.recomputed_tokens += static_cast<std::uint64_t>(entry->computed);
    // What was decoded under a sparse method must be decoded again, step by step.
    if (model_->attention() == nullptr) entry->prefill_what_there_is();
    entry->computed = 0;
    entry->phase.now = Phase::kOne;
    ++stats_.drops;
  }
  // In order of their first admission, as policies expect them.
  const auto place = std::ranges::find_if(lines.suspended, [&](const SuspendedLine& other) {
    return other.line.admission > entry->admission;
  });
  lines.suspended.insert(place, {std::move(*entry), mode});
  lines.running.erase(entry);
}

void PlacementDriver::apply(const Resume& action, const Lines& lines) {
  const auto entry = std::ranges::find_if(lines.suspended, [&](const SuspendedLine& suspended) {
    return suspended.line.id == action.sequence;
  });
  TRIPHASE_CHECK(entry != lines.suspended.end(), "a resumed line must be suspended");
  RunningLine line = std::move(entry->line);
  const SuspendMode mode = entry->mode;
  lines.suspended.erase(entry);
  if (mode == SuspendMode::kSwap) {
    const std::int64_t blocks = kv_->residency().blocks(line.id);
    // Its pages may only just be on their way out.
    kv_->settle(/*all=*/true);
    kv_->reload(line.id, blocks - action.device_blocks, action.device_blocks);
    kv_->settle(/*all=*/true);
    stats_.reloaded_blocks += static_cast<std::uint64_t>(action.device_blocks);
  } else {
    const KvResidency::Admission admission = kv_->residency().admit(
        line.sequence->shareable_tokens(), line.sequence->max_kv_tokens(), line.rope_key,
        {.device_blocks = action.device_blocks, .most_shared_blocks = 0});
    TRIPHASE_CHECK(admission.sequence.valid(), "a resumption that the policy counted out");
    line.id = admission.sequence;
    model_->begin_sequence(line.id, line.sequence->prompt_tokens());
  }
  phases_.resumed(line.phase, line_index(line), line.computed);
  lines.running.push_back(std::move(line));
}

}  // namespace triphase
