#pragma once

// Exact attention of any queries over paged K and V on CUDA cores: prefill chunks and decode tokens
// in one ragged batch, causal, with an optional window, and the log-sum-exp of every query for
// prefill_colsum. Flash attention over key tiles cut at absolute positions; splits of
// kPagedSplitTokens are merged in ascending order, so a query's bits depend on its row, its
// position and the cache alone. The plain kernel that always works; decode-only batches have a
// faster one.

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/stream_handle.h"
#include "kernels/kv_scale.h"

namespace triphase::cuda {

inline constexpr std::int64_t kAttentionKeyTile = 64;

// What kernels/ops.h calls a segment, with its pages in one device array.
struct PagedSegment {
  std::int64_t query_begin = 0;
  std::int64_t query_count = 0;
  std::int64_t context_tokens = 0;
  std::int64_t window = 0;
  std::int64_t pages_begin = 0;    // into PagedAttention::pages
  std::int32_t partial_page = -1;  // U8: the queries' own block
  std::int32_t first_block =
      0;  // query blocks before this segment's (filled by the wrapper's user)
};

// Of the tokens before `all_from` all queries attend these alone, copied side by side
// (listed_rows.h): in the cache's type, or F32 where that is INT8.
struct ListedTokens {
  const void* k = nullptr;  // [kv_head][room][head_dim]
  const void* v = nullptr;
  std::int64_t room = 0;
  const std::int32_t* counts = nullptr;  // [kv_head]; null: queries attend the whole context
  std::int64_t all_from = 0;
};

struct PagedAttention {
  const float* q = nullptr;
  std::int64_t q_stride = 0;
  std::int64_t heads = 0;
  const void* k = nullptr;
  const void* v = nullptr;
  DType dtype = DType::kF16;
  const KvScale* scales = nullptr;    // U8: [scale page][K, V][kv_head][head_dim]
  const void* partial_k = nullptr;    // U8
  const void* partial_v = nullptr;    // U8
  DType partial_dtype = DType::kF16;  // U8
  std::int64_t page_tokens = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  float scale = 1.0F;
  // Above 0: a score x becomes cap * tanh(x * inverse_cap), in units of log2.
  float cap = 0.0F;
  float inverse_cap = 0.0F;
  const float* sinks = nullptr;            // device: [heads] (attention_sink.h), or null
  const PagedSegment* segments = nullptr;  // device
  std::int64_t segment_count = 0;
  const std::int32_t* pages = nullptr;        // device
  const std::int32_t* scale_pages = nullptr;  // device, beside `pages`; U8
  float* out = nullptr;
  std::int64_t out_stride = 0;
  float* log_sums = nullptr;  // [query][heads], or null
  float* partials = nullptr;  // paged_attention_floats of workspace
  ListedTokens listed;        // of all segments; prefill_attention only
};

// `query_blocks` of the segments together and `partials` as kernels/sizing/cuda_workspace.h says:
// paged_query_blocks of each, paged_attention_floats.
void paged_attention(const PagedAttention& call, std::int64_t query_blocks,
                     std::int64_t max_context, StreamHandle stream);

}  // namespace triphase::cuda
