#pragma once

// Bytes of KV cache and method state that one decode step reads in one layer of one sequence, for
// every method. Scales of INT8 blocks are left out. Pure.

#include <cstdint>

#include "scheduler/attention/attention_options.h"

namespace triphase {

struct AttendedShape {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t element_bytes = 2;
  std::int64_t centroids = 0;  // squeezed: looked up, all KV heads together
  double dense_share = 0.0;    // of the layers: those that attend everything
};

// `attended`: tokens really attended per KV head (at most budget_tokens);
// `context` includes the current token.
[[nodiscard]] std::uint64_t attended_bytes(const AttentionOptions& options,
                                           const AttendedShape& shape, std::int64_t context,
                                           std::int64_t attended);

// Sets the method's budget so that a decode step in a long context reads a share `compression` in
// (0, 1] of dense attention's bytes. SparQ spends half of its bytes on scores and half on chosen
// tokens: rank = head_dim * compression, k = context * compression / 2. Where half is fewer than 16
// channels, scores take up to 13/16: fewer channels do not tell keys apart (docs/accuracy.md).
// Layers that attend everything leave the others less.
// Throws E-CLI-ATTOPTION where the method always reads more (topk every key, quest its bounds and
// dense layers, strided its stride in a context of `longest` tokens; 0: of any length), and for
// squeezed.
void set_compression(AttentionOptions& options, const AttendedShape& shape, double compression,
                     std::int64_t longest = 0);

}  // namespace triphase
