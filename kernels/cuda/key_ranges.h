#pragma once

// How far each channel of the keys reaches, from the scales of an INT8 cache: what SparQ can weigh
// channels with (SparseOps::widen_key_ranges).

#include <cstdint>

#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

// ranges [kv_head][head_dim], at least 127 lambda of K in each of the `count` scale pages (a device
// array). scales [scale page][K, V][kv_head][lambda, zero][head_dim].
void widen_key_ranges(const float* scales, const std::int32_t* scale_pages, int count, int kv_heads,
                      int head_dim, float* ranges, StreamHandle stream);

}  // namespace triphase::cuda
