#pragma once

// Kept tokens and their sums of weights (kernels/kept_tokens.h) on a GPU: H2O's lists. All
// pointers, those in rows too, are device memory. A block owns a list, so that nothing is added
// atomically and tokens that leave need no second memory.

#include <cstdint>

#include "kernels/cuda/listed_scores.h"
#include "kernels/cuda/stream_handle.h"
#include "kernels/kept_tokens.h"

namespace triphase::cuda {

// Takes `count` views with `lists` lists each.
void keep_all(const KeptTokens* kept, std::int64_t count, std::int64_t lists, std::int64_t tokens,
              StreamHandle stream);

// tokens [layer][row][list][capacity], counts [layer][row][list]: what stays in each of the first
// `layers` layers. capacity: at least tokens_left() of every row.
void keep_heaviest(const KeptRow* rows, std::int64_t count, std::int64_t lists, std::int64_t layers,
                   std::int32_t* tokens, std::int64_t capacity, std::int32_t* counts,
                   StreamHandle stream);

// The weights of lists [attended row][list]. most_tokens: the largest row.count. beside:
// Launch::beside.
void add_kept_weights(const KeptWeights* rows, std::int64_t count, std::int64_t lists,
                      const ListedScores& scores, std::int64_t most_tokens, std::int64_t layer,
                      bool beside, StreamHandle stream);

}  // namespace triphase::cuda
