#pragma once

// The smallest and largest key per channel of small pages of tokens, read from the cache (Quest):
// what kv_append keeps token by token, for prompts, for pages that came back, and for INT8 blocks,
// whose keys change when they close. Device memory.

#include <cstdint>

#include "kernels/cuda/score_rows.h"
#include "kernels/cuda/stream_handle.h"
#include "kernels/layer_memory.h"

namespace triphase::cuda {

// bounds [sequences]. Writes every page of `tokens` tokens from that of a sequence's first token to
// that of its last one; `most_pages` at least as many as any sequence writes. Keys as a query at
// the last position reads them.
struct BoundPages {
  const PageBounds* bounds = nullptr;
  std::int64_t layer = 0;
  std::int64_t tokens = 0;
  std::int64_t most_pages = 0;
};
void bound_pages(const ScoreKeys& keys, const BoundPages& call, StreamHandle stream);

}  // namespace triphase::cuda
