#include "tests/unit/scheduler/placement_world.h"

#include <algorithm>
#include <numeric>

namespace triphase {

PlacementWorld::PlacementWorld(const PlacementLimits& limits, std::vector<WorldLine> lines)
    : limits_(limits),
      book_({.block_tokens = limits.block_tokens,
             .device_blocks = limits.device_blocks,
             .host_blocks = limits.host_blocks,
             .input_blocks = limits.input_blocks,
             .windows = limits.windows}),
      lines_(std::move(lines)) {
  for (std::size_t index = 0; index < lines_.size(); ++index) {
    const WorldLine& line = lines_[index];
    waiting_.push_back(index);
    std::vector<TokenId>& tokens = tokens_.emplace_back(line.max_tokens);
    const auto first = static_cast<TokenId>(line.family == 0 ? 1000 * (index + 1) : line.family);
    std::iota(tokens.begin(), tokens.end(), first);
  }
}

std::span<const TokenId> PlacementWorld::prompt_of(std::size_t line) const {
  return std::span(tokens_[line]).first(static_cast<std::size_t>(lines_[line].prompt));
}

PlacementLimits small_limits() {
  return {.layers = 2,
          .block_tokens = 4,
          .device_blocks = 10,
          .host_blocks = 20,
          .input_blocks = 0,
          .batch_size = 8,
          .prefill_chunk = 8};
}

WaitingQueue queue_of(std::vector<WaitingRequest> waiting) {
  const std::size_t size = waiting.size();
  return {size, [waiting = std::move(waiting)](std::size_t place) { return waiting[place]; }};
}

std::vector<WaitingRequest> PlacementWorld::waiting() const {
  std::vector<WaitingRequest> waiting;
  for (std::size_t place = 0; place < waiting_.size() && place < 10; ++place) {
    const WorldLine& line = lines_[waiting_[place]];
    waiting.push_back({.prompt_tokens = line.prompt,
                       .max_tokens = line.max_tokens,
                       .tokens = prompt_of(waiting_[place])});
  }
  return waiting;
}

PlacementStep PlacementWorld::view(KvBook& book) const {
  return {limits_, steps_, book, running_, preempted_, queue_of(waiting())};
}

void PlacementWorld::carry_out(const PlacementActions& actions) {
  std::vector<std::size_t> admitted;
  for (const PlacementAction& action : actions) {
    if (const auto* offload = std::get_if<Offload>(&action)) {
      offloaded_ += offload->end_block - offload->first_block;
    } else if (const auto* discard = std::get_if<Discard>(&action)) {
      discarded_ += discard->end_block - discard->first_block;
    } else if (const auto* preempt = std::get_if<Preempt>(&action)) {
      ++preemptions_;
      const auto found = std::ranges::find(running_, preempt->sequence, &PlacedRequest::id);
      PlacedRequest request = *found;
      running_.erase(found);
      request.mode = preempt->mode;
      if (preempt->mode == PreemptMode::kDrop) {
        request.prefill_tokens = std::max(request.prefill_tokens, request.context);
        request.context = 0;
        request.id = SequenceId();
        request.tokens = prompt_of(request.admission);
      }
      const auto place = std::ranges::find_if(preempted_, [&](const PlacedRequest& other) {
        return other.admission > request.admission;
      });
      preempted_.insert(place, request);
    } else if (const auto* resume = std::get_if<Resume>(&action)) {
      const auto found =
          std::ranges::find(preempted_, resume->admission, &PlacedRequest::admission);
      running_.push_back(*found);
      running_.back().id = resume->sequence;
      running_.back().context = book_.sequence(resume->sequence).tokens;
      preempted_.erase(found);
    } else if (const auto* admit = std::get_if<Admit>(&action)) {
      const std::size_t place = admit->waiting;
      const WorldLine& line = lines_[waiting_[place]];
      running_.push_back({.id = admit->sequence,
                          .admission = waiting_[place],
                          .prompt_tokens = line.prompt,
                          .prefill_tokens = line.prompt,
                          .context = book_.sequence(admit->sequence).tokens,
                          .max_tokens = line.max_tokens});
      admitted.push_back(place);
    }
  }
  for (; !admitted.empty(); admitted.pop_back()) {
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(admitted.back()));
  }
}

PlacementActions PlacementWorld::step(const PlacementPolicy& policy) {
  PlacementStep step = view();
  policy.decide(step);
  PlacementAnswer answer = step.finish();
  book_.check();
  carry_out(answer.actions);
  max_running_ = std::max(max_running_, static_cast<std::int64_t>(running_.size()));
  for (std::size_t index = 0; index < running_.size(); ++index) {
    PlacedRequest& request = running_[index];
    const std::int64_t count = answer.tokens.at(index);
    if (book_.append_room(request.id) < count) book_.finish_moves();
    book_.append(request.id, count);
    request.context += count;
    const auto known = std::min(request.context, request.prompt_tokens);
    book_.publish(request.id,
                  std::span(tokens_[request.admission]).first(static_cast<std::size_t>(known)));
  }
  book_.check();
  book_.finish_moves();
  finished_lines_ += std::erase_if(running_, [&](const PlacedRequest& request) {
    if (request.context < line_of(request).ends_at) return false;
    KvMoves moves;
    book_.release(request.id, moves);
    return true;
  });
  ++steps_;
  return std::move(answer.actions);
}

}  // namespace triphase
