#pragma once

// The work of a model that a profile times: real steps of the decoder over a KV cache whose content
// is of no importance, the projections behind recomputation, and the quantizing full blocks. Axes
// as in scheduler/cost/hardware_profile.h.

#include <memory>
#include <optional>
#include <vector>

#include "memory/kv/kv_store.h"
#include "memory/memory_pool.h"
#include "models/attention/attention_method.h"
#include "models/decoder_model.h"
#include "models/rope_rows.h"
#include "runtime/engine/sampler.h"
#include "runtime/engine/workplace.h"
#include "runtime/profile/grid_measurement.h"

namespace triphase {

struct ModelRigLimits {
  std::int64_t layers = 0;   // whose weights are on the device: those of all others, too
  std::int64_t batch = 0;    // most sequences of one decode step
  std::int64_t rows = 0;     // most rows of one step
  std::int64_t context = 0;  // tokens of the longest sequence
  std::int64_t tokens = 0;   // of KV on the device, all sequences together
  friend bool operator==(const ModelRigLimits&, const ModelRigLimits&) = default;
};

// As few layers as have one of each kind.
[[nodiscard]] std::int64_t fewest_layers(const ModelConfig& config);

// The cache of a rig with such limits.
[[nodiscard]] KvShape rig_kv_shape(const ModelConfig& config, const AttentionOptions& attention,
                                   DType dtype, DType partial_dtype);
[[nodiscard]] KvSizes rig_kv_sizes(const KvShape& shape, const ModelRigLimits& limits);

// Of the decoder of a sparse method.
[[nodiscard]] BatchLimits method_limits(const ModelRigLimits& limits);

// Bytes that make ordinary, harmless numbers in every type: a cache of zeros or of remains would be
// read at other speeds where the hardware treats denormals or untouched pages differently.
inline constexpr std::byte kOrdinary{0x2C};
void fill_ordinary(Backend& backend, std::byte* data, std::size_t bytes);

// A model in the device's memory with one KV cache at a time. Where it does not fit, some layers'
// weights are also those of the others: products take as long. Every layer attends whole contexts:
// times are by tokens that are attended, and whoever asks for them knows of sliding windows.
class ModelRig {
 public:
  ModelRig(const RunOptions& options, const ModelRigLimits& limits, const Workplace& place);

  // Decode steps of this method from now on, at most `limits().batch` rows in a step; dense: any
  // step. use_kv() must follow.
  void use_method(const AttentionOptions& attention);
  // Gives the old cache's memory back first. kInt8: INT8.
  void use_kv(DType dtype);
  void drop_kv() { kv_.reset(); }

  [[nodiscard]] const ModelConfig& config() const { return decoder_.config(); }
  [[nodiscard]] const ModelRigLimits& limits() const { return limits_; }
  [[nodiscard]] const ModelWeights& weights() const { return *weights_; }
  [[nodiscard]] KvStore& kv() { return *kv_; }
  [[nodiscard]] Backend& backend() { return backend_; }
  [[nodiscard]] MemoryPool& pool() { return pool_; }

  // A new sequence with places for so many tokens, of which none is computed. It may grow by
  // `growth` tokens more.
  [[nodiscard]] SequenceId start_sequence(std::int64_t tokens, std::int64_t growth = 0);
  void end_sequences();
  [[nodiscard]] bool chooses() const { return sparse_.has_value(); }
  // The method is to take the sequence for a prompt of so many tokens, whose last row must be
  // computed then: statistics of attention get that row alone, for the others cost as much as so
  // many dense steps, and what a step costs does not depend on them.
  void start_prompt(SequenceId sequence, std::int64_t tokens, std::int64_t growth);
  // The rows of one step; `sample` also chooses a token for every logit row, as the engine does.
  void step(std::span<const BatchSegment> segments, std::span<const std::int32_t> logit_rows,
            bool sample);

 private:
  void fill_kv();
  // Tells the method of rows before a prompt's last one.
  void append_values(AttentionMethod::State& state, std::int64_t rows);

  ModelRigLimits limits_;
  const ModelConfig config_;
  Backend& backend_;
  DType compute_dtype_;
  MemoryPool pool_;
  PoolDevice weight_memory_;
  std::unique_ptr<ModelWeights> weights_;
  DecoderModel decoder_;
  PoolDevice method_memory_;
  AttentionOptions attention_;               // dense: as decoder_
  std::unique_ptr<AttentionMethod> method_;  // makes states
  std::optional<DecoderModel> sparse_;       // decodes under the method
  Buffer values_;                            // V of a prompt's rows
  std::optional<KvStore> kv_;
  std::vector<SequenceId> sequences_;
  std::vector<TokenId> tokens_;
  std::vector<SampleRow> sample_rows_;
  Sampler sampler_;
};

// One decode step of `x` sequences that attend `y` tokens together, sampling included; under a
// method `y` tokens are there together, of which the method attends some. Dense steps compute the
// same position again and again. A method's state goes on from step to step, so the contexts grow
// there by a few tokens before the sequences start over.
class DecodeWork final : public GridWork {
 public:
  // Tokens by which a context grows.
  static constexpr std::int64_t kGrowth = 32;

  explicit DecodeWork(ModelRig& rig) : rig_(rig), growth_(rig.chooses() ? kGrowth : 0) {}
  [[nodiscard]] bool possible(double x, double y) const override;
  void begin(double x, double y) override;
  void before_run() override;
  void run() override { rig_.step(segments_, logit_rows_, /*sample=*/true); }
  void end() override { rig_.end_sequences(); }

 private:
  // Tokens of each sequence, the new one included.
  [[nodiscard]] std::int64_t context(double x, double y) const;
  void start(std::int64_t batch, std::int64_t tokens);

  ModelRig& rig_;
  std::int64_t growth_;
  std::vector<BatchSegment> segments_;
  std::vector<std::int32_t> logit_rows_;
  std::int64_t start_tokens_ = 0;  // of each sequence
  std::int64_t grown_ = 0;         // tokens since then
};

// `x` rows of prompts with `y` tokens before them. A prompt longer than the model's context becomes
// several prompts.
class PrefillWork final : public GridWork {
 public:
  explicit PrefillWork(ModelRig& rig) : rig_(rig) {}
  void begin(double x, double y) override;
  void run() override { rig_.step(segments_, logit_rows_, /*sample=*/false); }
  void end() override { rig_.end_sequences(); }

 private:
  ModelRig& rig_;
  std::vector<BatchSegment> segments_;
  std::vector<std::int32_t> logit_rows_;
};

// K and V of `y` tokens of each of `x` sequences from their INT8 hidden states, all layers:
// reading these, the rows of W_K and W_V, rotation, and writing into the cache.
class RecomputeWork final : public GridWork {
 public:
  explicit RecomputeWork(ModelRig& rig);
  void begin(double x, double y) override;
  void run() override;

 private:
  void project(std::int64_t rows);

  ModelRig& rig_;
  std::optional<RopeTable> rope_;
  std::optional<RopeRows> rope_rows_;
  Buffer codes_, scales_, input_, kv_;
  std::vector<PageId> pages_;
  std::vector<std::int32_t> offsets_;
  std::int64_t rows_ = 0;
};

// Closing INT8 blocks of `x` tokens together, all layers; `x` a multiple of the block length.
class QuantizeWork final : public GridWork {
 public:
  explicit QuantizeWork(ModelRig& rig) : rig_(rig) {}
  void begin(double x, double y) override;
  void run() override;

 private:
  ModelRig& rig_;
  std::vector<std::vector<FullBlock>> full_blocks_;  // by layer
};

}  // namespace triphase
