#pragma once

// The decoder: token ids to logits, for every supported family, over any Ops and KvStore. One
// forward call takes a ragged batch: any mix of prefill chunks and single decode tokens, laid end
// to end without padding. Holds the activation buffers, so that a call allocates nothing. Not
// thread safe; weights, ops and pool must outlive it.

#include <cstdint>
#include <vector>

#include "base/trace.h"
#include "kernels/ops.h"
#include "memory/kv/kv_store.h"
#include "memory/memory_pool.h"
#include "models/config/model_config.h"
#include "models/decoder_attention.h"
#include "models/forward_batch.h"
#include "models/layer_ropes.h"
#include "models/rope_rows.h"
#include "models/weight_stream.h"
#include "models/weights/weights.h"
#include "models/zigzag_block.h"

namespace triphase {

class DecoderModel {
 public:
  DecoderModel(const ModelConfig& config, const ModelWeights& weights, Ops& ops, int threads,
               const BatchLimits& limits, MemoryPool& pool, TransferEngine* transfers = nullptr);

  // Bytes of activations and workspace the constructor takes; for planning before loading.
  [[nodiscard]] static std::uint64_t scratch_bytes(const ModelConfig& config,
                                                   const BatchLimits& limits, int threads);

  // How rows are attended: the method, cached hidden states, rows that are attended on the host.
  [[nodiscard]] DecoderAttention& attention() { return attention_; }
  [[nodiscard]] const DecoderAttention& attention() const { return attention_; }
  // Which sequences go through a layer's products together. Not with cached hidden states.
  [[nodiscard]] ZigzagBlock& zigzag() { return zigzag_; }

  // Returns logits [logit_rows, vocab] F32, valid until the next call; writes the new tokens' KV.
  [[nodiscard]] ConstMatrix forward(const ForwardBatch& batch, KvStore& kv, Stream& stream);

  [[nodiscard]] std::uint64_t rope_key_for_prompt(std::int64_t prompt_tokens) const;
  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const WeightStream& weight_stream() const { return weight_stream_; }
  // Whether KV and weights on the host are brought ahead of the layer that reads them (default).
  void set_prefetch(bool prefetch) {
    attention_.kv_step().set_prefetch(prefetch);
    weight_stream_.set_prefetch(prefetch);
  }
  // Records what forward() does as spans of the compute lane; null: off.
  void set_trace(Trace* trace) {
    trace_ = trace;
    attention_.set_trace(trace);
  }

 private:
  // Says which arrays of the host the step's operations will take: they go to the device as one.
  void announce(const ForwardBatch& batch, Stream& stream);
  [[nodiscard]] DecoderAttention::Heads heads_of(std::int64_t rows) const;
  void embed(const ForwardBatch& batch, Matrix x, Stream& stream);
  // The embedded tokens: x, or what x is projected from.
  Matrix embed_tokens(const ForwardBatch& batch, Stream& stream);
  void add_positions(const ForwardBatch& batch, Stream& stream);
  // Whether some rows' logits are not wanted: of those the last layer makes K and V alone.
  [[nodiscard]] static bool narrows(const ForwardBatch& batch);
  // Returns what the next layer reads: x, or of the last layer of such a batch the wanted rows.
  [[nodiscard]] Matrix run_layer(std::int64_t layer, const LayerWeights& w,
                                 const ForwardBatch& batch, Matrix x, Stream& stream);
  // What a layer does with some rows of x (and of the buffers beside it) before their attention,
  // which leaves their q, k and v; and from what they attended on, whose sum is added to `x`.
  void project_heads(std::int64_t layer, const LayerWeights& w, ZigzagBlock::Rows rows,
                     Stream& stream);
  void add_parallel_mlp(const LayerWeights& w, ZigzagBlock::Rows rows, Matrix x, Stream& stream);
  void after_attention(const LayerWeights& w, ZigzagBlock::Rows rows, Matrix attended, Matrix x,
                       Stream& stream);
  // x += mlp(x), with the norms of what it reads and gives; `normed` and up_ are overwritten.
  void add_mlp(const LayerWeights& w, Matrix normed, ZigzagBlock::Rows rows, Matrix x,
               Stream& stream);
  void add_experts(const LayerWeights& w, Matrix normed, Matrix x, Stream& stream);
  // `normed`, as x, is overwritten where a norm comes first.
  void project_qkv(std::int64_t layer, const LayerWeights& w, ConstMatrix x, Matrix normed,
                   Matrix qkv, Stream& stream);
  [[nodiscard]] ConstMatrix head(const ForwardBatch& batch, ConstMatrix x, Stream& stream);
  void fill_positions(const ForwardBatch& batch, Stream& stream);

  ModelConfig config_;
  const ModelWeights* weights_;
  Ops* ops_;
  BatchLimits limits_;
  LayerRopes ropes_;

  Buffer x_, normed_, embedded_, qkv_, attended_, up_, experts_, selected_, projected_, logits_;
  std::vector<RopeRows> rope_rows_;      // by table of ropes_
  std::vector<ConstMatrix> angles_;      // of the step's rows
  std::vector<std::int32_t> positions_;  // of the step's rows, as the family numbers them
  DecoderAttention attention_;  // goes before the buffers that its copies may still write to
  ZigzagBlock zigzag_;
  WeightStream weight_stream_;
  Trace* trace_ = nullptr;
};

}  // namespace triphase
