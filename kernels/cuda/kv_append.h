#pragma once

// New tokens' keys and values into the cache, with what selection keeps beside them: the running
// sum of V per row (SparQ's mean) and the smallest and largest key per sub-page and channel
// (Quest).

#include <cstdint>

#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

struct KvAppendArgs {
  const void* k = nullptr;  // [tokens][kv_heads * head_dim], rows `stride` elements apart
  const void* v = nullptr;
  DType dtype = DType::kF32;  // F32, F16 or BF16
  std::int64_t stride = 0;
  int tokens = 0;
  const std::int32_t* slots = nullptr;  // [tokens], device; of the open pool for an INT8 cache
  // Values are rounded to the cache's type (INT8: to the open pool's).
  KvCache cache;

  // Optional statistics, of the values as stored. Tokens come in runs of one sequence each: run r
  // is tokens [run_begins[r], run_begins[r + 1]) of row r of v_sum's sequences.
  int runs = 0;
  const std::int32_t* run_begins = nullptr;     // [runs + 1]
  const std::int32_t* run_sequences = nullptr;  // [runs]
  float* v_sum = nullptr;                       // [sequences][kv_heads][head_dim], added to
  // Bounds of `bound_tokens` consecutive tokens: [entry][kv_heads][min, max][head_dim] in the
  // stored type; token t belongs to bound_entries[t], and starts it afresh when its offset in its
  // page is a multiple of bound_tokens.
  void* key_bounds = nullptr;
  const std::int32_t* bound_entries = nullptr;  // [tokens]
  int bound_tokens = 0;
};

void kv_append(const KvAppendArgs& args, StreamHandle stream);

}  // namespace triphase::cuda
