#include "memory/kv/early_tokens.h"

#include "base/error.h"

namespace triphase {

std::int64_t EarlyTokens::ranges_of(std::int64_t layer) const {
  for (std::size_t range = ranges_.size(); range > 0; --range) {
    if (ranges_[range - 1].layer == layer) return static_cast<std::int64_t>(range);
  }
  return 0;
}

void EarlyTokens::add(const Slot& slot, std::int32_t block_index, std::int32_t host_block) {
  const auto [block, is_new] = blocks_.try_emplace(block_index, host_block);
  TRIPHASE_CHECK(is_new || block->second == host_block, "a block is read from one host block");
  slots_.push_back(slot);
}

void EarlyTokens::end_range(Ticket ticket, std::uint64_t bytes) {
  TRIPHASE_CHECK(!slots_.empty(), "a range without tokens");
  ranges_.push_back({slots_.back().layer, ticket});
  bytes_ += bytes;
}

bool EarlyTokens::reads(std::int32_t block_index, std::int32_t host_block) const {
  const auto block = blocks_.find(block_index);
  return block != blocks_.end() && block->second == host_block;
}

void EarlyTokens::clear() {
  ranges_.clear();
  slots_.clear();
  blocks_.clear();
  bytes_ = 0;
}

}  // namespace triphase
