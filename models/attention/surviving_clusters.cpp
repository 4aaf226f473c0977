#include "models/attention/surviving_clusters.h"

namespace triphase {

std::int64_t find_surviving_clusters(const ContextClusters& clusters, std::int64_t layer,
                                     std::int64_t kv_heads, std::span<const float> coarse_scores,
                                     double threshold, std::vector<std::uint8_t>& alive) {
  const std::int64_t count = clusters.fine.count;
  alive.resize(static_cast<std::size_t>(kv_heads * count));
  std::int64_t survivors = 0;
  for (std::int64_t head = 0; head < kv_heads; ++head) {
    const std::int32_t* parents = clusters.parents.data() + (layer * kv_heads + head) * count;
    const float* scores = coarse_scores.data() + head * clusters.coarse.count;
    for (std::int64_t i = 0; i < count; ++i) {
      const bool survives = static_cast<double>(scores[parents[i]]) >= threshold;
      alive[static_cast<std::size_t>(head * count + i)] = survives ? 1 : 0;
      survivors += survives ? 1 : 0;
    }
  }
  return survivors;
}

}  // namespace triphase
