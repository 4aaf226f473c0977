#pragma once

// Decode attention over chosen tokens: the kernel behind every method (dense, local, strided,
// lm-infinite and all sparse ones). One query token per sequence; a row's query heads share every
// key and value that is read.
//
// Work is divided by a SplitPlan: one warp per part, no block barriers. A warp streams tiles of
// tokens through a ring of three stages in shared memory, 16 bytes per copy (gather_walk.h), and
// computes on tensor cores (gather_tiles.h). Results are partial states, which merge_states merges
// into the output.
//
// The partial block of an INT8 cache is a second launch over the partial pages.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/plan_splits.h"
#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

enum class TokenSource : std::uint8_t {
  kAll,   // tokens 0 .. length - 1, or those of a window
  kList,  // ascending token positions per row or per sequence
};

struct GatherAttnArgs {
  const float* q = nullptr;  // [sequences][heads][head_dim], rows q_stride elements apart
  std::int64_t q_stride = 0;
  int sequences = 0;
  int heads = 0;
  float scale = 0.0F;
  // Above 0: a score x becomes cap * tanh(x * inverse_cap), in units of log2; not of lists.
  float cap = 0.0F;
  float inverse_cap = 0.0F;
  KvCache cache;  // head_dim a multiple of 8
  KvPageTables tables;
  const std::int32_t* lengths = nullptr;  // [sequences], the current token included

  TokenSource source = TokenSource::kAll;
  // Of kAll, > 0: the last so many tokens alone. Pages in front of them are not even looked up.
  int window = 0;
  // Lists: list_rows is sequences (one list for all heads) or the plan's rows.
  int list_rows = 0;
  int list_capacity = 0;
  const std::int32_t* tokens = nullptr;       // [list_rows][list_capacity]
  const std::int32_t* list_counts = nullptr;  // [list_rows]
  // Optional, beside tokens: the slot of each token (those of an INT8 cache's partial block are
  // where the tables say). Without it the page tables say.
  const std::int32_t* slots = nullptr;

  // The plan's counts must be the numbers of tokens above, per row, and its window the same.
  SplitPlan plan;

  // Results: states[result][query head of the row][head_dim] and (max, sum) [result][query head] in
  // units of log2; unnormalized output. Result numbers: plan parts first (part + row), then, INT8
  // only, one per row for the partial block. Sizes: gather_states_layout() of kernels/sizing.
  float* states = nullptr;
  float* max_sum = nullptr;

  // Optional, of lists: scale * q.k of each token in units of log2, [row][query head]
  // [list_capacity].
  float* scores = nullptr;
};

void gather_attn(const GatherAttnArgs& args, StreamHandle stream);

// Tokens per unit of a plan for this kernel: whole tiles for every type and head size.
inline constexpr int kGatherUnitTokens = 32;

}  // namespace triphase::cuda
