#include "scheduler/kv/prefix_index.h"

#include <algorithm>

#include "base/content_hash.h"
#include "base/error.h"

namespace triphase {
namespace {

// Equality is decided on the tokens themselves, so a collision costs time, never correctness.
std::uint64_t hash_of(std::int32_t parent, std::uint64_t context_key,
                      std::span<const TokenId> tokens) {
  const auto above = static_cast<std::uint64_t>(std::int64_t{parent}) << 32;
  return hash_bytes(std::as_bytes(tokens), context_key ^ above);
}

}  // namespace

std::int32_t PrefixIndex::find(std::int32_t parent, std::uint64_t context_key,
                               std::span<const TokenId> tokens) const {
  if (entries_.empty()) return kNone;
  const auto [begin, end] = by_hash_.equal_range(hash_of(parent, context_key, tokens));
  for (auto found = begin; found != end; ++found) {
    const Entry& entry = entries_.at(found->second);
    if (entry.parent == parent && entry.context_key == context_key &&
        std::ranges::equal(entry.tokens, tokens)) {
      return found->second;
    }
  }
  return kNone;
}

void PrefixIndex::add(std::int32_t block, std::int32_t parent, std::uint64_t context_key,
                      std::span<const TokenId> tokens) {
  const std::uint64_t hash = hash_of(parent, context_key, tokens);
  entries_[block] = {.parent = parent,
                     .context_key = context_key,
                     .hash = hash,
                     .tokens = {tokens.begin(), tokens.end()}};
  by_hash_.emplace(hash, block);
  if (parent != kNone) ++entries_.at(parent).children;
}

void PrefixIndex::let_go(std::int32_t block) {
  entries_.at(block).let_go = ++last_let_go_;
  unheld_.emplace(last_let_go_, block);
}

void PrefixIndex::hold(std::int32_t block) { unheld_.erase(entries_.at(block).let_go); }

std::optional<std::int32_t> PrefixIndex::evict() {
  if (unheld_.empty()) return std::nullopt;
  const std::int32_t block = unheld_.begin()->second;
  unheld_.erase(unheld_.begin());
  const auto entry = entries_.find(block);
  // A sequence that has a block has its parent too, so children are let go before their parent.
  TRIPHASE_CHECK(entry->second.children == 0, "eviction order");
  if (entry->second.parent != kNone) --entries_.at(entry->second.parent).children;
  const auto [begin, end] = by_hash_.equal_range(entry->second.hash);
  by_hash_.erase(std::find_if(begin, end, [&](const auto& one) { return one.second == block; }));
  entries_.erase(entry);
  return block;
}

}  // namespace triphase
