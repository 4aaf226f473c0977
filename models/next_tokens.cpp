#include "models/next_tokens.h"

#include <algorithm>

#include "memory/transfer/gather_runs.h"

namespace triphase {

void NextTokens::begin(KvStore& store, std::span<const BatchSegment> rows) {
  store_ = &store;
  rows_ = rows;
  done_ = false;
}

std::size_t NextTokens::first_cell(const EarlyBlocks::Source& source) {
  const auto [place, is_new] = found_.try_emplace(source.block_index, blocks_.size());
  if (is_new) {
    blocks_.push_back(source);
    cells_.resize(cells_.size() + static_cast<std::size_t>(block_cells_), 0);
  }
  return place->second * static_cast<std::size_t>(block_cells_);
}

void NextTokens::look_at(const BatchSegment& rows, LayerId layer, const TokenChoice& choice) {
  TokenCache& cache = store_->token_cache(parts_);
  const std::int64_t block_tokens = store_->shape().block_tokens;
  const std::int64_t blocks = store_->book().blocks(rows.sequence);
  std::int64_t block = -1;
  std::optional<EarlyBlocks::Source> source;
  const auto lists = static_cast<std::int64_t>(choice.begins.size()) - 1;
  for (std::int64_t list = 0; list < lists; ++list) {
    const auto begin = static_cast<std::size_t>(choice.begins[static_cast<std::size_t>(list)]);
    const auto end = static_cast<std::size_t>(choice.begins[static_cast<std::size_t>(list) + 1]);
    for (const std::int32_t token : std::span(choice.tokens).subspan(begin, end - begin)) {
      if (token / block_tokens != block) {
        block = token / block_tokens;
        // The row's own token may begin a block.
        source =
            block < blocks ? store_->arrived_source(layer, rows.sequence, block) : std::nullopt;
      }
      if (!source) continue;
      const std::int64_t offset = token % block_tokens;
      const TokenCache::BlockKey key{source->block_index, source->block_id};
      if (cache.keep_for_next(layer.value, list, key, offset)) continue;
      cells_[first_cell(*source) + static_cast<std::size_t>(offset * parts_ + list)] = 1;
    }
  }
}

void NextTokens::take_slots(LayerId layer) {
  TokenCache& cache = store_->token_cache(parts_);
  slots_.assign(cells_.size(), TokenCache::kNone);
  for (std::size_t cell = 0; cell < cells_.size(); ++cell) {
    if (cells_[cell] == 0) continue;
    const EarlyBlocks::Source& block = blocks_[cell / static_cast<std::size_t>(block_cells_)];
    const auto within = static_cast<std::int64_t>(cell) % block_cells_;
    const std::int32_t slot = cache.add_for_next(
        layer.value, within % parts_, {block.block_index, block.block_id}, within / parts_);
    cells_[cell] = slot == TokenCache::kNone ? 0 : 1;
    if (slot == TokenCache::kNone) continue;
    slots_[cell] = static_cast<std::int32_t>(store_->cache_slot(layer, slot));
    store_->early_tokens().add({layer.value, within % parts_, slot}, block.block_index,
                               block.host_block);
  }
}

std::uint64_t NextTokens::bring(LayerId layer, std::optional<std::int64_t> spare_page) {
  const KvGeometry geometry = store_->geometry();
  const auto cells = static_cast<std::size_t>(block_cells_);
  const std::int64_t gap = spare_page ? store_->transfers()->piece_cost_bytes() : 0;
  runs_.clear();
  for (std::size_t index = 0; index < blocks_.size(); ++index) {
    const std::size_t first = index * cells;
    gather_runs(geometry,
                {.slot = spare_page.value_or(0) * geometry.page_tokens,
                 .record = store_->host_record(blocks_[index].host_block, layer, 0),
                 .cells = std::span(cells_).subspan(first, cells),
                 .slots = std::span(slots_).subspan(first, cells)},
                gap, runs_);
  }
  if (runs_.empty()) return 0;
  std::uint64_t bytes = 0;
  for (const TokenRun& run : runs_) bytes += static_cast<std::uint64_t>(geometry.bytes(run));
  store_->early_tokens().end_range(
      store_->transfers()->move_tokens(Lane::kToDevice, geometry, runs_), bytes);
  return bytes;
}

std::uint64_t NextTokens::fetch(AttentionRunner& attention, std::int64_t layers,
                                std::optional<std::int64_t> spare_page) {
  done_ = true;
  parts_ = attention.method().lists();
  block_cells_ = store_->shape().block_tokens * parts_;
  if (store_->token_cache(parts_).empty()) return 0;
  std::uint64_t bytes = 0;
  for (LayerId layer(0); layer.value < layers; layer = LayerId(layer.value + 1)) {
    blocks_.clear();
    found_.clear();
    cells_.clear();
    for (const BatchSegment& rows : rows_) {
      if (!rows.continues) continue;
      const std::int64_t context = rows.first_position + rows.count + 1;
      const TokenChoice* choice = attention.next_choice(layer, rows.sequence, context);
      if (choice != nullptr) look_at(rows, layer, *choice);
    }
    take_slots(layer);
    bytes += bring(layer, spare_page);
  }
  return bytes;
}

}  // namespace triphase
