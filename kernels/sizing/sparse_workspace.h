#pragma once

// Scratch of SparseOps as a pure function of shapes. No state; thread safe.

#include <cstdint>

#include "kernels/sizing/attention_workspace.h"

namespace triphase {

// Bytes for score_keys, accumulate_columns and choose_by_channels over contexts of at most
// shape.max_context tokens. Grows with every field; max_query_rows does not matter.
[[nodiscard]] std::uint64_t sparse_workspace_bytes(const AttentionShape& shape);

// Floats of one thread's weights of one query under one KV head, a multiple of 16.
[[nodiscard]] std::int64_t sparse_row_floats(const AttentionShape& shape);

// Tokens whose channels are collected together where a page has no K^T.
inline constexpr std::int64_t kChannelTile = 64;
// Scores that a selection looks at first, to know where its threshold lies.
inline constexpr std::int64_t kSelectionSample = 1024;
// Words of scratch to select among `size` scores: whole vectors are stored, up to one beyond the
// end.
[[nodiscard]] constexpr std::int64_t select_top_words(std::int64_t size) {
  return size + kSelectionSample + 32;
}

// One thread's scratch of choose_by_channels: where its parts begin, in units of 4 bytes. All
// multiples of 16.
struct ChannelChoiceLayout {
  std::int64_t row = 0;   // from one head's scores to the next
  std::int64_t sums = 0;  // of a group's scores; they lie behind its heads'
  std::int64_t selection = 0;
  std::int64_t channels = 0;
  std::int64_t query_row = 0;  // from one head's query to the next
  std::int64_t queries = 0;
  std::int64_t scaled_queries = 0;  // INT8: times the scales of a block
  std::int64_t starts = 0;          // INT8: per head, what the zero points add to a block's scores
  std::int64_t tile = 0;
  std::int64_t size = 0;
};
[[nodiscard]] ChannelChoiceLayout channel_choice_layout(const AttentionShape& shape);

}  // namespace triphase
