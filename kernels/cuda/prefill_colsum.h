#pragma once

// Sums of attention weights by key, from a second pass over QK^T with the log-sum-exp of prefill:
// how H2O (all query rows), SWA (the last rows of the prompt) and Squeezed's calibration start. No
// float atomics: one block owns a tile of keys of one KV head and adds queries in order, so the
// sums do not depend on how prefill was cut when the chunks' calls come in order.

#include <cstdint>

#include "kernels/cuda/stream_handle.h"
#include "runtime/base/dtype.h"

namespace triphase::cuda {

struct PrefillColumns {
  const float* q = nullptr;  // [queries, heads * head_dim] of one sequence
  std::int64_t q_stride = 0;
  const float* log_sums = nullptr;  // [queries][heads]
  std::int64_t queries = 0;
  std::int64_t first_position = 0;  // absolute position of query 0
  // Queries at positions [row_begin, row_end) count.
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  const void* k = nullptr;  // [page][kv_head][page_tokens][head_dim], F32, F16, BF16 or U8
  DType dtype = DType::kF16;
  // U8: the queries lie in one block, which is open; earlier ones are codes, with scales [scale
  // page] [K, V][kv_head][lambda, zero][head_dim].
  const float* scales = nullptr;
  const std::int32_t* scale_pages = nullptr;  // device, beside `pages`
  const void* open_k = nullptr;
  DType open_dtype = DType::kF16;
  std::int32_t open_page = -1;
  const std::int32_t* pages = nullptr;  // device; token t in pages[t / page_tokens]
  std::int64_t page_tokens = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  float scale = 1.0F;
  float* sums = nullptr;  // [kv_head][sum_stride]: summed over the group, added to what is there
  std::int64_t sum_stride = 0;
};

// Keys 0 .. first_position + queries - 1, each for the queries at or after it.
void prefill_colsum(const PrefillColumns& call, StreamHandle stream);

}  // namespace triphase::cuda
