#pragma once

// The transposed copy of full blocks' keys that SparQ scores from (KvLayerView::kt). Partial blocks
// have none.

#include <cstdint>

#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

// `pages`: device array of `count` pages of the cache that are full (INT8: whose codes have been
// written), `to`: of the pages of `channels` that they go to.
void kv_write_channels(const std::int32_t* pages, const std::int32_t* to, int count,
                       const KvCache& cache, const KvChannels& channels, StreamHandle stream);

}  // namespace triphase::cuda
