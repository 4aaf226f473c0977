#include "models/attention/surviving_clusters.h"

namespace triphase {

std::int64_t find_surviving_clusters(const ContextClusters& clusters, std::int64_t layer,
                                     std::int64_t kv_heads, std::span<const float> coarse_scores,
                                     double threshold, std::vector<std::uint8_t>& alive) {
  const std::int64_t count = clusters.fine.count;
  const std::span<const std::int32_t> parents =
      std::span(clusters.parents).subspan(static_cast<std::size_t>(layer * kv_heads * count));
  alive.resize(static_cast<std::size_t>(kv_heads * count));
  std::int64_t survivors = 0;
  for (std::int64_t i = 0; i < kv_heads * count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const float score =
        coarse_scores[static_cast<std::size_t>(i / count * clusters.coarse.count + parents[at])];
    alive[at] = static_cast<double>(score) >= threshold ? 1 : 0;
    survivors += alive[at];
  }
  return survivors;
}

}  // namespace triphase
