#pragma once

// New tokens' keys and values into the cache, with the rotation by their positions: keys on their
// way there, queries in place.

#include <cstdint>

#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

struct KvAppendArgs {
  const float* k = nullptr;  // [tokens][kv_heads * head_dim], rows `stride` elements apart
  const float* v = nullptr;
  std::int64_t stride = 0;
  int tokens = 0;
  const std::int32_t* slots = nullptr;  // [tokens], device; of the partial pages for an INT8 cache
  // Values are rounded to the cache's type (INT8: to the partial pages' type).
  KvCache cache;

  // Ops::rope of k and of q; rotary_dim 0: nothing is rotated. k stays as it is.
  int rotary_dim = 0;
  const float* cos_sin = nullptr;  // [tokens][rotary_dim], rows cos_sin_stride elements apart
  std::int64_t cos_sin_stride = 0;
  float* q = nullptr;  // [tokens][heads * head_dim], rows q_stride elements apart
  std::int64_t q_stride = 0;
  int heads = 0;
};

void kv_append(const KvAppendArgs& args, StreamHandle stream);

}  // namespace triphase::cuda
