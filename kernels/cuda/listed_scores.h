#pragma once

// What attention left of lists (AttendedScores of kernels/ops.h), for the statistics of methods.
// All pointers are device memory.

#include <cstdint>

namespace triphase::cuda {

struct ListedScores {
  const float* values = nullptr;   // [list][query head of the list][capacity]
  const float* softmax = nullptr;  // [list][query head of the list]: largest, share
  std::int64_t capacity = 0;
  int heads = 0;  // of a list
};

}  // namespace triphase::cuda
