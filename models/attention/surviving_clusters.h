#pragma once

// Squeezed Attention's two levels: which fine clusters a query looks up. The same rule when
// thresholds are calibrated and when a job decodes by them.

#include <cstdint>
#include <span>
#include <vector>

#include "models/attention/attention_method.h"

namespace triphase {

// alive [kv_head][fine cluster] of a layer: 1 where the coarse cluster that it belongs to scores at
// least `threshold`. coarse_scores [kv_head][coarse cluster]. Returns how many are alive.
std::int64_t find_surviving_clusters(const ContextClusters& clusters, std::int64_t layer,
                                     std::int64_t kv_heads, std::span<const float> coarse_scores,
                                     double threshold, std::vector<std::uint8_t>& alive);

}  // namespace triphase
