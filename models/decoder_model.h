#pragma once

// The decoder: token ids to logits, for every supported family, over any Ops and KvStore. One
// forward call takes a ragged batch: any mix of prefill chunks and single decode tokens, laid end
// to end without padding. Holds the activation buffers, so that a call allocates nothing. Not
// thread safe; weights, ops and pool must outlive it.

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
#include "models/rope_rows.h"
#include "models/weight_stream.h"
#include "models/weights/weights.h"
#include "models/zigzag_block.h"

namespace triphase {

struct BatchLimits {
  std::int64_t rows = 0;  // T of one call
  std::int64_t segments = 0;
  std::int64_t logit_rows = 0;
  std::int64_t context = 0;  // longest context of a sequence
  bool sparse = false;       // a sparse attention method may be used
  // Tokens of a KV block where layer inputs may be used (set_hidden_states); 0: they are not.
  std::int64_t input_block_tokens = 0;
  // Leading tokens of which the device itself may find that they must be recomputed.
  std::int64_t listed_input_tokens = 0;
};

class DecoderModel {
 public:
  DecoderModel(const ModelConfig& config, const ModelWeights& weights, Ops& ops, int threads,
               const BatchLimits& limits, MemoryPool& pool, TransferEngine* transfers = nullptr);

  // Bytes of activations and workspace the constructor takes; for planning before loading.
  [[nodiscard]] static std::uint64_t scratch_bytes(const ModelConfig& config,
                                                   const BatchLimits& limits, int threads);

  // Decodes with this method from now on (default: dense); `limits.sparse` must be set. Sequences
  // must be announced then: begin_sequence() before their first row, with the length of their
  // prompt and the longest they can get, end_sequence() when their KV is gone.
  // `clusters`: of the sequences' fixed context, for squeezed alone; must outlive the model.
  void set_attention(const AttentionOptions& options, SparseOps& ops, MemoryPool& pool,
                     const ContextClusters* clusters = nullptr);
  // What of a prompt must be computed in one step (AttentionRunner::prompt_units).
  [[nodiscard]] PromptUnits prompt_units() const {
    return runner_ ? runner_->prompt_units() : PromptUnits{};
  }
  void begin_sequence(SequenceId sequence, std::int64_t prompt_tokens, std::int64_t longest);
  void end_sequence(SequenceId sequence);
  [[nodiscard]] AttentionRunner* attention() const { return runner_.get(); }  // null: dense

  // From now on K and V of every sequence's first `tokens` tokens come from their INT8 layer inputs
  // (hidden_states.h); 0: as without. `limits.input_block_tokens` must be set.
  void set_hidden_states(std::int64_t tokens, InputOps& ops, MemoryPool& pool);
  [[nodiscard]] const HiddenStates* hidden_states() const { return inputs_.get(); }

  // Decoded rows of sequences on the host are attended there from now on (host_attention.h), at
  // most `rows` in a step; for stores with Shape::host_attention. `ops`: of the host, with as many
  // threads as the constructor was told.
  void set_host_attention(std::int64_t rows, Ops& ops, MemoryPool& host_pool) {
    host_attention_ =
        std::make_unique<HostAttention>(config_, rows, limits_.context, threads_, ops, host_pool);
  }
  [[nodiscard]] const HostAttention* host_attention() const { return host_attention_.get(); }
  // Chosen tokens of KV on the host are looked up by it from now on; it must outlive the calls.
  void set_resolver(KvResolver* resolver) { kv_step_.set_resolver(resolver); }
  // Which sequences go through a layer's products together. Not with layer inputs.
  [[nodiscard]] ZigzagBlock& zigzag() { return zigzag_; }

  // Returns logits [logit_rows, vocab] F32, valid until the next call; writes the new tokens' KV.
  [[nodiscard]] ConstMatrix forward(const ForwardBatch& batch, KvStore& kv, Stream& stream);

  [[nodiscard]] std::uint64_t rope_key_for_prompt(std::int64_t prompt_tokens) const;
  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const KvStep& kv_step() const { return kv_step_; }
  [[nodiscard]] const WeightStream& weight_stream() const { return weight_stream_; }
  // Whether KV and weights on the host are brought ahead of the layer that reads them (default).
  void set_prefetch(bool prefetch) {
    kv_step_.set_prefetch(prefetch);
    weight_stream_.set_prefetch(prefetch);
  }
  // Records what forward() does as spans of the compute lane; null: off.
  void set_trace(Trace* trace) { trace_ = trace; }

 private:
  // Says which arrays of the host the step's operations will take: they go to the device as one.
  void announce(const ForwardBatch& batch, Stream& stream);
  void announce_choices(std::int64_t rows, Stream& stream);
  void announce_attention(std::int64_t rows, Stream& stream);
  // Places of the first layer, and tables that serve all of them.
  void make_tables(Stream& stream);
  // Of the step's rows, as products leave them.
  struct Heads {
    Matrix q, k, v;
  };
  [[nodiscard]] Heads heads_of(std::int64_t rows) const;
  [[nodiscard]] ScoreScale scale() const;  // of q . k
  void embed(const ForwardBatch& batch, Matrix x, Stream& stream);
  // The embedded tokens: x, or what x is projected from.
  Matrix embed_tokens(const ForwardBatch& batch, Stream& stream);
  void add_positions(const ForwardBatch& batch, Stream& stream);
  // What a layer does with some rows of x (and of the buffers beside it) before their attention,
  // which leaves their q, k and v; and from their attended values on.
  void before_attention(std::int64_t layer, const LayerWeights& w, ZigzagBlock::Rows rows,
                        Stream& stream);
  void after_attention(const LayerWeights& w, ZigzagBlock::Rows rows, Stream& stream);
  // `normed`, as x, is overwritten where a norm comes first.
  void project_qkv(std::int64_t layer, const LayerWeights& w, ConstMatrix x, Matrix normed,
                   Matrix qkv, Stream& stream);
  // From finished q, k, v of all rows in this layer to their attended values.
  void attend(std::int64_t layer, const LayerWeights& w, std::int64_t rows, Stream& stream);
  // Rotates q and k, writes k and v; returns where this layer's KV lies.
  [[nodiscard]] KvLayerView append_kv(std::int64_t layer, Matrix q, Matrix k, Matrix v,
                                      Stream& stream);
  [[nodiscard]] KvStep::Group wait_for_kv(std::int64_t layer, std::int64_t group);
  // The attention method chooses for the group's segments, and what it chose is brought.
  [[nodiscard]] Selection choose(std::int64_t layer, std::int64_t group, const KvStep::Group& part,
                                 const LayerWeights& w, ConstMatrix q, ConstMatrix v,
                                 const KvLayerView& cache, float scale, Stream& stream);
  // Projects K and V of what was brought as layer inputs.
  void recompute(std::int64_t layer, const LayerWeights& w, std::span<const KvRecompute> blocks,
                 const RecomputedTokens& listed, const KvLayerView& cache, Stream& stream);
  [[nodiscard]] ConstMatrix head(const ForwardBatch& batch, ConstMatrix x, Stream& stream);
  void fill_positions(const ForwardBatch& batch, Stream& stream);

  ModelConfig config_;
  const ModelWeights* weights_;
  Ops* ops_;
  BatchLimits limits_;
  LayerRopes ropes_;

  Buffer x_, normed_, embedded_, qkv_, attended_, up_, selected_, projected_, logits_;
  Buffer workspace_;
  std::vector<RopeRows> rope_rows_;      // by table of ropes_
  std::vector<ConstMatrix> angles_;      // of the step's rows
  std::vector<std::int32_t> positions_;  // of the step's rows, as the family numbers them
  std::vector<std::int64_t> windows_;    // by layer
  KvStep kv_step_;
  SegmentTables tables_;                     // of the step, where all of it lies on the device
  std::optional<KvSlots> first_slots_;       // of layer 0, where the step was announced
  std::unique_ptr<AttentionRunner> runner_;  // null: dense
  std::unique_ptr<HiddenStates> inputs_;     // null: K and V from the layer's own inputs
  std::unique_ptr<HostAttention> host_attention_;  // null: all rows are attended on the device
  ZigzagBlock zigzag_;
  int threads_ = 1;
  WeightStream weight_stream_;
  Trace* trace_ = nullptr;
};

}  // namespace triphase
