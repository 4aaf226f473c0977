#pragma once

// K and V from cached hidden states (Phase III). A layer's hidden state X is the row that a token's
// K and V are projected from: after the norm, where a norm comes before attention. X is kept in
// INT8. K and V of every sequence's first `tokens` tokens are projected from the quantized X.
// Prefill, decode and recompute do so alike, so stored and recomputed KV are the same numbers.
// Saves X of blocks that have an input block. Projects a recomputable block again: all of it, or
// the tokens that the device needs. Not thread safe; ops and pool must outlive it.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/input_ops.h"
#include "kernels/ops.h"
#include "memory/kv/host_reads.h"
#include "memory/kv/kv_store.h"
#include "memory/memory_pool.h"
#include "models/config/model_config.h"
#include "models/forward_batch.h"
#include "models/layer_ropes.h"
#include "models/rope_rows.h"
#include "models/weights/weights.h"

namespace triphase {

class HiddenStates {
 public:
  // `rows`: of one forward call, and the tokens of a block at least. `on_device`: the device will
  // list tokens.
  HiddenStates(const ModelConfig& config, std::int64_t tokens, std::int64_t rows, bool on_device,
               Ops& ops, InputOps& input_ops, const LayerRopes& ropes, MemoryPool& pool);
  // Waits for what is on its way.
  ~HiddenStates();
  HiddenStates(const HiddenStates&) = delete;
  HiddenStates& operator=(const HiddenStates&) = delete;

  // Bytes that the constructor takes; `listed`: the tokens that the device may list, 0 for none.
  [[nodiscard]] static std::uint64_t scratch_bytes(const ModelConfig& config, std::int64_t rows,
                                                   std::int64_t listed);

  // A step begins. When this returns, the host has what the step before the last one saved. `rows`
  // must stay.
  void begin(KvStore& store, std::span<const BatchSegment> rows);

  // kv [T, 2 * kv_width]: K and V as projected from `input` [T, hidden]; rows of leading tokens are
  // projected again from their quantized input, before positions are applied.
  void project(LayerId layer, const LayerWeights& weights, ConstMatrix input, Matrix kv,
               Stream& stream);

  // Blocks of this layer whose X lies in their staging pages get their K and V.
  void recompute(LayerId layer, const LayerWeights& weights, std::span<const KvRecompute> blocks,
                 const KvLayerView& cache, Stream& stream);
  // Recomputes tokens that the device lists. Their sequences have rope key 0, and the link has
  // brought X to their slots.
  void recompute(LayerId layer, const LayerWeights& weights, const RecomputedTokens& tokens,
                 const KvLayerView& cache, Stream& stream);

  // Since the start.
  struct Use {
    std::uint64_t saved_bytes = 0;
    std::uint64_t recomputed_tokens = 0;  // in one layer each, of whole blocks
  };
  [[nodiscard]] const Use& use() const { return use_; }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }

 private:
  struct RowRun {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };

  void save(LayerId layer, const std::int8_t* codes, const float* scales,
            std::vector<Ticket>& saves);
  // No more blocks than the buffers hold.
  void recompute_part(LayerId layer, const LayerWeights& weights,
                      std::span<const KvRecompute> blocks, const KvLayerView& cache,
                      Stream& stream);
  // Reads X of a block from its page into inputs_, from `row` on.
  void read_inputs(const KvRecompute& block, std::int64_t row, const KvLayerView& cache,
                   Stream& stream);
  // Slots of rows `row` and on: a page's, in order.
  void name_slots(PageId page, std::int64_t row, std::int64_t page_tokens);
  void append(ConstMatrix k, ConstMatrix v, const KvLayerView& cache, Stream& stream);
  void requantize(std::span<const KvRecompute> blocks, Matrix k, Matrix v, const KvLayerView& cache,
                  Stream& stream);

  ModelConfig config_;
  std::int64_t tokens_;
  std::int64_t rows_capacity_;
  std::int64_t listed_capacity_;  // tokens that the device lists, at once
  Ops* ops_;
  InputOps* input_ops_;
  const LayerRopes* ropes_;
  // X of two layers: one is saved while the next one is made.
  Buffer codes_, scales_;
  Buffer inputs_, kv_;
  std::vector<RopeRows> rope_rows_;            // by table of ropes_
  std::vector<RopePositions> rope_positions_;  // the same, of tokens that the device lists

  KvStore* store_ = nullptr;
  TransferEngine* transfers_ = nullptr;  // of the store, which may end first
  std::span<const BatchSegment> rows_;
  std::vector<RowRun> runs_;                  // of leading tokens
  std::array<std::vector<Ticket>, 2> saves_;  // that read what a layer's X will be written to
  std::vector<Ticket> under_way_;             // of all steps
  std::vector<BytePiece> pieces_;
  std::vector<KvRequantize> requantized_;
  std::vector<PageId> slot_pages_;
  std::vector<std::int32_t> slot_offsets_;
  Use use_;
};

}  // namespace triphase
