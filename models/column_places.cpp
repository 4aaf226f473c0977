#include "models/column_places.h"

#include <algorithm>

namespace triphase {

void ColumnPlaces::begin_step(KvStore& store, std::span<const BatchSegment> rows,
                              AttentionRunner& attention) {
  TransposedK& columns = store.transposed_k();
  columns_ = &columns;
  columns.begin_step();
  if (entries_.size() < rows.size()) entries_.resize(rows.size());
  for (std::size_t index = 0; index < rows.size(); ++index) {
    const BatchSegment& row = rows[index];
    Entry& entry = entries_[index];
    entry.places.clear();
    entry.layer = LayerId();
    entry.written = 0;
    if (!attention.decodes(row.sequence, row.first_position + 1)) continue;
    // INT8: the query's own block is read unquantized.
    const std::int64_t tokens = row.first_position + (store.memory().shape().quantized() ? 0 : 1);
    const std::int64_t blocks = tokens / store.memory().shape().block_tokens;
    for (std::int64_t block = 0; block < blocks; ++block) {
      entry.places.push_back(columns.take(store.book(), row.sequence, block));
    }
    entry.written = columns.count_ready(entry.places);
  }
  forgotten_ = columns.forgotten();
}

bool ColumnPlaces::complete(std::size_t entry) const {
  return std::ranges::find(entries_[entry].places, TransposedK::kNone) ==
         entries_[entry].places.end();
}

void ColumnPlaces::add_blocks_without(std::size_t entry, LayerId layer,
                                      std::vector<std::int64_t>& blocks) const {
  const std::vector<std::int32_t>& places = entries_[entry].places;
  for (std::size_t block = 0; block < places.size(); ++block) {
    if (columns_->is_ready(columns_->page(layer, places[block]))) continue;
    blocks.push_back(static_cast<std::int64_t>(block));
  }
}

std::span<const PageId> ColumnPlaces::table(std::size_t index, LayerId layer) {
  Entry& entry = entries_[index];
  if (entry.layer == layer) return entry.table;
  if (entry.layer.valid() && columns_->run() == 1) {
    // Layers of single places follow each other, as those of K's pages do.
    KvMemory::move_pages(entry.table, entry.layer, layer);
  } else {
    entry.table.clear();
    for (const std::int32_t place : entry.places) {
      entry.table.push_back(columns_->page(layer, place));
    }
    // An empty table would mean that K^T is numbered by the pages of K.
    entry.table.emplace_back();
  }
  entry.layer = layer;
  return entry.table;
}

}  // namespace triphase
