// Squeezed Attention, one and two levels: keys of the fixed context whose cluster scores at least
// the threshold, and everything after the clustered part. The tokens of a prompt choose together,
// by the mean of their scores (appendix D).

#include <algorithm>

#include "base/error.h"
#include "kernels/token_choice.h"
#include "models/attention/device_floats.h"
#include "models/attention/methods.h"
#include "models/attention/surviving_clusters.h"

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
    check_level(clusters.fine);
    TRIPHASE_CHECK(
        static_cast<std::int64_t>(clusters.labels.size()) == rows() * clusters.clustered_tokens,
        "squeezed: labels");
    if (!options.squeezed.two_levels) return;
    if (clusters.coarse.count == 0) {
      throw Error(ErrorRole::kUsage, "E-CLI-ATTOPTION", "squeezed.levels")
          .found("2")
          .expected("1: the clusters have one level");
    }
    check_level(clusters.coarse);
    TRIPHASE_CHECK(
        static_cast<std::int64_t>(clusters.parents.size()) == rows() * clusters.fine.count,
        "squeezed: parents");
  }

  [[nodiscard]] Timing timing(std::int64_t) const override { return Timing::kLate; }
  [[nodiscard]] std::int64_t lists() const override { return shape_.kv_heads; }
  // Centroids stand for the keys.
  [[nodiscard]] std::int64_t first_key(const State&, const LayerCall& call) const override {
    return call.keys.context_tokens;
  }
  [[nodiscard]] bool chooses_without_keys() const override { return true; }

  void choose(State&, const LayerCall& call, ConstMatrix q, std::int64_t row,
              TokenChoice& choice) override {
    choose_for_prompt(call, q, row, 1, choice);
  }

  void choose_for_prompt(const LayerCall& call, ConstMatrix q, std::int64_t first_row,
                         std::int64_t rows, TokenChoice& choice) override {
    const std::int64_t context = call.keys.context_tokens;
    choice.clear();
    const ContextClusters& clusters = *clusters_;
    Centroids fine = centroids_of(clusters.fine, fine_, call);
    if (options_.squeezed.two_levels) {
      score(call, q, first_row, rows, centroids_of(clusters.coarse, coarse_, call), coarse_scores_);
      choice.centroids = lists() * clusters.coarse.count +
                         find_surviving_clusters(clusters, call.layer, shape_.kv_heads,
                                                 coarse_scores_, coarse_threshold_, alive_);
      fine.alive = alive_.data();
    } else {
      choice.centroids = lists() * fine.count;
    }
    score(call, q, first_row, rows, fine, scores_);
    const std::int64_t clustered = std::min(clusters.clustered_tokens, context - rows);
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      const std::int32_t* labels = clusters.labels.data() + (call.layer * shape_.kv_heads + head) *
                                                                clusters.clustered_tokens;
      for (std::int64_t t = 0; t < clustered; ++t) {
        const auto at = static_cast<std::size_t>(head * clusters.fine.count + labels[t]);
        if (fine.alive != nullptr && alive_[at] == 0) continue;
        if (static_cast<double>(scores_[at]) < threshold_) continue;
        choice.tokens.push_back(static_cast<std::int32_t>(t));
      }
      choose_range({clustered, context}, choice.tokens);
      choice.begins.push_back(static_cast<std::int32_t>(choice.tokens.size()));
    }
  }

 private:
  [[nodiscard]] std::int64_t rows() const { return shape_.layers * shape_.kv_heads; }
  void check_level(const ContextClusters::Level& level) const {
    TRIPHASE_CHECK(
        level.count > 0 && static_cast<std::int64_t>(level.keys.size()) == rows() * level.count &&
            static_cast<std::int64_t>(level.means.size()) == rows() * level.count * shape_.head_dim,
        "squeezed: clusters");
  }
  // A level's centroids in the device's memory, brought there when they are first asked for.
  struct OnDevice {
    DeviceFloats means;
    DeviceFloats keys;
  };
  [[nodiscard]] Centroids centroids_of(const ContextClusters::Level& level, OnDevice& on_device,
                                       const LayerCall& call) const {
    if (on_device.means.size() == 0) {
      on_device.means.assign(level.means, call.ops->memory(), *call.stream);
      on_device.keys.assign(level.keys, call.ops->memory(), *call.stream);
    }
    const std::int64_t first = call.layer * shape_.kv_heads * level.count;
    return {on_device.means.data() + first * shape_.head_dim, on_device.keys.data() + first,
            level.count, nullptr};
  }
  // The mean score of every centroid over the rows, summed in their order.
  void score(const LayerCall& call, ConstMatrix q, std::int64_t first_row, std::int64_t rows,
             const Centroids& centroids, std::vector<float>& to) {
    to.resize(static_cast<std::size_t>(lists() * centroids.count));
    sums_.assign(to.size(), 0.0);
    for (std::int64_t row = first_row; row < first_row + rows; ++row) {
      call.ops->score_centroids(q, row, shape_.heads, shape_.kv_heads, centroids, call.scale,
                                to.data(), *call.stream);
      for (std::size_t i = 0; i < to.size(); ++i) sums_[i] += static_cast<double>(to[i]);
    }
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i] = static_cast<float>(sums_[i] / static_cast<double>(rows));
    }
  }
  const ContextClusters* clusters_;
  double threshold_;
  double coarse_threshold_;
  OnDevice fine_;
  OnDevice coarse_;
  std::vector<float> scores_;
  std::vector<double> sums_;
  std::vector<float> coarse_scores_;
  std::vector<std::uint8_t> alive_;
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
