#pragma once

// The smallest and largest key per channel of small pages of tokens, read from the cache (Quest):
// what kv_append keeps token by token, for prompts, for pages that came back, and for INT8 blocks,
// whose keys change when they close. Device memory.

#include <cstdint>

#include "kernels/cuda/score_rows.h"
#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

// bounds [page][kv_head][min, max][head_dim] F32 of one sequence (keys.sequences is 1): of every
// page of `tokens` tokens from first_page to the one that holds token keys.max_length - 1, which is
// the sequence's last. Keys as a query at the last position reads them.
void bound_pages(const ScoreKeys& keys, std::int64_t first_page, std::int64_t tokens, float* bounds,
                 StreamHandle stream);

}  // namespace triphase::cuda
