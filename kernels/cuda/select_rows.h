#pragma once

// Which tokens (or pages) a row attends to, from their scores: the best k, the last ones always.
// Deterministic; ties go to the smallest index; indices come
// out ascending (docs/attention: the same rules as on the CPU). A row is (sequence, KV head), index
// sequence * rows_per_sequence + head. All pointers are device memory.

#include <cstdint>

#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

struct SelectRows {
  const float* scores = nullptr;  // [rows][score_stride]; entries from the length on are not read
  std::int64_t score_stride = 0;
  const std::int32_t* lengths = nullptr;  // [rows / rows_per_sequence]
  std::int64_t rows = 0;
  std::int64_t rows_per_sequence = 1;
  std::int64_t max_length = 0;  // of any sequence
  std::int64_t local = 0;       // the last ones are always selected and never compete
  // Null, or of each sequence in place of `local` and of select_top's k, which are the largest of
  // them. [rows / rows_per_sequence]
  const std::int32_t* locals = nullptr;
  const std::int32_t* ks = nullptr;
  std::int32_t* indices = nullptr;  // [rows][capacity]
  std::int64_t capacity = 0;
  std::int32_t* counts = nullptr;  // [rows]
};

// At most k entries in all, the forced ones counted (they are all kept even beyond k). A row no
// longer than k is selected whole. NaN scores lose against every number. With `ks` or `locals`, k
// is the largest of all entries selected.
void select_top(const SelectRows& call, std::int64_t k, StreamHandle stream);

}  // namespace triphase::cuda
