#pragma once

// Where the K and V of a step's new tokens go, layer by layer, and which INT8 blocks they fill.
// Kept between steps to reuse its memory; not thread safe.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "memory/kv/batch_segment.h"
#include "memory/kv/kv_store.h"
#include "memory/kv/partial_blocks.h"

namespace triphase {

class NewTokenSlots {
 public:
  // The rows' places exist (KvBook::append); spans and `store` must stay until the step ends.
  void begin_step(KvStore& store, std::span<const BatchSegment> rows);
  // INT8: where the rows are until their blocks are full.
  [[nodiscard]] PartialBlocks& partial_blocks() { return partial_blocks_; }
  [[nodiscard]] const PartialBlocks& partial_blocks() const { return partial_blocks_; }

  // Whether the places differ within a set of layers (LayerSets) by the layer alone, and no tables
  // say so yet; then tables made of those of its first layer serve the set once they are set.
  [[nodiscard]] bool wants_tables(std::int64_t set) const {
    return tables_[set] == nullptr &&
           (!store_->memory().shape().quantized() || partial_blocks_.taken_for_step());
  }
  // Of the step: they say where new tokens go in the set's layers.
  void set_tables(std::int64_t set, const SegmentTables* tables) { tables_[set] = tables; }

  // Once per layer, layers in order; where wants_tables() was true any number of times.
  [[nodiscard]] KvSlots slots(LayerId layer);
  // After slots() of the layer. INT8: the blocks that are full with this step's tokens.
  [[nodiscard]] FullBlocks full_blocks(LayerId layer) const {
    const LayerSets::Place place = store_->memory().shape().sets.of(layer);
    return {partial_blocks_.full_blocks(), tables_[place.set], place.page};
  }

 private:
  KvStore* store_ = nullptr;
  std::span<const BatchSegment> rows_;
  std::vector<const SegmentTables*> tables_;  // by set of layers
  std::vector<PageId> pages_;                 // by row
  std::vector<std::int32_t> offsets_;         // by row
  PartialBlocks partial_blocks_;              // INT8
};

}  // namespace triphase
