#include "scheduler/kv/kv_block_table.h"

#include <algorithm>
#include <vector>

namespace triphase {

std::int64_t KvBlockTable::up_to(BlockPlace place) const {
  const std::vector<std::int32_t>& blocks = sequence_->blocks;
  const auto older = [&](std::int32_t number) { return (*pool_)[number].place <= place; };
  return std::ranges::partition_point(blocks, older) - blocks.begin();
}

std::int64_t KvBlockTable::with_inputs() const {
  const std::int64_t there = std::min(sequence_->input_blocks, size());
  // A block taken over from another sequence may lack them.
  for (std::int64_t position = 0; position < there; ++position) {
    if ((*this)[position].input_block == KvBlock::kNone) return position;
  }
  return sequence_->input_blocks;
}

std::int64_t KvBlockTable::shared() const {
  // A sequence that has a block also has the blocks before it.
  const std::vector<std::int32_t>& blocks = sequence_->blocks;
  const auto shared = [&](std::int32_t number) { return (*pool_)[number].references > 1; };
  return std::ranges::partition_point(blocks, shared) - blocks.begin();
}

}  // namespace triphase
