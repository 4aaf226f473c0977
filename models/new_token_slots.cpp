#include "models/new_token_slots.h"

namespace triphase {

void NewTokenSlots::begin_step(KvStore& store, std::span<const BatchSegment> rows) {
  store_ = &store;
  rows_ = rows;
  tables_.assign(static_cast<std::size_t>(store.memory().shape().sets.count()), nullptr);
  partial_blocks_.begin_step(store, rows);
  std::int64_t count = 0;
  for (const BatchSegment& entry : rows) count += entry.count;
  pages_.resize(static_cast<std::size_t>(count));
  offsets_.resize(static_cast<std::size_t>(count));
}

KvSlots NewTokenSlots::slots(LayerId layer) {
  const std::int64_t block = store_->memory().shape().block_tokens;
  const LayerSets::Place place = store_->memory().shape().sets.of(layer);
  const SegmentTables* tables = tables_[place.set];
  if (store_->memory().shape().quantized()) {
    partial_blocks_.begin_layer(layer);
    std::size_t row = 0;
    for (const PartialBlocks::Run& run : partial_blocks_.runs()) {
      for (std::int64_t i = 0; i < run.count; ++i, ++row) {
        pages_[row] = run.partial_page;
        offsets_[row] = static_cast<std::int32_t>((run.first_position + i) % block);
      }
    }
    return {pages_, offsets_, tables, place.page};
  }
  for (const BatchSegment& entry : rows_) {
    for (std::int64_t i = 0; i < entry.count; ++i) {
      const std::int64_t position = entry.first_position + i;
      const std::int64_t row = entry.first_row + i;
      pages_[row] =
          store_->memory().page(store_->book().table(entry.sequence), position / block, layer);
      offsets_[row] = static_cast<std::int32_t>(position % block);
      store_->transposed_k().forget(store_->book(), entry.sequence, layer, position / block);
    }
  }
  return {pages_, offsets_, tables, place.page};
}

}  // namespace triphase
