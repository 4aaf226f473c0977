#pragma once

// Quantizes full blocks of an INT8 cache from the partial pages to codes and scales, and single
// tokens of full blocks again. Codes and scales are bit-equal to the CPU's quantize_blocks (the
// definition is in kernels/ops.h): per channel of a head,
//   lambda = (max - min) / 255, zero = round(-min / lambda), code = round(x / lambda + zero) in
//   0..255, halves to even, every operation rounded once in F32;
//   max == min: lambda = max, zero = -1, codes 0;  NaN or infinity: lambda NaN, zero 0, codes 0.

#include <cstdint>

#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

struct KvBlock {
  std::int32_t partial_page;
  std::int32_t page;
  std::int32_t scale_page;
};

// Slots are page * page_tokens + offset, in the partial pages and among the codes.
struct KvTokenCodes {
  std::int32_t partial_slot;
  std::int32_t slot;
  std::int32_t scale_page;
};

// `blocks`: device array of `count`.
void kv_quantize_pages(const KvBlock* blocks, int count, const KvCache& cache, StreamHandle stream);

// InputOps::kv_requantize: codes by the scales that the tokens' blocks have. `tokens`: device array
// of `count`.
void kv_requantize_tokens(const KvTokenCodes* tokens, std::int64_t count, const KvCache& cache,
                          StreamHandle stream);

}  // namespace triphase::cuda
