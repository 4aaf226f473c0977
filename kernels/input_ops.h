#pragma once

// SEAM 2b: quantization of hidden states X, from which K and V are projected again (Phase III). A
// row is one token of one layer: x = scale * code with scale = max |x| / 127 and code =
// round(x / scale), ties to even, F32 arithmetic; a row of zeros has scale 0. Error at most
// scale / 2 plus F32 rounding. A row that holds NaN or infinity reads as NaN throughout. Every
// implementation gives the same bits, so that what is stored and what is computed at once agree.

#include <cstdint>
#include <span>

#include "kernels/kv_records.h"
#include "kernels/ops.h"

namespace triphase {

inline constexpr float kLargestInputCode = 127.0F;

// A token that lies unquantized in a partial page, where its codes go (a slot, page * page_tokens +
// offset), and its block's scales.
struct KvRequantize {
  PageId partial_page;
  std::int32_t partial_offset = 0;
  std::int32_t slot = 0;
  PageId scale_page;
};

class InputOps {
 public:
  InputOps() = default;
  InputOps(const InputOps&) = delete;
  InputOps& operator=(const InputOps&) = delete;
  virtual ~InputOps() = default;

  // x [T, C] F32; codes [T][C] and scales [T] without gaps.
  virtual void quantize(ConstMatrix x, std::int8_t* codes, float* scales, Stream& stream) = 0;
  // The reverse, into x [T, C] F32.
  virtual void dequantize(const std::int8_t* codes, const float* scales, Matrix x,
                          Stream& stream) = 0;

  // INT8 caches: codes of single tokens of blocks that were quantized before, by the scales that
  // Ops::quantize_blocks gave their blocks: the same numbers get the same codes. (But for channels
  // whose values differ by less than 255 subnormal steps.)
  virtual void kv_requantize(std::span<const KvRequantize> tokens, const KvLayerView& cache,
                             Stream& stream) = 0;

  // Of tokens that the device names, whose codes and scales lie where KvMover::bring_inputs() left
  // them. Row i is of token first + i of the list; rows beyond the list stay as they are.

  // Into x [n, C] F32, as dequantize() does.
  virtual void restore(const RecomputedTokens& tokens, std::int64_t first, const KvLayerView& cache,
                       Matrix x, Stream& stream) = 0;
  // K and V [n, kv_heads * head_dim] F32 into the tokens' slots, as rope_and_append() does with
  // keys, and kv_requantize() where the cache is INT8. cos_sin: a row of angles for each position;
  // empty: keys are not rotated. k is overwritten or not.
  virtual void store(const RecomputedTokens& tokens, std::int64_t first, Matrix k, ConstMatrix v,
                     ConstMatrix cos_sin, const KvLayerView& cache, Stream& stream) = 0;
};

}  // namespace triphase
