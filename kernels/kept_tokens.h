#pragma once

// The tokens that a sequence still keeps in one layer, and the attention weight that each has
// gathered (H2O), in a device's memory. SparseOps keeps the heaviest. All lists of a sequence have
// one length, which follows from its prompt and context alone. So the host counts the tokens
// (models/attention/h2o.cpp) and reads nothing of this memory.

#include <algorithm>
#include <cstdint>

#include "kernels/layer_memory.h"

namespace triphase {

// Views, of the first layer's memory. A list's kept tokens lie at its start.
struct KeptTokens {
  std::int32_t* tokens = nullptr;  // [list][room], ascending
  float* sums = nullptr;           // [list][room], of their weights
  std::int64_t lists = 0;
  std::int64_t room = 0;
  std::int64_t layer_bytes = 0;  // from a layer's memory to the next one's
};
[[nodiscard]] TRIPHASE_BOTH KeptTokens in_layer(KeptTokens kept, std::int64_t layer) {
  kept.tokens = in_layer(kept.tokens, kept.layer_bytes, layer);
  kept.sums = in_layer(kept.sums, kept.layer_bytes, layer);
  return kept;
}

// One row's part of SparseOps::keep_heaviest: each list has `count` tokens, positions
// [context - added, context) join them with sums of 0, and of all these some stay.
struct KeptRow {
  KeptTokens kept;
  std::int64_t count = 0;
  std::int64_t added = 0;
  std::int64_t context = 0;
  std::int64_t local = 0;  // the newest, which stay in any case
  std::int64_t total = 0;  // that stay, the newest counted; more only where `local` is more
};

// How many tokens each list has afterwards.
[[nodiscard]] inline std::int64_t tokens_left(const KeptRow& row) {
  return std::min(row.count + row.added, std::max(row.local, row.total));
}

// One row's part of SparseOps::add_kept_weights.
struct KeptWeights {
  KeptTokens kept;
  std::int64_t count = 0;     // tokens of each list
  std::int64_t attended = 0;  // row of the selection
};

// Whether it has memory for `count` tokens; and whether a row stays within it.
[[nodiscard]] inline bool holds_tokens(const KeptTokens& kept, std::int64_t count) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  return kept.tokens != nullptr && kept.sums != nullptr && kept.lists > 0 && kept.room > 0 &&
         kept.room < kLargest && count >= 0 && count <= kept.room;
}
[[nodiscard]] inline bool is_kept_row(const KeptRow& row) {
  return row.count >= 0 && row.added >= 0 && holds_tokens(row.kept, row.count + row.added) &&
         row.context > 0 && row.count + row.added <= row.context && row.local >= 0 &&
         row.total >= 0;
}

}  // namespace triphase
