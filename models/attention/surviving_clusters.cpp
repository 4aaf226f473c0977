#include "models/attention/surviving_clusters.h"

namespace triphase {

std::int64_t find_surviving_clusters(const ContextClusters& clusters, std::int64_t layer,
                                     std::int64_t kv_heads, std::span<const float> coarse_scores,
                                     double threshold, std::vector<std::uint8_t>& alive) {
  const std::int64_t count = clusters.fine.count;
  const std::int64_t lists =
      static_cast<std::int64_t>(coarse_scores.size()) / clusters.coarse.count;
  alive.resize(static_cast<std::size_t>(lists * count));
  std::int64_t survivors = 0;
  for (std::int64_t list = 0; list < lists; ++list) {
    const std::int64_t row = layer * kv_heads + list / (lists / kv_heads);
    const std::int32_t* parents = clusters.parents.data() + row * count;
    const float* scores = coarse_scores.data() + list * clusters.coarse.count;
    for (std::int64_t i = 0; i < count; ++i) {
      const bool survives = static_cast<double>(scores[parents[i]]) >= threshold;
      alive[static_cast<std::size_t>(list * count + i)] = survives ? 1 : 0;
      survivors += survives ? 1 : 0;
    }
  }
  return survivors;
}

}  // namespace triphase
