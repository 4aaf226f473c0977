#pragma once

// Clusters of the first tokens of any line for a tiny model: centroids and labels are random, since
// what is tested is that choices by them never depend on where KV lies.

#include <random>

#include "models/attention/attention_method.h"
#include "models/config/model_config.h"

namespace triphase {

// Scores of clusters are about 1 / tokens: as many lie above the threshold as below it. The context
// has five tokens more than are clustered. Two levels.
inline ContextClusters tiny_clusters(const ModelConfig& config, std::int64_t tokens) {
  constexpr std::int64_t kCount = 8;
  constexpr std::int64_t kGroups = 3;
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  ContextClusters clusters;
  clusters.clustered_tokens = tokens;
  clusters.context_tokens = tokens + 5;
  clusters.fine.count = kCount;
  clusters.fine.threshold = 1.0 / static_cast<double>(tokens);
  const std::int64_t rows = config.layers * config.kv_heads;
  clusters.fine.keys.assign(static_cast<std::size_t>(rows * kCount), 0.0F);
  for (std::int64_t i = 0; i < rows * kCount * config.head_dim; ++i) {
    clusters.fine.means.push_back(4.0F * normal(random));
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t token = 0; token < tokens; ++token) {
      const auto label = static_cast<std::int32_t>(random() % kCount);
      clusters.labels.push_back(label);
      clusters.fine.keys[static_cast<std::size_t>(row * kCount + label)] += 1.0F;
    }
  }
  clusters.coarse.count = kGroups;
  clusters.coarse.threshold = 0.8 / static_cast<double>(tokens);
  clusters.coarse.keys.assign(static_cast<std::size_t>(rows * kGroups), 0.0F);
  for (std::int64_t i = 0; i < rows * kGroups * config.head_dim; ++i) {
    clusters.coarse.means.push_back(4.0F * normal(random));
  }
  for (std::int64_t i = 0; i < rows * kCount; ++i) {
    const auto group = static_cast<std::int32_t>(random() % kGroups);
    clusters.parents.push_back(group);
    clusters.coarse.keys[static_cast<std::size_t>(i / kCount * kGroups + group)] +=
        clusters.fine.keys[static_cast<std::size_t>(i)];
  }
  return clusters;
}

}  // namespace triphase
