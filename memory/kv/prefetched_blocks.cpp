#include "memory/kv/prefetched_blocks.h"

#include <algorithm>

#include "base/error.h"

namespace triphase {

std::optional<PrefetchedBlocks::Source> PrefetchedBlocks::source_of(const KvBlockTable& blocks,
                                                                    LayerId layer,
                                                                    std::int64_t position) {
  const std::int32_t number = blocks.number(position);
  const KvBlock& block = blocks[position];
  if (block.place != BlockPlace::kHost && block.place != BlockPlace::kLoading) return std::nullopt;
  return Source{.layer = layer.value,
                .block_index = number,
                .block_id = block.id,
                .host_block = block.host_block};
}

void PrefetchedBlocks::add(const Source& source, PageId page) {
  const bool added = blocks_
                         .try_emplace(key(source.layer, source.block_index),
                                      Block{source.block_id, source.host_block, {page, ranges()}})
                         .second;
  TRIPHASE_CHECK(added, "a block is brought once");
  layers_ = std::max(layers_, source.layer + 1);
  ++unused_;
}

void PrefetchedBlocks::end_range(Ticket ticket) { tickets_.push_back(ticket); }

std::optional<PrefetchedBlocks::Found> PrefetchedBlocks::find(const Source& source) const {
  const auto block = blocks_.find(key(source.layer, source.block_index));
  if (block == blocks_.end() || block->second.id != source.block_id ||
      block->second.host_block != source.host_block) {
    return std::nullopt;
  }
  return block->second.found;
}

std::optional<PrefetchedBlocks::Found> PrefetchedBlocks::use(const Source& source) {
  const std::optional<Found> found = find(source);
  if (!found) return found;
  bool& used = blocks_.find(key(source.layer, source.block_index))->second.used;
  if (!used) --unused_;
  used = true;
  return found;
}

bool PrefetchedBlocks::reads(std::int32_t block_index, std::int32_t host_block) const {
  for (std::int64_t layer = 0; layer < layers_; ++layer) {
    const auto block = blocks_.find(key(layer, block_index));
    if (block != blocks_.end() && block->second.host_block == host_block) return true;
  }
  return false;
}

void PrefetchedBlocks::hold(std::int64_t count) {
  for (const std::int64_t end = std::min(count, ranges()); held_ < end; ++held_)
    transfers_->hold(ticket(held_));
}

void PrefetchedBlocks::stop_reading(std::int32_t block_index, std::int32_t host_block) {
  if (held_ < ranges() && reads(block_index, host_block)) hold(ranges());
}

void PrefetchedBlocks::end() {
  hold(ranges());
  clear();
}

void PrefetchedBlocks::clear() {
  ended_ = use_so_far();
  blocks_.clear();
  tickets_.clear();
  layers_ = 0;
  unused_ = 0;
  held_ = 0;
}

}  // namespace triphase
