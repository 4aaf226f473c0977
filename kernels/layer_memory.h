#pragma once

// What sparse methods keep of a sequence in the device's memory, layer after layer. Views are of
// the first layer, so that a step's rows are the same in all layers.

#include <cstdint>

#include "kernels/both_sides.h"

namespace triphase {

// What lies at `first` in the first layer, in layer `layer`; `bytes`: from one layer to the next.
template <class T>
TRIPHASE_BOTH T* in_layer(T* first, std::int64_t bytes, std::int64_t layer) {
  return first == nullptr ? nullptr
                          : reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(first) +
                                                 static_cast<std::uintptr_t>(layer * bytes));
}

// Minimum and maximum per channel of the keys of a small page of tokens (Quest), F32:
// [page][kv_head][min, max][head_dim].
struct PageBounds {
  float* data = nullptr;
  std::int64_t first_token = 0;  // bound_pages: pages before that of this token stay as they are
  std::int64_t layer_bytes = 0;
};

// How Quest chooses for one query: the pages of the largest bounds, the newest page counted.
struct PageChoice {
  const float* bounds = nullptr;  // PageBounds::data
  std::int64_t pages = 0;         // at most those of the context
  std::int64_t layer_bytes = 0;
};

// Rows [first_row, first_row + rows) of V that are added to one sequence's sums.
struct ValueRows {
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  float* sums = nullptr;  // [kv_head][head_dim], the device's memory
  std::int64_t layer_bytes = 0;
  std::int64_t tokens = 0;  // that are in the sums already; 0: the sums hold nothing yet
};

// The mean of V over a sequence's first `tokens` tokens.
struct ValueMean {
  const float* sums = nullptr;  // as in ValueRows
  std::int64_t tokens = 0;      // that were summed
  std::int64_t layer_bytes = 0;
};

}  // namespace triphase
