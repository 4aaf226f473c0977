#include "memory/kv/prefetched_blocks.h"

#include <algorithm>

#include "base/error.h"

namespace triphase {

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

void PrefetchedBlocks::clear() {
  blocks_.clear();
  tickets_.clear();
  layers_ = 0;
  unused_ = 0;
}

}  // namespace triphase
