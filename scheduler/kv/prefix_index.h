#pragma once

// Finds blocks by their tokens: a block is keyed by the block before it, a context key and its own
// tokens. Keeps the blocks that no sequence refers to in the order of their last use, so that the
// least recently used one is evicted first. PURE bookkeeping over block numbers; KvBlockPool has
// the blocks.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"

namespace triphase {

class PrefixIndex {
 public:
  static constexpr std::int32_t kNone = -1;  // also the parent of a first block

  // The block with these tokens after `parent`; kNone: there is none.
  [[nodiscard]] std::int32_t find(std::int32_t parent, std::uint64_t context_key,
                                  std::span<const TokenId> tokens) const;
  // The block is found from now on. A sequence refers to it.
  void add(std::int32_t block, std::int32_t parent, std::uint64_t context_key,
           std::span<const TokenId> tokens);
  [[nodiscard]] bool contains(std::int32_t block) const { return entries_.contains(block); }

  // No sequence refers to the block any more, or one does again.
  void let_go(std::int32_t block);
  void hold(std::int32_t block);
  // Blocks that no sequence refers to.
  [[nodiscard]] std::int64_t unheld() const { return std::ssize(unheld_); }
  // When the block that was let go first was; nothing: there is none.
  [[nodiscard]] std::optional<std::uint64_t> oldest() const {
    if (unheld_.empty()) return std::nullopt;
    return unheld_.begin()->first;
  }
  // Removes the block that was let go first and returns it; nothing: there is none.
  std::optional<std::int32_t> evict();
  // The next moment on the clock of let_go().
  [[nodiscard]] std::uint64_t now() { return ++last_let_go_; }

 private:
  struct Entry {
    std::int32_t parent = kNone;
    std::int32_t children = 0;  // blocks here that name this one as parent
    std::uint64_t context_key = 0;
    std::uint64_t hash = 0;
    std::vector<TokenId> tokens;  // for exact comparison
    std::uint64_t let_go = 0;     // when; its key in unheld_
  };

  std::unordered_map<std::int32_t, Entry> entries_;  // by block
  std::unordered_multimap<std::uint64_t, std::int32_t> by_hash_;
  std::map<std::uint64_t, std::int32_t> unheld_;  // the first is evicted first
  std::uint64_t last_let_go_ = 0;
};

}  // namespace triphase
