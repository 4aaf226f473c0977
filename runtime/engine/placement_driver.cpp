#include "runtime/engine/placement_driver.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "scheduler/batch_planner.h"

namespace triphase {
namespace {

std::int64_t line_index(const RunningLine& line) {
  return static_cast<std::int64_t>(line.sequence->request().index);
}

}  // namespace

PlacementDriver::PlacementDriver(const PlacementPolicy& policy, const PlacementLimits& limits,
                                 KvStore& kv, DecoderModel& model)
    : policy_(&policy), limits_(limits), kv_(&kv), model_(&model) {}

std::vector<std::int64_t> PlacementDriver::place(const Lines& lines) {
  // What the step before set in motion has had the whole step to arrive.
  if (kv_->moving()) {
    const TraceSpan span(trace_, TraceLane::kHost, "wait for moves");
    kv_->settle();
  }
  const PlacementStats before = stats_;
  TraceSpan span(trace_, TraceLane::kHost, "place");
  PlacementStep step = look(lines);
  policy_->decide(step);
  PlacementAnswer answer = step.finish();
  carry_out(answer, lines);
  const auto noted = [&](const char* name, std::uint64_t now, std::uint64_t then) {
    if (now > then) span.note(name, static_cast<std::int64_t>(now - then));
  };
  noted("offloaded_blocks", stats_.offloaded_blocks, before.offloaded_blocks);
  noted("reloaded_blocks", stats_.reloaded_blocks, before.reloaded_blocks);
  noted("discarded_blocks", stats_.discarded_blocks, before.discarded_blocks);
  noted("suspended", stats_.swaps + stats_.drops, before.swaps + before.drops);
  see_phases(lines);
  ++step_;
  return std::move(answer.tokens);
}

// The lists first: they say then what the book says, also where a copy fails.
void PlacementDriver::carry_out(const PlacementAnswer& answer, const Lines& lines) {
  for (const PlacementAction& action : answer.actions) {
    std::visit(
        [&](const auto& one) {
          if constexpr (requires { apply(one, lines); }) apply(one, lines);
          if constexpr (std::is_same_v<std::decay_t<decltype(one)>, Discard>) {
            stats_.discarded_blocks += static_cast<std::uint64_t>(one.end_block - one.first_block);
          }
        },
        action);
  }
  std::erase(lines.waiting, nullptr);
  for (const KvMove& move : answer.moves) {
    if (move.kind == KvMove::Kind::kLoad) ++stats_.reloaded_blocks;
    const bool offload =
        move.kind == KvMove::Kind::kOffload || move.kind == KvMove::Kind::kMirrored;
    if (offload) ++stats_.offloaded_blocks;
  }
  kv_->carry_out(answer.moves);
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
  phases_.begin_step(step_);
  for (RunningLine& line : lines.running) {
    phases_.see(line.phase, phase_of(kv_->book(), line.id), line_index(line), line.computed,
                line.sequence->prompt_tokens());
  }
  phases_.end_step();
}

PlacementStep PlacementDriver::look(const Lines& lines) {
  limits_.prompt_units = model_->attention().prompt_units();
  std::vector<PlacedRequest> running;
  running.reserve(static_cast<std::size_t>(limits_.batch_size));
  for (const RunningLine& line : lines.running) running.push_back(line.placed());
  std::vector<PlacedRequest> preempted;
  for (const PreemptedLine& line : lines.preempted) {
    preempted.push_back(line.line.placed());
    preempted.back().mode = line.mode;
  }
  return {limits_,
          step_,
          kv_->book(),
          std::move(running),
          std::move(preempted),
          look_at_waiting(lines)};
}

std::vector<WaitingRequest> PlacementDriver::look_at_waiting(const Lines& lines) {
  std::vector<WaitingRequest> waiting;
  shown_.clear();
  if (lines.running.size() >= static_cast<std::size_t>(limits_.batch_size)) return waiting;
  const AttentionRunner* attention = model_->attention().runner();
  const std::size_t end = std::min(lines.waiting.size(), waiting_in_view());
  for (std::size_t index = 0; index < end; ++index) {
    const Sequence& sequence = *lines.waiting[index];
    WaitingRequest request{.prompt_tokens = sequence.prompt_tokens(),
                           .max_tokens = sequence.max_kv_tokens(),
                           .context_key = model_->rope_key_for_prompt(sequence.given_tokens()),
                           .tokens = sequence.shareable_tokens()};
    // Rows that an attention method must see cannot come from another sequence.
    std::optional<std::int64_t> most;
    if (attention != nullptr) {
      most = attention->shareable_tokens(request.prompt_tokens) / limits_.block_tokens;
    }
    const bool shares = !most || *most > 0;
    if (shares && should_wait_for_shared_prefix(sequence, request.context_key, lines)) continue;
    find_shared(kv_->book(), most, request);
    if (shares && should_wait_for_prompt_before(sequence, request, lines)) continue;
    waiting.push_back(request);
    shown_.push_back(index);
  }
  return waiting;
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
bool PlacementDriver::should_wait_for_prompt_before(const Sequence& waiting,
                                                    const WaitingRequest& request,
                                                    const Lines& lines) const {
  const std::int64_t there = request.found_blocks() * limits_.block_tokens;
  return std::ranges::any_of(shown_, [&](std::size_t before) {
    const Sequence& other = *lines.waiting[before];
    return model_->rope_key_for_prompt(other.given_tokens()) == request.context_key &&
           shareable_tokens(waiting.shareable_tokens(), other.shareable_tokens(),
                            limits_.block_tokens) > there;
  });
}

void PlacementDriver::apply(const Admit& action, const Lines& lines) {
  std::unique_ptr<Sequence>& waiting =
      lines.waiting[shown_[static_cast<std::size_t>(action.waiting)]];
  const std::int64_t prompt_tokens = waiting->prompt_tokens();
  const KvSequence& placed = kv_->book().sequence(action.sequence);
  stats_.shared_prompt_tokens += static_cast<std::uint64_t>(placed.tokens);
  model_->attention().begin_sequence(action.sequence, prompt_tokens, waiting->max_kv_tokens());
  lines.running.push_back({.sequence = std::move(waiting),
                           .id = action.sequence,
                           .rope_key = placed.context_key,
                           .admission = admissions_++,
                           .computed = placed.tokens,
                           .prefill_tokens = prompt_tokens});
  phases_.admitted(lines.running.back().phase, placed.tokens);
}

void PlacementDriver::apply(const Preempt& action, const Lines& lines) {
  const auto entry = std::ranges::find(lines.running, action.sequence, &RunningLine::id);
  phases_.suspended(entry->phase, line_index(*entry));
  if (action.mode == PreemptMode::kSwap) {
    ++stats_.swaps;
  } else {
    kv_->partial_pages().forget(entry->id);
    model_->attention().end_sequence(entry->id);
    stats_.recomputed_tokens += static_cast<std::uint64_t>(entry->computed);
    // What was decoded under a sparse method must be decoded again, step by step.
    if (model_->attention().runner() == nullptr) entry->prefill_what_there_is();
    entry->computed = 0;
    entry->phase.now = Phase::kOne;
    entry->id = SequenceId();
    ++stats_.drops;
  }
  // In order of their first admission, as policies expect them.
  const auto place = std::ranges::find_if(lines.preempted, [&](const PreemptedLine& other) {
    return other.line.admission > entry->admission;
  });
  lines.preempted.insert(place, {std::move(*entry), action.mode});
  lines.running.erase(entry);
}

void PlacementDriver::apply(const Resume& action, const Lines& lines) {
  const auto entry = std::ranges::find_if(lines.preempted, [&](const PreemptedLine& preempted) {
    return preempted.line.admission == action.admission;
  });
  RunningLine& line = lines.running.emplace_back(std::move(entry->line));
  if (entry->mode == PreemptMode::kDrop) {
    line.id = action.sequence;
    model_->attention().begin_sequence(line.id, line.sequence->prompt_tokens(),
                                       line.sequence->max_kv_tokens());
  }
  lines.preempted.erase(entry);
  phases_.resumed(line.phase, line_index(line), line.computed);
}

}  // namespace triphase
