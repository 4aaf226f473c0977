#pragma once

// The transposed copy of full blocks' keys that SparQ scores from: [page][kv_head][head_dim]
// [page_tokens], so that one channel of one page is contiguous. Partial blocks have none.

#include <cstdint>

#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

// channels [page][kv_head][head_dim][page_tokens] in the cache's type, from its k; `pages`: device
// array of `count` pages that are full (INT8: whose codes have been written), `to`: of the pages of
// `channels` that they go to.
void kv_write_channels(const std::int32_t* pages, const std::int32_t* to, int count,
                       const KvCache& cache, void* channels, StreamHandle stream);

}  // namespace triphase::cuda
