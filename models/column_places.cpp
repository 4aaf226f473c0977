#include "models/column_places.h"

#include <algorithm>

namespace triphase {

void ColumnPlaces::begin_step(KvStore& store, std::span<const BatchSegment> rows,
                              AttentionRunner& attention) {
  TransposedK& columns = store.transposed_k();
  columns_ = &columns;
  columns.begin_step();
  if (places_.size() < rows.size()) {
    places_.resize(rows.size());
    tables_.resize(rows.size());
  }
  for (std::size_t index = 0; index < rows.size(); ++index) {
    const BatchSegment& entry = rows[index];
    std::vector<std::int32_t>& places = places_[index];
    places.clear();
    if (!attention.decodes(entry.sequence, entry.first_position + 1)) continue;
    // INT8: the query's own block is read unquantized.
    const std::int64_t tokens = entry.first_position + (store.memory().shape().quantized() ? 0 : 1);
    const std::int64_t blocks = tokens / store.memory().shape().block_tokens;
    for (std::int64_t block = 0; block < blocks; ++block) {
      places.push_back(columns.take(store.book(), entry.sequence, block));
    }
  }
}

bool ColumnPlaces::complete(std::size_t entry) const {
  const std::vector<std::int32_t>& places = places_[entry];
  return std::ranges::find(places, TransposedK::kNone) == places.end();
}

void ColumnPlaces::add_blocks_without(std::size_t entry, LayerId layer,
                                      std::vector<std::int64_t>& blocks) const {
  const std::vector<std::int32_t>& places = places_[entry];
  for (std::size_t block = 0; block < places.size(); ++block) {
    if (columns_->is_ready(columns_->page(layer, places[block]))) continue;
    blocks.push_back(static_cast<std::int64_t>(block));
  }
}

std::span<const PageId> ColumnPlaces::table(std::size_t entry, LayerId layer) {
  std::vector<PageId>& table = tables_[entry];
  table.clear();
  for (const std::int32_t place : places_[entry]) table.push_back(columns_->page(layer, place));
  // An empty table would mean that K^T is numbered by the pages of K.
  table.emplace_back();
  return table;
}

}  // namespace triphase
