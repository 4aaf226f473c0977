#include "scheduler/placement/placement_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "scheduler/batch_planner.h"

namespace triphase {
namespace {

// Whether two prompts have the same whole blocks from their start up to behind token `there`. Of
// the first one the last token is always computed.
bool share_beyond(std::int64_t there, std::span<const TokenId> prompt,
                  std::span<const TokenId> other, std::int64_t block_tokens) {
  const auto begin = static_cast<std::size_t>(there / block_tokens * block_tokens);
  const std::size_t end = begin + static_cast<std::size_t>(block_tokens);
  if (end >= prompt.size() || end > other.size()) return false;
  const auto equal = [&](std::size_t from, std::size_t to) {
    return std::ranges::equal(prompt.subspan(from, to - from), other.subspan(from, to - from));
  };
  // Prompts of one prefix differ behind it.
  return equal(begin, end) && equal(0, begin);
}

}  // namespace

void find_shared(const KvBook& book, std::optional<std::int64_t> most, WaitingRequest& request) {
  const KvBook::Prefix prefix = book.find_prefix(request.tokens, request.context_key, most);
  request.shared_blocks = prefix.referenced;
  request.cached_host_blocks = prefix.unheld_on_host;
  request.cached_blocks = std::ssize(prefix.blocks) - request.shared_blocks - prefix.unheld_on_host;
}

bool waits_for_prefix(const WaitingRequest& request, std::span<const PlacedRequest> running,
                      std::span<const WaitingRequest> before, std::int64_t block_tokens) {
  if (std::ssize(request.tokens) <= block_tokens) return false;
  const std::int64_t there = request.found_blocks() * block_tokens;
  const auto computes = [&](const PlacedRequest& other) {
    const std::int64_t beyond = std::max(there, other.context);
    return other.prefilling() && other.context_key == request.context_key &&
           share_beyond(beyond, request.tokens, other.tokens, block_tokens);
  };
  const auto will_compute = [&](const WaitingRequest& other) {
    return other.context_key == request.context_key &&
           share_beyond(there, request.tokens, other.tokens, block_tokens);
  };
  return std::ranges::any_of(running, computes) || std::ranges::any_of(before, will_compute);
}

Phase phase_of(const KvBook& book, SequenceId sequence) {
  if (book.table(sequence).recomputable() > 0) return Phase::kThree;
  return book.table(sequence).offloaded() > 0 ? Phase::kTwo : Phase::kOne;
}

PlacementStep::PlacementStep(const PlacementLimits& limits, std::int64_t step, KvBook& book,
                             std::vector<PlacedRequest> running,
                             std::vector<PlacedRequest> preempted, WaitingQueue queue)
    : limits_(limits),
      number_(step),
      book_(&book),
      running_(std::move(running)),
      preempted_(std::move(preempted)),
      queue_(std::move(queue)),
      resumed_(preempted_.size(), false),
      held_(static_cast<std::int64_t>(running_.size() + preempted_.size())),
      prefill_left_(limits.prefill_chunk) {
  TRIPHASE_CHECK(limits.layers > 0 && limits.block_tokens > 0 && limits.batch_size > 0,
                 "placement limits");
  TRIPHASE_CHECK(!book.pool().moving(), "a decision is about blocks that have arrived");
  book.advance_windows();
  answer_.tokens = plan_tokens();
  for (std::size_t index = 0; index < running_.size(); ++index) {
    PlacedRequest& request = running_[index];
    request.step_tokens = answer_.tokens[index];
    if (request.prefilling()) prefill_left_ -= request.step_tokens;
  }
  prefill_left_ = std::max<std::int64_t>(prefill_left_, 0);
}

const WaitingRequest* PlacementStep::waiting(std::size_t index) {
  if (running_count() >= limits_.batch_size) return nullptr;
  const bool known = index < waiting_.size();
  while (waiting_.size() <= index) {
    if (!look_at_next()) return nullptr;
  }
  WaitingRequest& request = waiting_[index];
  // Who was admitted since may hold blocks that nobody held.
  if (known && started_ && !admitted_[index]) find_shared(*book_, request.found_blocks(), request);
  return &request;
}

bool PlacementStep::look_at_next() {
  while (next_place_ < queue_.size) {
    WaitingRequest request = queue_.request(next_place_);
    request.place = next_place_++;
    find_shared(*book_, {}, request);
    if (waits_for_prefix(request, running_, waiting_, limits_.block_tokens)) continue;
    waiting_.push_back(request);
    admitted_.push_back(false);
    WaitingRequest& last = waiting_.back();
    // What is cached must leave room for what a request that runs alone computes.
    const Admit alone{.waiting = last.place};
    while (running_.empty() && last.cached_blocks > 0 &&
           admission_blocks(alone) > book_->tiers().device.free()) {
      find_shared(*book_, last.found_blocks() - 1, last);
    }
    return true;
  }
  return false;
}

std::size_t PlacementStep::index_of(const Admit& action) const {
  const auto found = std::ranges::lower_bound(waiting_, action.waiting, {}, &WaitingRequest::place);
  TRIPHASE_CHECK(found != waiting_.end() && found->place == action.waiting, "a prompt looked at");
  return static_cast<std::size_t>(found - waiting_.begin());
}

std::vector<std::int64_t> PlacementStep::plan_tokens() const {
  std::vector<SequenceProgress> progress;
  progress.reserve(running_.size());
  for (const PlacedRequest& request : running_) {
    progress.push_back(
        {std::max<std::int64_t>(request.prefill_tokens - request.context, 0), request.context});
  }
  return plan_step(progress, {.rows = limits_.batch_size + limits_.prefill_chunk,
                              .prefill_chunk = limits_.prefill_chunk,
                              .units = limits_.prompt_units});
}

std::vector<PlacedRequest>::iterator PlacementStep::find(SequenceId id) {
  const auto found = std::ranges::find(running_, id, &PlacedRequest::id);
  TRIPHASE_CHECK(found != running_.end(), fmt::format("sequence {} is not running", id.value));
  return found;
}

void PlacementStep::require_not_started(std::string_view action) const {
  TRIPHASE_CHECK(!started_, fmt::format("{} after the first admit or resume", action));
}

void PlacementStep::require_device_blocks(std::int64_t blocks) const {
  TRIPHASE_CHECK(blocks <= book_->tiers().device.free(),
                 fmt::format("{} device blocks are needed and {} are free", blocks,
                             book_->tiers().device.free()));
}

// A new request prefills as many tokens as the others leave.
void PlacementStep::start(PlacedRequest request) {
  request.step_tokens = 1;
  if (request.prefilling()) {
    request.step_tokens = std::min(request.prefill_tokens - request.context, prefill_left_);
    prefill_left_ -= request.step_tokens;
  }
  started_ = others_run_ = true;
  running_.push_back(request);
}

void PlacementStep::admit(Admit action) {
  const std::size_t index = index_of(action);
  TRIPHASE_CHECK(!admitted_[index], "a waiting prompt");
  TRIPHASE_CHECK(running_count() < limits_.batch_size, "a place in the batch");
  TRIPHASE_CHECK(action.device_blocks >= 0 && action.host_blocks >= 0 && action.input_blocks >= 0,
                 "reservations are not negative");
  const WaitingRequest& request = waiting_[index];
  TRIPHASE_CHECK(action.input_blocks == 0 || request.found_blocks() == 0,
                 "X of blocks that are there was not saved for it");
  require_device_blocks(request.cached_blocks + action.device_blocks +
                        book_->window_reservation(request.max_tokens));
  const KvBook::Admission admission =
      book_->admit(request.tokens, request.max_tokens, request.context_key,
                   {.device_blocks = action.device_blocks,
                    .host_blocks = action.host_blocks,
                    .input_blocks = action.input_blocks,
                    .most_shared_blocks = request.found_blocks()});
  TRIPHASE_CHECK(admission.sequence.valid(),
                 fmt::format("{} host blocks and {} input blocks are needed, {} and {} are free",
                             action.host_blocks, action.input_blocks, book_->tiers().host.free(),
                             book_->tiers().inputs.free()));
  admitted_[index] = true;
  start({.id = admission.sequence,
         .prompt_tokens = request.prompt_tokens,
         .prefill_tokens = request.prompt_tokens,
         .context = admission.shared_tokens,
         .max_tokens = request.max_tokens,
         .context_key = request.context_key});
  action.sequence = admission.sequence;
  answer_.actions.emplace_back(action);
}

std::int64_t PlacementStep::admission_blocks(const Admit& action) const {
  const WaitingRequest& request = waiting_[index_of(action)];
  const std::int64_t found = request.found_blocks();
  const std::int64_t context = found * limits_.block_tokens;
  const std::int64_t step_tokens =
      std::clamp<std::int64_t>(request.prompt_tokens - context, 0, prefill_left_);
  const std::int64_t grown = limits_.blocks_for(context + step_tokens) - found;
  return request.cached_blocks + std::max(action.device_blocks, grown) +
         book_->window_reservation(request.max_tokens);
}

std::int64_t PlacementStep::window_blocks() const {
  std::int64_t blocks = limits_.window_store();
  for (const PlacedRequest& request : running_) {
    blocks += book_->window_reservation(request.max_tokens);
  }
  return blocks;
}

std::int64_t PlacementStep::resumption_windows(const PlacedRequest& request) const {
  return request.mode == PreemptMode::kSwap ? 0 : book_->window_reservation(request.max_tokens);
}

std::int64_t PlacementStep::resumption_shared(const PlacedRequest& request) const {
  if (request.mode == PreemptMode::kSwap) return 0;
  const KvBook::Prefix all = book_->find_prefix(request.tokens, request.context_key);
  // Where layers have windows a part of a prefix may be too little to begin with.
  const KvBook::Prefix held =
      book_->find_prefix(request.tokens, request.context_key, all.referenced);
  return static_cast<std::int64_t>(held.blocks.size());
}

std::int64_t PlacementStep::offloaded_blocks(const WaitingRequest& request) const {
  return book_->find_prefix(request.tokens, request.context_key, request.found_blocks()).offloaded;
}

void PlacementStep::offload(SequenceId id, std::int64_t count) {
  require_not_started("offload");
  static_cast<void>(find(id));
  const std::int64_t offloaded = book_->table(id).offloaded();
  const Offload action{id, offloaded, offloaded + count};
  const std::int64_t full = book_->sequence(id).tokens / limits_.block_tokens;
  TRIPHASE_CHECK(
      count > 0 && action.end_block <= full,
      fmt::format("{}: only full blocks leave the device, and {} are full", to_text(action), full));
  const std::int64_t room = book_->tiers().host.free() + book_->sequence(id).reserved_host;
  TRIPHASE_CHECK(count <= room,
                 fmt::format("{} host blocks are needed and {} are free", count, room));
  book_->placer(answer_.moves).offload(id, count);
  answer_.actions.emplace_back(action);
}

void PlacementStep::load(SequenceId id, std::int64_t count) {
  require_not_started("load");
  static_cast<void>(find(id));
  const std::int64_t offloaded = book_->table(id).offloaded();
  const Load action{id, offloaded - count, offloaded};
  TRIPHASE_CHECK(count > 0 && count <= book_->table(id).on_host(),
                 fmt::format("{}: host blocks are [{}, {})", to_text(action),
                             book_->table(id).recomputable(), offloaded));
  require_device_blocks(count);
  book_->placer(answer_.moves).load(id, count);
  answer_.actions.emplace_back(action);
}

void PlacementStep::discard(SequenceId id, std::int64_t count) {
  require_not_started("discard");
  static_cast<void>(find(id));
  const std::int64_t first = book_->table(id).recomputable();
  const Discard action{id, first, first + count};
  TRIPHASE_CHECK(count > 0 && count <= book_->table(id).on_host(),
                 fmt::format("{}: host blocks are [{}, {})", to_text(action), first,
                             book_->table(id).offloaded()));
  book_->placer(answer_.moves).discard(id, count);
  answer_.actions.emplace_back(action);
}

void PlacementStep::preempt(SequenceId id, PreemptMode mode) {
  require_not_started("preempt");
  const auto request = find(id);
  const bool crowded = limits_.partial_blocks > 0 && held_ > limits_.partial_blocks;
  // Window blocks are never on the host.
  const bool windows = book_->pool().window_blocks() > 0;
  if (crowded || windows || book_->table(id).shared() > 0) mode = PreemptMode::kDrop;
  if (mode == PreemptMode::kSwap) {
    book_->placer(answer_.moves).preempt(id);
  } else {
    book_->release(id, answer_.moves);
  }
  running_.erase(request);
  others_run_ = true;
  answer_.actions.emplace_back(Preempt{id, mode});
}

void PlacementStep::preempt(SequenceId id) {
  const std::int64_t room = book_->tiers().host.free() + book_->sequence(id).reserved_host;
  const bool fits = book_->table(id).on_device() <= room;
  preempt(id, fits ? PreemptMode::kSwap : PreemptMode::kDrop);
}

void PlacementStep::resume(std::size_t preempted, std::int64_t device_blocks) {
  TRIPHASE_CHECK(preempted < preempted_.size() && !resumed_[preempted],
                 "a preempted sequence is resumed once");
  TRIPHASE_CHECK(running_count() < limits_.batch_size, "a place in the batch");
  PlacedRequest request = preempted_[preempted];
  require_device_blocks(device_blocks + resumption_windows(request));
  Resume action{request.admission, device_blocks};
  if (request.mode == PreemptMode::kSwap) {
    const std::int64_t partial =
        limits_.blocks_for(request.context) - request.context / limits_.block_tokens;
    TRIPHASE_CHECK(device_blocks >= partial && device_blocks <= book_->table(request.id).on_host(),
                   fmt::format("{}: the partial block and at most {} blocks come back",
                               to_text(action), book_->table(request.id).on_host()));
    book_->placer(answer_.moves).resume(request.id, device_blocks);
  } else {
    const KvBook::Admission admission = book_->admit(
        request.tokens, request.max_tokens, request.context_key,
        {.device_blocks = device_blocks, .most_shared_blocks = resumption_shared(request)});
    TRIPHASE_CHECK(admission.sequence.valid(), "a resumption that is counted out");
    request.id = admission.sequence;
    request.context = admission.shared_tokens;
  }
  resumed_[preempted] = true;
  action.sequence = request.id;
  start(request);
  answer_.actions.emplace_back(action);
}

std::int64_t PlacementStep::spare_device_blocks() const {
  std::int64_t taken = 0;
  for (const PlacedRequest& request : running_) {
    const KvSequence& sequence = book_->sequence(request.id);
    const std::int64_t grown = limits_.blocks_for(request.context + request.step_tokens) -
                               static_cast<std::int64_t>(sequence.blocks.size());
    taken += std::max<std::int64_t>(grown - sequence.reserved_device, 0);
  }
  return book_->tiers().device.free() - taken;
}

void PlacementStep::check() const {
  const std::int64_t spare = spare_device_blocks();
  TRIPHASE_CHECK(spare >= 0, fmt::format("the step needs {} more device blocks", -spare));
  TRIPHASE_CHECK(!running_.empty() || (held_ == 0 && queue_.size == 0), "something runs");
}

PlacementAnswer PlacementStep::finish() {
  check();
  if (others_run_) answer_.tokens = plan_tokens();
  return std::move(answer_);
}

std::string to_text(const PlacementAction& action) {
  return std::visit(
      [](const auto& a) -> std::string {
        using Action = std::decay_t<decltype(a)>;
        if constexpr (std::is_same_v<Action, Admit>) {
          return fmt::format("admit #{} reserving {} device, {} host, {} input blocks", a.waiting,
                             a.device_blocks, a.host_blocks, a.input_blocks);
        } else if constexpr (std::is_same_v<Action, Preempt>) {
          return fmt::format("preempt {} by {}", a.sequence.value,
                             a.mode == PreemptMode::kSwap ? "swap" : "drop");
        } else if constexpr (std::is_same_v<Action, Resume>) {
          return fmt::format("resume #{} with {} device blocks", a.admission, a.device_blocks);
        } else {
          constexpr std::string_view kVerb = std::is_same_v<Action, Offload> ? "offload"
                                             : std::is_same_v<Action, Load>  ? "load"
                                                                             : "discard";
          return fmt::format("{} {} [{}, {})", kVerb, a.sequence.value, a.first_block, a.end_block);
        }
      },
      action);
}

}  // namespace triphase
