#include "models/attention/weight_slots.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace triphase {
namespace {

constexpr std::int64_t kBuckets = 8;

}  // namespace

WindowStep WeightSlots::add(std::int64_t tokens, std::int64_t window) {
  const std::int64_t slot_rows = exact_ ? 1 : std::max<std::int64_t>(1, window / kBuckets);
  if (slots_.empty() || slots_.back().rows >= slot_rows) {
    const std::int64_t units = exact_ ? tokens : 1;
    TRIPHASE_CHECK(units <= room_ - used_, "a window of weights without room for its rows");
    slots_.push_back({.begin = next_, .units = units});
    next_ = (next_ + units) % std::max<std::int64_t>(1, room_);
    used_ += units;
    most_used_ = std::max(most_used_, used_);
  }
  WindowStep step{.begin = slots_.back().begin, .count = tokens};
  ++slots_.back().rows;
  ++rows_;
  step.expired_begin = slots_.front().begin;
  while (rows_ - slots_.front().rows >= window && slots_.size() > 1) {
    step.expired += slots_.front().units;
    rows_ -= slots_.front().rows;
    slots_.pop_front();
  }
  used_ -= step.expired;
  return step;
}

std::int64_t weight_room(bool exact, const WindowGrowth& growth) {
  WeightSlots slots(exact, std::numeric_limits<std::int64_t>::max());
  const std::int64_t prompt = growth.prompt_tokens;
  const std::int64_t window = growth.window_rows(prompt + 1);
  for (std::int64_t row = std::max<std::int64_t>(0, prompt - window); row < prompt; ++row) {
    static_cast<void>(slots.add(row + 1, window));
  }
  for (std::int64_t context = prompt + 1; context <= growth.longest; ++context) {
    const std::int64_t tokens = std::min(context, growth.chosen_tokens(context));
    static_cast<void>(slots.add(tokens, growth.window_rows(context + 1)));
  }
  return slots.most_used();
}

}  // namespace triphase
