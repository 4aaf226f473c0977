#pragma once

// Products of rows in groups, each of which has weights of its own (the experts of a layer), where
// only the device knows which rows a group has.

#include <cstdint>

#include "base/activation.h"

namespace triphase::cuda {

// Rows [first, end) of y are some of one group's; none where end is 0.
struct alignas(16) RowTile {
  std::int32_t group;
  std::int32_t first;
  std::int32_t end;
  std::int32_t unused;
};

// w [groups * N, K] holds the groups' weights one after the other.
struct RowGroups {
  std::int64_t count = 0;
  const RowTile* tiles = nullptr;  // in device memory, each of at most tile_rows rows
  std::int64_t tile_count = 0;
  std::int64_t tile_rows = 0;
  const std::int32_t* x_rows = nullptr;  // in device memory, by row of y: its row of x. Null: same
  // y = act(gate) * up, where a group's weights are N / 2 rows of the gate, then those of up.
  bool gated = false;
  Activation activation = Activation::kSilu;
  const float* bias = nullptr;  // in device memory, by row of w, or null
};

}  // namespace triphase::cuda
