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
    entry.table.clear();
    entry.written = 0;
    if (attention.decodes(row.sequence, row.first_position + 1)) {
      // INT8: the query's own block is read unquantized.
      const std::int64_t tokens = row.first_position + (store.memory().shape().quantized() ? 0 : 1);
      const std::int64_t blocks = tokens / store.memory().shape().block_tokens;
      for (std::int64_t block = 0; block < blocks; ++block) {
        entry.table.emplace_back(columns.take(store.book(), row.sequence, block));
      }
      entry.written = columns.count_ready(entry.table, attention.last_layer());
    }
    // An empty table would mean that K^T is numbered by the pages of K.
    entry.table.emplace_back();
  }
  forgotten_ = columns.forgotten();
}

bool ColumnPlaces::complete(std::size_t entry) const {
  return std::ranges::all_of(entries_[entry].places(), &PageId::valid);
}

void ColumnPlaces::add_blocks_without(std::size_t entry, LayerId layer,
                                      std::vector<std::int64_t>& blocks) const {
  const std::span<const PageId> places = entries_[entry].places();
  for (std::size_t block = 0; block < places.size(); ++block) {
    if (columns_->is_ready(layer, places[block].value)) continue;
    blocks.push_back(static_cast<std::int64_t>(block));
  }
}

}  // namespace triphase
