#include "runtime/context/calibration.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "kernels/alive_clusters.h"
#include "models/attention/device_floats.h"

namespace triphase {
namespace {

// Scores of one layer's clusters for its queries, one query at a time; means and queries are
// brought to the device's memory once.
class Lookup {
 public:
  Lookup(SparseOps& ops, Stream& stream, const MethodShape& shape, float scale,
         std::span<const std::vector<float>> queries)
      : ops_(ops), stream_(stream), shape_(shape), scale_(scale), queries_(queries.size()) {
    for (std::size_t layer = 0; layer < queries.size(); ++layer) {
      queries_[layer] = {queries[layer], ops.memory(), stream};
    }
  }

  // [kv_head][cluster]; `alive` as in Centroids.
  void score(const ContextClusters::Level& level, std::int64_t layer, std::int64_t query,
             const std::uint8_t* alive, std::vector<float>& scores) {
    const DeviceLevel& there = bring(level);
    const DeviceFloats& queries = queries_[layer];
    const std::int64_t width = shape_.heads * shape_.head_dim;
    const std::int64_t first = layer * shape_.kv_heads * level.count;
    scores.resize(static_cast<std::size_t>(shape_.kv_heads * level.count));
    ops_.score_centroids({queries.data(), DType::kF32, queries.size() / width, width, width}, query,
                         shape_.heads, shape_.kv_heads,
                         {there.means.data() + first * shape_.head_dim, there.keys.data() + first,
                          level.count, alive},
                         scale_, scores.data(), stream_);
  }

 private:
  struct DeviceLevel {
    const ContextClusters::Level* of = nullptr;
    DeviceFloats means;
    DeviceFloats keys;
  };
  const DeviceLevel& bring(const ContextClusters::Level& level) {
    DeviceLevel& place =
        levels_[0].of == nullptr || levels_[0].of == &level ? levels_[0] : levels_[1];
    if (place.of == nullptr) {
      place.of = &level;
      place.means = {level.means, ops_.memory(), stream_};
      place.keys = {level.keys, ops_.memory(), stream_};
    }
    return place;
  }

  SparseOps& ops_;
  Stream& stream_;
  MethodShape shape_;
  float scale_;
  std::vector<DeviceFloats> queries_;  // [layer]
  std::array<DeviceLevel, 2> levels_;  // fine and coarse, in the order of their first use
};

class Calibration {
 public:
  Calibration(SparseOps& ops, Stream& stream, const MethodShape& shape,
              const ClusterOptions& options, std::span<const std::vector<float>> queries,
              float scale, ContextClusters& clusters)
      : lookup_(ops, stream, shape, scale, queries),
        shape_(shape),
        options_(options),
        queries_(queries),
        clusters_(clusters),
        rows_(std::ssize(queries.front()) / (shape.heads * shape.head_dim)) {}

  CalibrationFacts run() {
    CalibrationFacts facts;
    facts.queries = rows_;
    const bool two = options_.levels == 2;
    if (two) {
      clusters_.coarse.threshold =
          threshold(clusters_.coarse, options_.coarse_quantile, /*pruned=*/false);
    }
    clusters_.fine.threshold =
        threshold(clusters_.fine, options_.quantile, two && options_.pruned_calibration);
    facts.kept_share = kept(/*pruned=*/false);
    if (two) {
      surviving_ = 0.0;
      facts.kept_share_levels2 = kept(/*pruned=*/true);
      const double lookups = static_cast<double>(queries_.size()) * static_cast<double>(rows_) *
                             static_cast<double>(shape_.kv_heads);
      facts.looked_up_share = (static_cast<double>(clusters_.coarse.count) + surviving_ / lookups) /
                              static_cast<double>(clusters_.clustered_tokens);
    }
    return facts;
  }

 private:
  // Marks the fine clusters of a layer that the query's coarse scores leave.
  const std::uint8_t* survivors(std::int64_t layer, std::int64_t query) {
    lookup_.score(clusters_.coarse, layer, query, nullptr, coarse_scores_);
    const auto fine = static_cast<std::size_t>(clusters_.fine.count);
    const auto coarse = static_cast<std::size_t>(clusters_.coarse.count);
    const auto heads = static_cast<std::size_t>(shape_.kv_heads);
    const auto parents = std::span<const std::int32_t>(clusters_.parents)
                             .subspan(static_cast<std::size_t>(layer) * heads * fine, heads * fine);
    alive_.resize(heads * fine);
    for (std::size_t head = 0; head < heads; ++head) {
      surviving_ += static_cast<double>(find_alive_clusters(
          std::span(coarse_scores_).subspan(head * coarse, coarse), clusters_.coarse.threshold,
          parents.subspan(head * fine, fine), std::span(alive_).subspan(head * fine, fine)));
    }
    return alive_.data();
  }

  double threshold(const ContextClusters::Level& level, double quantile, bool pruned) {
    std::vector<WeightedValue> values;
    const std::int64_t layer_clusters = shape_.kv_heads * level.count;
    std::vector<double> sums(static_cast<std::size_t>(layer_clusters));
    values.reserve(queries_.size() * sums.size());
    for (std::int64_t layer = 0; layer < std::ssize(queries_); ++layer) {
      std::fill(sums.begin(), sums.end(), 0.0);
      for (std::int64_t query = 0; query < rows_; ++query) {
        const std::uint8_t* alive = pruned ? survivors(layer, query) : nullptr;
        lookup_.score(level, layer, query, alive, scores_);
        for (std::int64_t i = 0; i < layer_clusters; ++i) sums[i] += scores_[i];
      }
      for (std::int64_t i = 0; i < layer_clusters; ++i) {
        values.push_back(
            {static_cast<float>(sums[i] / static_cast<double>(rows_)), keys_of(level, layer, i)});
      }
    }
    return weighted_quantile(values, quantile);
  }

  // Number of keys behind entry `i` of a layer's scores.
  [[nodiscard]] float keys_of(const ContextClusters::Level& level, std::int64_t layer,
                              std::int64_t i) const {
    return level.keys[layer * shape_.kv_heads * level.count + i];
  }

  // Share of the keys that lookups keep, over all queries.
  double kept(bool pruned) {
    double kept_keys = 0.0;
    double all_keys = 0.0;
    const std::int64_t layer_clusters = shape_.kv_heads * clusters_.fine.count;
    for (std::int64_t layer = 0; layer < std::ssize(queries_); ++layer) {
      for (std::int64_t query = 0; query < rows_; ++query) {
        const std::uint8_t* alive = pruned ? survivors(layer, query) : nullptr;
        lookup_.score(clusters_.fine, layer, query, alive, scores_);
        for (std::int64_t i = 0; i < layer_clusters; ++i) {
          const double keys = keys_of(clusters_.fine, layer, i);
          all_keys += keys;
          if (alive != nullptr && alive[i] == 0) continue;
          if (static_cast<double>(scores_[i]) >= clusters_.fine.threshold) kept_keys += keys;
        }
      }
    }
    return all_keys == 0.0 ? 1.0 : kept_keys / all_keys;
  }

  Lookup lookup_;
  MethodShape shape_;
  const ClusterOptions& options_;
  std::span<const std::vector<float>> queries_;
  ContextClusters& clusters_;
  std::int64_t rows_;
  std::vector<float> scores_;
  std::vector<float> coarse_scores_;
  std::vector<std::uint8_t> alive_;
  double surviving_ = 0.0;  // fine clusters that were left, over all lookups so far
};

}  // namespace

double weighted_quantile(std::vector<WeightedValue>& values, double share) {
  std::ranges::sort(values, {}, &WeightedValue::value);
  double count = 0.0;
  for (const WeightedValue& one : values) count += one.keys;
  if (count == 0.0) return 0.0;
  const double place = share * (count - 1.0);
  const double below = std::floor(place);
  // The values at the whole places `below` and the next one.
  double seen = 0.0;
  double low = 0.0;
  bool found = false;
  for (const WeightedValue& one : values) {
    seen += one.keys;
    if (!found && seen > below) {
      low = one.value;
      found = true;
    }
    if (found && (seen > below + 1.0 || seen >= count)) {
      return low + (place - below) * (static_cast<double>(one.value) - low);
    }
  }
  return low;
}

CalibrationFacts calibrate(SparseOps& ops, Stream& stream, const MethodShape& shape,
                           const ClusterOptions& options,
                           std::span<const std::vector<float>> queries, float scale,
                           ContextClusters& clusters) {
  TRIPHASE_CHECK(
      std::ssize(queries) == shape.layers && !queries.empty() && !queries.front().empty(),
      "calibration queries");
  return Calibration(ops, stream, shape, options, queries, scale, clusters).run();
}

}  // namespace triphase
