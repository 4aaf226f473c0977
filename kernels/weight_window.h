#pragma once

// Sums of attention weights per token over the last rows of a sequence in one layer (ALISA's local
// attention sum), in a device's memory: what SparseOps adds rows to and chooses tokens by. Weights
// are kept in units of 2^-32, so that sums are exact: they do not depend on the order of additions,
// and a token whose rows have all left has a sum of exactly 0.
//
// Where a row goes and which rows expire depends on their sizes and the window alone. So the host
// decides it (models/attention/weight_slots.h) and reads nothing of this memory.

#include <cstddef>
#include <cstdint>

#include "kernels/layer_memory.h"

namespace triphase {

inline constexpr double kWeightUnits = 4294967296.0;  // per 1
inline constexpr float kMostWeight = 65536.0F;        // a weight is at most the number of heads

// One token of a kept row.
struct WindowEntry {
  std::int32_t token = 0;
  float weight = 0.0F;
};

// Views, of the first layer's memory; it is cleared before its first row
// (SparseOps::clear_weights).
struct WeightWindow {
  std::int64_t* sums = nullptr;     // [tokens], in units
  WindowEntry* entries = nullptr;   // exact: a ring of `room` entries, the rows one behind another
  std::int64_t* buckets = nullptr;  // else [room][tokens]: units of the rows that a bucket holds
  std::int64_t tokens = 0;          // the longest context
  std::int64_t room = 0;            // entries or buckets
  std::int64_t layer_bytes = 0;     // from a layer's memory to the next one's

  [[nodiscard]] bool exact() const { return entries != nullptr; }
};
[[nodiscard]] TRIPHASE_BOTH WeightWindow in_layer(WeightWindow window, std::int64_t layer) {
  window.sums = in_layer(window.sums, window.layer_bytes, layer);
  window.entries = in_layer(window.entries, window.layer_bytes, layer);
  window.buckets = in_layer(window.buckets, window.layer_bytes, layer);
  return window;
}

// What one more row changes. Exact: the row is written to `count` entries from `begin` on; else it
// is added to bucket `begin`. Then `expired` entries or buckets leave, from `expired_begin` on.
// Beyond the last entry or bucket comes the first. What is written and what leaves do not overlap.
struct WindowStep {
  std::int64_t begin = 0;
  std::int64_t count = 0;  // tokens of the row
  std::int64_t expired_begin = 0;
  std::int64_t expired = 0;
};

// Whether it has memory and sizes; and whether a step of a row of `context` tokens stays within it.
[[nodiscard]] inline bool is_window(const WeightWindow& window) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  return window.sums != nullptr && window.tokens > 0 && window.tokens < kLargest &&
         window.room > 0 && window.room < kLargest &&
         (window.entries == nullptr) != (window.buckets == nullptr);
}
[[nodiscard]] inline bool is_step_of(const WeightWindow& window, const WindowStep& step,
                                     std::int64_t context) {
  return context >= 0 && context <= window.tokens && step.count >= 0 && step.count <= context &&
         step.begin >= 0 && step.begin < window.room && step.expired_begin >= 0 &&
         step.expired_begin < window.room && step.expired >= 0 &&
         step.expired + (window.exact() ? step.count : 0) <= window.room;
}

// One row's part of SparseOps::add_weights.
struct WeightRow {
  WeightWindow window;
  WindowStep step;
  std::int64_t context = 0;   // its tokens and those of earlier rows are before this position
  std::int64_t attended = 0;  // row of the selection
};

// One row's part of SparseOps::choose_recent_and_heaviest.
struct WindowChoice {
  WeightWindow window;
  std::int64_t context = 0;  // positions to choose from
  std::int64_t local = 0;    // newest positions, chosen in any case
  std::int64_t total = 0;    // chosen in all, at least `local`; beyond the context: all
};

// Bytes of a window's memory, a multiple of 64.
[[nodiscard]] constexpr std::uint64_t weight_window_bytes(bool exact, std::int64_t tokens,
                                                          std::int64_t room) {
  const std::int64_t words = tokens + room * (exact ? 1 : tokens);
  return static_cast<std::uint64_t>(words + 7) / 8 * 64;
}
[[nodiscard]] inline WeightWindow weight_window_at(void* memory, bool exact, std::int64_t tokens,
                                                   std::int64_t room) {
  auto* sums = static_cast<std::int64_t*>(memory);
  return {.sums = sums,
          .entries = exact ? reinterpret_cast<WindowEntry*>(sums + tokens) : nullptr,
          .buckets = exact ? nullptr : sums + tokens,
          .tokens = tokens,
          .room = room};
}

}  // namespace triphase
