#pragma once

// Copies K and V of a prompt's chosen tokens side by side, once for all of its queries, so that
// prefill_attention reads them like any others: bytes of a token and KV head twice, beside products
// with up to 1024 queries. INT8 becomes F32. Device memory.

#include <cstdint>

#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

struct ListedRows {
  KvCache cache;
  const std::int32_t* pages = nullptr;        // of the prompt; token t in pages[t / page_tokens]
  const std::int32_t* scale_pages = nullptr;  // INT8
  // INT8: tokens of this block and what follows lie in the partial page.
  std::int64_t own_block = 0;
  std::int32_t partial_page = -1;
  const std::int32_t* tokens = nullptr;  // [kv_head][capacity], ascending
  const std::int32_t* counts = nullptr;  // [kv_head]
  std::int64_t capacity = 0;
  // Every list holds all tokens from here to its last: they are not copied.
  std::int64_t all_from = 0;
};

// k and v [kv_head][room][head_dim], room at least all_from, in the cache's type or F32;
// listed [kv_head]: how many were copied. head_dim a multiple of 8.
void copy_listed_rows(const ListedRows& rows, void* k, void* v, std::int64_t room,
                      std::int32_t* listed, StreamHandle stream);

}  // namespace triphase::cuda
