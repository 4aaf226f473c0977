#pragma once

// The tiny random model with everything a Scorer needs, for tests of scoring and of eval's tasks.

#include <memory>
#include <vector>

#include "runtime/engine/scorer.h"
#include "tests/support/tiny_model.h"

namespace triphase {

// The tiny model with room for logits of every row.
class ScoringRig {
 public:
  explicit ScoringRig(std::int64_t threads = 1, std::int64_t kv_blocks = 200,
                      std::int64_t batch = 4, std::int64_t chunk = 16)
      : config_(tiny_config()),
        options_{batch, chunk},
        backend_(Backend::open("cpu", threads)),
        pool_(backend_->device(), MemoryTier::kDevice, std::uint64_t{1} << 30),
        weights_(random_weights(config_, DType::kF16, 7, backend_->device(), {})),
        kv_({config_.layers, config_.kv_heads, config_.head_dim, 8, DType::kF16},
            kv_blocks * config_.layers, pool_),
        model_(config_, *weights_, backend_->ops(), backend_->threads().threads(),
               {batch + chunk, batch, batch + chunk, config_.max_positions}, pool_) {}

  [[nodiscard]] Scorer scorer() {
    return {options_, model_, kv_, backend_->threads(), backend_->stream()};
  }
  std::vector<ScoredTask> score(std::vector<ScoreTask> tasks) {
    return scorer().score_all(std::move(tasks));
  }
  const ModelConfig& config() const { return config_; }
  const Scorer::Options& options() const { return options_; }
  DecoderModel& model() { return model_; }
  KvStore& kv() { return kv_; }
  Backend& backend() { return *backend_; }

 private:
  ModelConfig config_;
  Scorer::Options options_;
  std::unique_ptr<Backend> backend_;
  MemoryPool pool_;
  std::unique_ptr<ModelWeights> weights_;
  KvStore kv_;
  DecoderModel model_;
};

}  // namespace triphase
