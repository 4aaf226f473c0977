#include "scheduler/cost/replay_costs.h"

#include <algorithm>

namespace triphase {

double ReplayCosts::seconds(const Sequence& sequence, std::int64_t replayed_blocks) const {
  const std::int64_t back = sequence.blocks - replayed_blocks;
  const std::int64_t stored = sequence.blocks - std::max(replayed_blocks, sequence.stored_blocks);
  const double copy = token_bytes_ * static_cast<double>(sequence.block_tokens);
  const auto copies = static_cast<double>(layers_);
  const double store = copies * static_cast<double>(stored) * cost_.d2h(copy).seconds;
  const double reload = copies * static_cast<double>(back) * cost_.h2d(copy).seconds;
  return store + std::max(reload, replay(sequence, replayed_blocks));
}

double ReplayCosts::replay(const Sequence& sequence, std::int64_t blocks) const {
  const std::int64_t tokens = blocks * sequence.block_tokens;
  const std::int64_t chunk = sequence.prefill_chunk / sequence.block_tokens * sequence.block_tokens;
  double seconds = 0.0;
  for (std::int64_t first = 0; first < tokens; first += chunk) {
    const std::int64_t count = std::min(chunk, tokens - first);
    seconds += cost_.prefill(static_cast<double>(count), static_cast<double>(first)).seconds;
  }
  return seconds;
}

std::int64_t ReplayCosts::cheapest(const Sequence& sequence, std::int64_t least,
                                   std::int64_t most) const {
  std::int64_t best = least;
  double best_seconds = seconds(sequence, least);
  for (std::int64_t blocks = least + 1; blocks <= most; ++blocks) {
    const double now = seconds(sequence, blocks);
    if (now < best_seconds) {
      best = blocks;
      best_seconds = now;
    }
  }
  return best;
}

}  // namespace triphase
