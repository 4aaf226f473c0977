#include "scheduler/batch_planner.h"

#include <algorithm>

#include "base/error.h"

namespace triphase {

std::vector<std::int64_t> plan_step(std::span<const SequenceProgress> running,
                                    const StepLimits& limits) {
  std::vector<std::int64_t> tokens(running.size(), 0);
  std::int64_t rows_left = limits.rows;
  for (std::size_t i = 0; i < running.size() && rows_left > 0; ++i) {
    if (running[i].prompt_left == 0) {
      tokens[i] = 1;
      --rows_left;
    }
  }
  std::int64_t prefill_left = std::min(rows_left, limits.prefill_chunk);
  for (std::size_t i = 0; i < running.size() && prefill_left > 0; ++i) {
    if (running[i].prompt_left > 0) {
      tokens[i] =
          whole_units(limits.units, running[i].computed, running[i].prompt_left, prefill_left);
      prefill_left -= tokens[i];
    }
  }
  TRIPHASE_CHECK(running.empty() || limits.rows <= 0 || limits.units.rows == 0 ||
                     std::ranges::any_of(tokens, [](std::int64_t count) { return count > 0; }),
                 "a prompt's unit is longer than a step");
  return tokens;
}

}  // namespace triphase
