// Squeezed Attention, one and two levels: keys of the fixed context whose cluster scores at least
// the threshold, and everything after the clustered part. The tokens of a prompt choose together,
// by the mean of their scores (appendix D).

#include <vector>

#include "base/error.h"
#include "memory/memory_pool.h"
#include "models/attention/device_floats.h"
#include "models/attention/methods.h"

namespace triphase {
namespace {

class Squeezed final : public AttentionMethod {
 public:
  Squeezed(const AttentionOptions& options, const MethodShape& shape,
           const ContextClusters& clusters)
      : AttentionMethod(options, shape),
        clusters_(&clusters),
        threshold_(options.squeezed.threshold.value_or(clusters.fine.threshold)),
        coarse_threshold_(options.squeezed.coarse_threshold.value_or(clusters.coarse.threshold)) {
    TRIPHASE_CHECK(clusters.fine.count > 0, "squeezed: clusters");
    TRIPHASE_CHECK(rows() > shape.model_layer(shape.layers - 1) * shape.kv_heads,
                   "squeezed: clusters of every layer");
    check_level(clusters.fine);
    TRIPHASE_CHECK(std::ssize(clusters.labels) == rows() * clusters.clustered_tokens,
                   "squeezed: labels");
    if (!options.squeezed.two_levels) return;
    if (clusters.coarse.count == 0) {
      throw Error(ErrorRole::kUsage, "E-CLI-ATTOPTION", "squeezed.levels")
          .found("2")
          .expected("1: the clusters have one level");
    }
    check_level(clusters.coarse);
    TRIPHASE_CHECK(std::ssize(clusters.parents) == rows() * clusters.fine.count,
                   "squeezed: parents");
  }

  [[nodiscard]] Timing timing(std::int64_t) const override { return Timing::kLate; }
  [[nodiscard]] std::int64_t lists() const override { return shape_.kv_heads; }
  // Centroids stand for the keys.
  [[nodiscard]] std::int64_t first_key(const State&, const LayerCall& call) const override {
    return call.keys.context_tokens;
  }
  [[nodiscard]] bool chooses_without_keys() const override { return true; }

  [[nodiscard]] bool attends_all(std::int64_t, std::int64_t) const override { return false; }
  // Lists have room for the whole context: no token is left out for lack of room.
  [[nodiscard]] std::int64_t list_tokens(std::int64_t context, std::int64_t) const override {
    return context;
  }
  [[nodiscard]] Selection choose(const Sequences& sequences, const LayerCall& call,
                                 ConstMatrix q) override {
    return choose_with_prompts(sequences, {}, call, q);
  }
  [[nodiscard]] Selection choose_with_prompts(const Sequences& sequences,
                                              std::span<const AttentionSegment> units,
                                              const LayerCall& call, ConstMatrix q) override {
    if (counts_.size() == 0) {
      const ClusterCounts none;
      counts_ = {{&none, 1}, *call.memory, *call.stream};
      memory_ = call.memory;
    }
    rows_.assign(sequences.segments.begin(), sequences.segments.end());
    rows_.insert(rows_.end(), units.begin(), units.end());
    return call.ops->choose_by_clusters(q, shape_.heads, shape_.kv_heads, rows_,
                                        sequences.segments.size(), clusters_of(call),
                                        call.scale.factor, counts_.data(), *call.stream);
  }

  [[nodiscard]] bool counts_on_device() const override { return true; }
  [[nodiscard]] ClusterCounts counted(Stream& stream) const override {
    if (counts_.size() == 0) return {};
    const HostBuffer arrived(*memory_, sizeof(ClusterCounts));
    memory_->copy(arrived.data(), counts_.data(), sizeof(ClusterCounts), stream);
    stream.synchronize();
    return *arrived.as<ClusterCounts>();
  }
  [[nodiscard]] std::uint64_t state_bytes(std::int64_t, std::int64_t) const override {
    return sizeof(ClusterCounts);
  }

 private:
  // Clusters are of all layers of the model.
  [[nodiscard]] std::int64_t rows() const {
    return std::ssize(clusters_->fine.keys) / clusters_->fine.count;
  }
  // Of the layer's first KV head.
  [[nodiscard]] std::int64_t model_row(const LayerCall& call) const {
    return shape_.model_layer(call.layer) * shape_.kv_heads;
  }
  void check_level(const ContextClusters::Level& level) const {
    TRIPHASE_CHECK(level.count > 0 && std::ssize(level.keys) == rows() * level.count &&
                       std::ssize(level.means) == rows() * level.count * shape_.head_dim,
                   "squeezed: clusters");
  }
  // Clusters in the device's memory, brought there when they are first asked for; where work runs
  // at once they are there.
  template <class T>
  [[nodiscard]] static const T* there(const std::vector<T>& values, DeviceNumbers<T>& copy,
                                      const LayerCall& call) {
    if (call.ops->memory().runs_at_once()) return values.data();
    if (copy.size() == 0) copy = {values, call.ops->memory(), *call.stream};
    return copy.data();
  }
  struct OnDevice {
    DeviceFloats means;
    DeviceFloats keys;
    DeviceNumbers<std::int32_t> of;  // cluster of each token, or of each finer cluster
  };
  [[nodiscard]] Centroids centroids_of(const ContextClusters::Level& level, OnDevice& on_device,
                                       const LayerCall& call) const {
    const std::int64_t first = model_row(call) * level.count;
    return {there(level.means, on_device.means, call) + first * shape_.head_dim,
            there(level.keys, on_device.keys, call) + first, level.count, nullptr};
  }
  [[nodiscard]] KeyClusters clusters_of(const LayerCall& call) {
    const ContextClusters& all = *clusters_;
    const std::int64_t first = model_row(call);
    KeyClusters clusters;
    clusters.fine = centroids_of(all.fine, fine_, call);
    clusters.threshold = threshold_;
    clusters.labels = there(all.labels, fine_.of, call) + first * all.clustered_tokens;
    clusters.tokens = all.clustered_tokens;
    if (!options_.squeezed.two_levels) return clusters;
    clusters.coarse = centroids_of(all.coarse, coarse_, call);
    clusters.coarse_threshold = coarse_threshold_;
    clusters.parents = there(all.parents, coarse_.of, call) + first * all.fine.count;
    return clusters;
  }

  const ContextClusters* clusters_;
  double threshold_;
  double coarse_threshold_;
  OnDevice fine_;
  OnDevice coarse_;
  Device* memory_ = nullptr;  // of counts_
  DeviceNumbers<ClusterCounts> counts_;
  std::vector<AttentionSegment> rows_;  // of one choice, kept to reuse its memory
};

}  // namespace

std::unique_ptr<AttentionMethod> make_squeezed(const AttentionOptions& options,
                                               const MethodShape& shape,
                                               const ContextClusters* clusters) {
  if (clusters == nullptr) {
    throw Error(ErrorRole::kUsage, "E-CLI-ATTOPTION", "--attention")
        .found("squeezed")
        .expected("a fixed context with clusters");
  }
  return std::make_unique<Squeezed>(options, shape, *clusters);
}

}  // namespace triphase
