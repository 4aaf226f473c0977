#pragma once

// Thresholds of a fixed context's clusters, and what they keep: the context's own last tokens stand
// for the queries to come (Squeezed Attention, section 4.2).

#include <span>
#include <vector>

#include "kernels/sparse_ops.h"
#include "runtime/context/fixed_context.h"

namespace triphase {

// A value that so many keys have.
struct WeightedValue {
  float value = 0.0F;
  float keys = 0.0F;
};

// The quantile `share` in [0, 1] of the values, each as often as it has keys, linear between
// neighbours (as numpy.quantile). Sorts `values`. 0 where there are no keys.
[[nodiscard]] double weighted_quantile(std::vector<WeightedValue>& values, double share);

// One threshold per level for all layers and heads: the quantile, over every (layer, KV head, key),
// of the key's cluster's score, mean over the queries; a KV head's score is the mean over its query
// heads, as in decoding.
// Fills the levels' thresholds and returns what they keep of the queries' lookups. `queries`: by
// layer, [query][heads * head_dim] F32, after RoPE; `scale` of q . k.
[[nodiscard]] CalibrationFacts calibrate(SparseOps& ops, Stream& stream, const MethodShape& shape,
                                         const ClusterOptions& options,
                                         std::span<const std::vector<float>> queries, float scale,
                                         ContextClusters& clusters);

}  // namespace triphase
