#include <algorithm>

#include "kernels/cpu/cpu_sparse_kernels.h"

namespace triphase::cpu {

std::int64_t keep_heaviest_words(std::int64_t tokens) { return tokens + select_top_words(tokens); }

void keep_heaviest(const KeptRow& row, std::int64_t list, std::int32_t* scratch, std::int32_t* to) {
  std::int32_t* tokens = row.kept.tokens + list * row.kept.room;
  float* sums = row.kept.sums + list * row.kept.room;
  const std::int64_t length = row.count + row.added;
  for (std::int64_t i = row.count; i < length; ++i) {
    tokens[i] = static_cast<std::int32_t>(row.context - length + i);
    sums[i] = 0.0F;
  }
  const std::int64_t left = tokens_left(row);
  if (left < length) {
    // What stays moves towards the front, so that nothing is overwritten before it has moved.
    const std::int64_t local = std::min(row.local, length);
    const std::int64_t heaviest = left - local;
    std::int32_t* chosen = scratch;
    select_top(sums, length - local, heaviest, scratch + length, chosen);
    for (std::int64_t i = 0; i < heaviest; ++i) {
      tokens[i] = tokens[chosen[i]];
      sums[i] = sums[chosen[i]];
    }
    std::copy(tokens + length - local, tokens + length, tokens + heaviest);
    std::copy(sums + length - local, sums + length, sums + heaviest);
  }
  std::copy_n(tokens, left, to);
}

}  // namespace triphase::cpu
