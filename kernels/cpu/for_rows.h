#pragma once

// How row-wise operations share work: in whole rows. A task has enough rows that handing it out
// costs little beside doing it.

#include <algorithm>
#include <cstdint>

#include "base/rounding.h"
#include "base/thread_pool.h"

namespace triphase::cpu {

// Calls body(row) for every row, on all threads when there is enough work.
template <class Body>
void for_rows(ThreadPool& pool, std::int64_t rows, std::int64_t cols, const Body& body) {
  constexpr std::int64_t kTaskElements = 16384;
  const std::int64_t step =
      std::max<std::int64_t>(1, kTaskElements / std::max<std::int64_t>(1, cols));
  pool.parallel_for(ceil_div(rows, step), [&](std::int64_t task, int) {
    const std::int64_t end = std::min(rows, (task + 1) * step);
    for (std::int64_t row = task * step; row < end; ++row) body(row);
  });
}

template <class T>
T* row_of(void* data, std::int64_t row, std::int64_t stride) {
  return static_cast<T*>(data) + row * stride;
}
template <class T>
const T* row_of(const void* data, std::int64_t row, std::int64_t stride) {
  return static_cast<const T*>(data) + row * stride;
}

}  // namespace triphase::cpu
