#pragma once

// K and V of tokens that only the device names, projected from cached hidden states (Phase III):
// the link fetches their INT8 codes, compute restores them, projects (gemm_rows.h) and stores K and
// V.
//
// Until then a token's codes lie where its K goes, byte after byte through its KV heads, and their
// scale in the first bytes of where its V goes. Lists and their counts are read when the kernels
// run: blocks beyond a count end at once.

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/stream_handle.h"
#include "kernels/kv_records.h"

namespace triphase::cuda {

// From mapped pinned host memory, at most `max_blocks` thread blocks at a time. `cache`: its types
// do not matter, a head of a token has head_dim bytes, a multiple of 4; a token's K has at least
// inputs.width.
void fetch_inputs(const SavedInputs& inputs, const RecomputedTokens& tokens, const KvCache& cache,
                  int max_blocks, StreamHandle stream);

// Rows of x [n, width] F32: the tokens from `first` on, as dequantize_inputs (input_codes.h) has
// them. Rows beyond the list stay as they are.
void restore_inputs(const RecomputedTokens& tokens, std::int64_t first, const KvCache& cache,
                    Matrix x, StreamHandle stream);

struct StoreRecomputed {
  RecomputedTokens tokens;
  std::int64_t first = 0;  // of the list; row i belongs to token first + i
  ConstMatrix k;           // [n, kv_heads * head_dim] F32
  ConstMatrix v;
  // [positions, rotary_dim] F32: Ops::rope's angles, by position; empty: keys are not rotated.
  ConstMatrix cos_sin;
  // INT8: the scales of the tokens' blocks stand; values are rounded to the partial pages' type
  // before they become codes, as those of a full block are.
  KvCache cache;
};
void store_recomputed(const StoreRecomputed& args, StreamHandle stream);

}  // namespace triphase::cuda
