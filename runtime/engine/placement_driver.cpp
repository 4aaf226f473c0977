#include "runtime/engine/placement_driver.h"

#include <algorithm>
#include <type_traits>
#include <utility>

namespace triphase {
namespace {

std::int64_t request_index(const RunningRequest& request) {
  return static_cast<std::int64_t>(request.sequence->request().index);
}

}  // namespace

PlacementDriver::PlacementDriver(const PlacementPolicy& policy, const PlacementLimits& limits,
                                 KvStore& kv, DecoderModel& model)
    : policy_(&policy), limits_(limits), kv_(&kv), model_(&model) {}

std::vector<std::int64_t> PlacementDriver::place(const Requests& requests) {
  // Moves that the step before began have had the whole step to finish.
  if (kv_->book().pool().moving()) {
    const TraceSpan span(trace_, TraceLane::kHost, "wait for moves");
    kv_->settle();
  }
  const PlacementStats before = stats_;
  TraceSpan span(trace_, TraceLane::kHost, "place");
  PlacementStep step = look(requests);
  policy_->decide(step);
  PlacementAnswer answer = step.finish();
  carry_out(answer, requests);
  const auto noted = [&](const char* name, std::uint64_t now, std::uint64_t then) {
    if (now > then) span.note(name, static_cast<std::int64_t>(now - then));
  };
  noted("offloaded_blocks", stats_.offloaded_blocks, before.offloaded_blocks);
  noted("reloaded_blocks", stats_.reloaded_blocks, before.reloaded_blocks);
  noted("discarded_blocks", stats_.discarded_blocks, before.discarded_blocks);
  noted("preempted", stats_.swaps + stats_.drops, before.swaps + before.drops);
  see_phases(requests);
  ++step_;
  return std::move(answer.tokens);
}

// The lists come first: they agree with the book even where a copy fails.
void PlacementDriver::carry_out(const PlacementAnswer& answer, const Requests& requests) {
  for (const PlacementAction& action : answer.actions) {
    std::visit(
        [&](const auto& one) {
          if constexpr (requires { apply(one, requests); }) apply(one, requests);
          if constexpr (std::is_same_v<std::decay_t<decltype(one)>, Discard>) {
            stats_.discarded_blocks += static_cast<std::uint64_t>(one.end_block - one.first_block);
          }
        },
        action);
  }
  std::erase(requests.waiting, nullptr);
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

void PlacementDriver::request_ended(const RunningRequest& request) const {
  phases_.ended(request.phase, request_index(request));
}

void PlacementDriver::see_phases(const Requests& requests) {
  if (requests.running.empty()) return;
  phases_.begin_step(step_);
  for (RunningRequest& request : requests.running) {
    phases_.see(request.phase, phase_of(kv_->book(), request.id), request_index(request),
                request.computed, request.sequence->prompt_tokens());
  }
  phases_.end_step();
}

PlacementStep PlacementDriver::look(const Requests& requests) {
  limits_.prompt_units = model_->attention().prompt_units();
  std::vector<PlacedRequest> running;
  running.reserve(static_cast<std::size_t>(limits_.batch_size));
  for (const RunningRequest& request : requests.running) {
    running.push_back(request.placed());
    running.back().tokens = request.sequence->shareable_tokens();
  }
  std::vector<PlacedRequest> preempted;
  for (const PreemptedRequest& request : requests.preempted) {
    PlacedRequest& placed = preempted.emplace_back(request.request.placed());
    placed.mode = request.mode;
    if (request.mode == PreemptMode::kDrop) placed.tokens = findable(*request.request.sequence);
  }
  WaitingQueue queue{.size = std::min(requests.waiting.size(), waiting_in_view())};
  queue.request = [this, &waiting = requests.waiting](std::size_t place) {
    const Sequence& sequence = *waiting[place];
    return WaitingRequest{.prompt_tokens = sequence.prompt_tokens(),
                          .max_tokens = sequence.max_kv_tokens(),
                          .context_key = model_->rope_key_for_prompt(sequence.given_tokens()),
                          .tokens = findable(sequence)};
  };
  return {limits_, step_, kv_->book(), std::move(running), std::move(preempted), std::move(queue)};
}

// Rows that an attention method must see cannot come from another sequence.
std::span<const TokenId> PlacementDriver::findable(const Sequence& sequence) const {
  const std::span<const TokenId> tokens = sequence.shareable_tokens();
  const AttentionRunner* attention = model_->attention().runner();
  if (attention == nullptr) return tokens;
  const std::int64_t most =
      attention->shareable_tokens(sequence.prompt_tokens()) / limits_.block_tokens;
  // A block that ends with the last token is not shared.
  const std::int64_t count = most > 0 ? most * limits_.block_tokens + 1 : 0;
  return tokens.first(std::min(tokens.size(), static_cast<std::size_t>(count)));
}

void PlacementDriver::apply(const Admit& action, const Requests& requests) {
  std::unique_ptr<Sequence>& waiting = requests.waiting[action.waiting];
  const std::int64_t prompt_tokens = waiting->prompt_tokens();
  const KvSequence& placed = kv_->book().sequence(action.sequence);
  stats_.shared_prompt_tokens += static_cast<std::uint64_t>(placed.tokens);
  model_->attention().begin_sequence(action.sequence, prompt_tokens, waiting->max_kv_tokens());
  requests.running.push_back({.sequence = std::move(waiting),
                              .id = action.sequence,
                              .rope_key = placed.context_key,
                              .admission = admissions_++,
                              .computed = placed.tokens,
                              .prefill_tokens = prompt_tokens});
  phases_.admitted(requests.running.back().phase, placed.tokens);
}

void PlacementDriver::apply(const Preempt& action, const Requests& requests) {
  const auto entry = std::ranges::find(requests.running, action.sequence, &RunningRequest::id);
  phases_.preempted(entry->phase, request_index(*entry));
  if (action.mode == PreemptMode::kSwap) {
    ++stats_.swaps;
  } else {
    kv_->partial_pages().forget(entry->id);
    model_->attention().end_sequence(entry->id);
    entry->had = std::max(entry->had, entry->computed);
    // What was decoded under a sparse method must be decoded again, step by step.
    if (model_->attention().runner() == nullptr) entry->prefill_what_there_is();
    entry->computed = 0;
    entry->phase.now = Phase::kOne;
    entry->id = SequenceId();
    ++stats_.drops;
  }
  // In order of their first admission, as policies expect them.
  const auto place = std::ranges::find_if(requests.preempted, [&](const PreemptedRequest& other) {
    return other.request.admission > entry->admission;
  });
  requests.preempted.insert(place, {std::move(*entry), action.mode});
  requests.running.erase(entry);
}

void PlacementDriver::apply(const Resume& action, const Requests& requests) {
  const auto entry =
      std::ranges::find_if(requests.preempted, [&](const PreemptedRequest& preempted) {
        return preempted.request.admission == action.admission;
      });
  RunningRequest& request = requests.running.emplace_back(std::move(entry->request));
  if (entry->mode == PreemptMode::kDrop) {
    request.id = action.sequence;
    model_->attention().begin_sequence(request.id, request.sequence->prompt_tokens(),
                                       request.sequence->max_kv_tokens());
    request.computed = kv_->book().sequence(request.id).tokens;
    // Shared beyond what it had: the others went on with the prefix while it waited.
    const std::int64_t more = std::max<std::int64_t>(request.computed - request.had, 0);
    stats_.shared_prompt_tokens += static_cast<std::uint64_t>(more);
  }
  requests.preempted.erase(entry);
  phases_.resumed(request.phase, request_index(request), request.computed);
}

}  // namespace triphase
