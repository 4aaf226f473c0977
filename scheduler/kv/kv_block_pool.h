#pragma once

// Every block of KV there is, by number: its places on the tiers, how many sequences refer to it,
// and the index that finds it by its tokens. A block that no sequence refers to stays findable
// until its place is needed; the least recently used one is evicted first. So are the window blocks
// (kv_windows.h) of a findable block that no sequence's window reaches. PURE bookkeeping.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "scheduler/kv/kv_block.h"
#include "scheduler/kv/kv_sequence.h"
#include "scheduler/kv/kv_tier.h"
#include "scheduler/kv/prefix_index.h"

namespace triphase {

class KvBlockPool {
 public:
  // Places of each tier, in blocks. A block may have `window_blocks` window blocks.
  KvBlockPool(std::int64_t device_blocks, std::int64_t host_blocks, std::int64_t input_blocks,
              std::int64_t window_blocks = 0);
  // Makes room for all blocks there can ever be, so that add() allocates nothing.
  void preallocate();

  // Numbers of blocks are below this.
  [[nodiscard]] std::int64_t capacity() const { return numbers_.places(); }
  [[nodiscard]] const KvBlock& operator[](std::int32_t number) const { return blocks_[number]; }
  [[nodiscard]] KvBlock& at(std::int32_t number) { return blocks_[number]; }
  // By number, up to the largest that was ever taken; unused ones have id 0.
  [[nodiscard]] std::span<const KvBlock> all() const { return blocks_; }
  [[nodiscard]] const KvTiers& tiers() const { return tiers_; }
  [[nodiscard]] KvTiers& tiers() { return tiers_; }
  [[nodiscard]] const PrefixIndex& prefixes() const { return prefixes_; }
  [[nodiscard]] PrefixIndex& prefixes() { return prefixes_; }

  // A new block of `payer`, on the device.
  [[nodiscard]] std::int32_t add(KvSequence& payer);
  // One more sequence refers to the block, which it found by its tokens.
  void share(std::int32_t number);
  // A sequence refers to `equal` instead of `own` from now on: both have the same tokens. Where no
  // sequence did and it is not on the device, it gets the slab of `own`.
  void replace(std::int32_t own, std::int32_t equal);
  // A sequence refers to the block no more. A block to which none refers, and which nothing can
  // find by its tokens, is free.
  void let_go(std::int32_t number);
  // Frees all blocks that no sequence refers to.
  void evict_all();

  // The window blocks of a block: their numbers, all or none.
  [[nodiscard]] std::int64_t window_blocks() const { return window_blocks_; }
  [[nodiscard]] bool has_windows(std::int32_t number) const {
    return window_blocks_ > 0 && windows_[first_window(number)] != kNone;
  }
  [[nodiscard]] std::span<const std::int32_t> windows(std::int32_t number) const {
    if (!has_windows(number)) return {};
    return std::span(windows_).subspan(first_window(number),
                                       static_cast<std::size_t>(window_blocks_));
  }
  // One more sequence refers to them; they are made where there are none. Returns how many
  // sequences did before.
  std::int32_t hold_windows(std::int32_t number);
  // One less. Returns how many sequences still do.
  std::int32_t let_go_windows(std::int32_t number);
  // Window blocks that one sequence holds become those of an equal block, which has none.
  void move_windows(std::int32_t from, std::int32_t to);

  // A slab for the block: from what `payer` reserved, else from what is free.
  void take_slab(std::int32_t number, KvSequence& payer);
  // A place for cached hidden states, from what `payer` reserved.
  void take_input(std::int32_t number, KvSequence& payer);
  // A host block. The caller accounts for the reservation.
  void take_host(std::int32_t number);
  void drop_host(std::int32_t number);

  // The block, which has a place on both tiers, is being copied: kOffloading or kLoading.
  void begin_move(std::int32_t number, BlockPlace place);
  // All copies have finished: each block gives up the place that it was read at.
  void finish_moves();
  [[nodiscard]] bool moving() const { return !moving_.empty(); }

  // Recounts everything and throws an internal error on any contradiction (tests).
  void check() const;

 private:
  static constexpr std::int32_t kNone = KvBlock::kNone;

  // Evicts until the tier has a place.
  [[nodiscard]] std::int32_t take(KvTier& tier);
  void refer_to(std::int32_t number);
  void evict_one();
  void free_block(std::int32_t number);
  void free_windows(std::int32_t number);
  void forget_unheld_windows(std::int32_t number);
  void drop_unused_input(KvBlock& block);
  // A number for a new block.
  [[nodiscard]] std::int32_t new_block();
  [[nodiscard]] std::size_t first_window(std::int32_t number) const {
    return static_cast<std::size_t>(number) * static_cast<std::size_t>(window_blocks_);
  }

  KvTiers tiers_;
  KvTier numbers_;
  PrefixIndex prefixes_;
  std::vector<KvBlock> blocks_;
  std::vector<std::int32_t> moving_;
  std::int64_t window_blocks_;
  std::vector<std::int32_t> windows_;  // numbers: [block][window_blocks]
  // Blocks whose window blocks no sequence refers to, by when they were let go; and that by block.
  std::map<std::uint64_t, std::int32_t> unheld_windows_;
  std::vector<std::uint64_t> windows_let_go_;
  std::uint64_t last_id_ = 0;
};

}  // namespace triphase
