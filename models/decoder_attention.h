#pragma once

// Attention inside the decoder, layer by layer, for all rows of a step: puts their K and V into the
// cache, waits for KV that is on the host, lets the attention method choose, recomputes K and V
// that nobody stores, and attends on the device and on the host. Kept between steps; not thread
// safe. What it is given must outlive it.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/trace.h"
#include "kernels/ops.h"
#include "memory/kv/kv_store.h"
#include "memory/memory_pool.h"
#include "models/attention_runner.h"
#include "models/config/model_config.h"
#include "models/forward_batch.h"
#include "models/hidden_states.h"
#include "models/host_attention.h"
#include "models/kv_step.h"
#include "models/layer_ropes.h"
#include "models/weights/weights.h"

namespace triphase {

class DecoderAttention {
 public:
  // Of a step's rows in a layer, as products and norms leave them: [rows, q_width] or
  // [rows, kv_width].
  struct Heads {
    Matrix q, k, v;
  };

  DecoderAttention(const ModelConfig& config, const LayerRopes& ropes, Ops& ops, int threads,
                   const BatchLimits& limits, MemoryPool& pool);

  // Bytes that the constructor, set_method() and set_hidden_states() take.
  [[nodiscard]] static std::uint64_t scratch_bytes(const ModelConfig& config,
                                                   const BatchLimits& limits, int threads);

  // Decodes with this method from now on (default: dense); `limits.sparse` must be set. Sequences
  // must be announced then: begin_sequence() before their first row, with the length of their
  // prompt and the longest they can get, end_sequence() when their KV is gone.
  // `clusters`: of the sequences' fixed context, for squeezed alone.
  void set_method(const AttentionOptions& options, SparseOps& ops, MemoryPool& pool,
                  const ContextClusters* clusters = nullptr);
  // What of a prompt must be computed in one step (AttentionRunner::prompt_units).
  [[nodiscard]] PromptUnits prompt_units() const {
    return runner_ ? runner_->prompt_units() : PromptUnits{};
  }
  void begin_sequence(SequenceId sequence, std::int64_t prompt_tokens, std::int64_t longest);
  void end_sequence(SequenceId sequence);
  [[nodiscard]] AttentionRunner* runner() const { return runner_.get(); }  // null: dense

  // From now on K and V of every sequence's first `tokens` tokens come from their cached hidden
  // states (hidden_states.h); 0: as without. `limits.input_block_tokens` must be set.
  void set_hidden_states(std::int64_t tokens, InputOps& ops, MemoryPool& pool);
  [[nodiscard]] HiddenStates* hidden_states() const { return inputs_.get(); }  // null: none

  // Decoded rows of sequences on the host are attended there from now on (host_attention.h), at
  // most `rows` in a step; for stores with Shape::host_attention. `ops`: of the host, with as many
  // threads as the constructor was told.
  void set_host_attention(std::int64_t rows, Ops& ops, MemoryPool& host_pool);
  [[nodiscard]] const HostAttention* host_attention() const { return host_attention_.get(); }

  // Its resolver is set there.
  [[nodiscard]] KvStep& kv_step() { return kv_step_; }
  [[nodiscard]] const KvStep& kv_step() const { return kv_step_; }
  // Records what attend() does as spans of the compute lane; null: off.
  void set_trace(Trace* trace) { trace_ = trace; }

  // A step: begin(); announce(), where Ops::begin_step() wants it; begin_layers(); attend() and
  // projected() of each layer in order; finish(). `angles`: of the step's rows, by table of the
  // ropes. Spans and `kv` must stay until the step ends.
  void begin(KvStore& kv, std::span<const BatchSegment> rows, std::span<const ConstMatrix> angles,
             Stream& stream);
  // Says which arrays of the host attend() will take, with the heads and the result of a layer.
  void announce(const Heads& heads, Matrix attended, Stream& stream);
  // Chooses what is chosen before the queries exist, and brings what the first layers read.
  void begin_layers(Stream& stream);
  // The type of what attend() gives in this layer: what its output product reads, or F32.
  [[nodiscard]] DType attended_type(std::int64_t layer, const LayerWeights& w) const;
  // From the layer's finished heads to their attended values [rows, q_width]; rotates q and k.
  // Without `wanted` nobody reads those values, and no row is decoded: they may be left out.
  void attend(std::int64_t layer, const LayerWeights& w, const Heads& heads, Matrix attended,
              bool wanted, Stream& stream);
  // Called right behind the product that reads what attend() gave (AttentionRunner::projected).
  void projected();
  void finish();

 private:
  // Places of the first layer, and tables that serve all of them.
  void make_tables(Stream& stream);
  // Of one set of layers.
  void make_tables(std::int64_t set, const KvSlots& slots, std::span<const PageId> partial_pages,
                   Stream& stream);
  void announce_choices(const Heads& heads, Stream& stream);
  void announce_dense(const Heads& heads, Matrix attended, Stream& stream);
  // Of q . k; `sinks`: of the layer.
  [[nodiscard]] ScoreScale scale(const float* sinks = nullptr) const;
  // Rotates q and k, writes k and v; returns where this layer's KV lies.
  [[nodiscard]] KvLayerView append_kv(std::int64_t layer, const Heads& heads, Stream& stream);
  [[nodiscard]] KvStep::Group wait_for_kv(std::int64_t layer, std::int64_t group);
  // The attention method chooses for the group's rows, and what it chose is brought.
  [[nodiscard]] Selection choose(const AttentionRunner::Rows& rows, std::int64_t group,
                                 const KvStep::Group& part, const LayerWeights& w);
  // Projects K and V of what was brought as cached hidden states.
  void recompute(std::int64_t layer, const LayerWeights& w, std::span<const KvRecompute> blocks,
                 const RecomputedTokens& listed, const KvLayerView& cache, Stream& stream);

  const ModelConfig* config_;
  const LayerRopes* ropes_;
  Ops* ops_;
  int threads_;
  BatchLimits limits_;
  Buffer workspace_;
  std::vector<std::int64_t> windows_;  // by layer; 0 too where it hides nothing in this step
  KvStep kv_step_;
  std::unique_ptr<AttentionRunner> runner_;        // null: dense
  std::unique_ptr<HiddenStates> inputs_;           // null: K and V from the layer's own inputs
  std::unique_ptr<HostAttention> host_attention_;  // null: all rows are attended on the device
  Trace* trace_ = nullptr;

  // Of the step.
  KvStore* store_ = nullptr;
  std::span<const BatchSegment> rows_;
  bool decodes_ = false;  // one row of each sequence, under a method none of a prompt
  std::span<const ConstMatrix> angles_;
  std::vector<SegmentTables> tables_;   // where all of it lies on the device, by set of layers
  std::vector<PageId> partial_pages_;   // of one set
  std::optional<KvSlots> first_slots_;  // of layer 0, where the step was announced
};

}  // namespace triphase
