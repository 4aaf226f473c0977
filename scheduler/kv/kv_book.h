#pragma once

// The one book of KV: which sequences there are, and which blocks each has on which tier. The
// engine, the placement policies and the simulator use it; memory/kv/kv_store keeps the bytes
// behind it. PURE bookkeeping: no bytes, no device, not thread safe.
//
// The book is made of parts, and callers use the part they mean:
//   sequence()  one sequence: its length and what it has reserved
//   table()     its block table: which blocks it has, and how many on each tier
//   pool()      all blocks, by number
//   tiers()     how many places are free, used or reserved on each tier
//   placer()     offloads, loads, discards, preempts and resumes
// The book itself begins sequences, lets them grow, shares their blocks and ends them.
//
// A sequence is admitted with a reservation of blocks on each tier that others cannot take. Beyond
// it, it grows into blocks that nobody has or has reserved. Full blocks of equal token prefixes are
// shared and counted by references. Blocks of ended prompts stay findable until their place is
// needed.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "scheduler/kv/block_tokens.h"
#include "scheduler/kv/kv_block_pool.h"
#include "scheduler/kv/kv_block_table.h"
#include "scheduler/kv/kv_placer.h"
#include "scheduler/kv/kv_sequence.h"
#include "scheduler/kv/kv_windows.h"

namespace triphase {

// What a sequence sets aside at its admission: blocks beyond those that it shares.
struct KvReservation {
  std::optional<std::int64_t> device_blocks{};  // nothing: all it will ever need
  std::int64_t host_blocks = 0;
  std::int64_t input_blocks = 0;                     // leading blocks with cached hidden states
  std::optional<std::int64_t> most_shared_blocks{};  // share no more than these
};

class KvBook {
 public:
  struct Shape {
    std::int64_t block_tokens = 32;
    // Blocks of all layers.
    std::int64_t device_blocks = 0;
    std::int64_t host_blocks = 0;
    std::int64_t input_blocks = 0;  // of cached hidden states
    // Blocks of a sequence with a host reservation are mirrored on the host (kv_mirrors.h).
    bool mirrored = false;
    KvWindowShape windows{};
  };

  explicit KvBook(const Shape& shape);
  // Makes room for all blocks there can ever be, so that append() allocates nothing.
  void preallocate() { pool_.preallocate(); }

  // Admits a sequence whose KV depends on its tokens and on `context_key` (for example the RoPE
  // base chosen at admission: equal tokens under different keys are never shared). It will grow to
  // at most `max_tokens`.
  // `prompt` finds shareable blocks: at most prompt.size() - 1 tokens, since the last one must be
  // computed for its logits. Returns no id when the reservation does not fit; nothing changed then.
  struct Admission {
    SequenceId sequence;             // invalid: does not fit now
    std::int64_t shared_tokens = 0;  // leading tokens whose KV is already there
  };
  [[nodiscard]] Admission admit(std::span<const TokenId> prompt, std::int64_t max_tokens,
                                std::uint64_t context_key, const KvReservation& reservation = {});

  // Leading blocks of the prompt that it could share, at most `most`: those of running sequences,
  // and after them those that no sequence refers to, on the host and then on the device. The last
  // ones have window blocks as far back as a window reaches.
  struct Prefix {
    std::vector<std::int32_t> blocks;  // their numbers
    std::int64_t referenced = 0;       // by sequences
    std::int64_t offloaded = 0;        // on the host or recomputable
    std::int64_t unheld_on_host = 0;   // of these, referred to by no sequence
  };
  [[nodiscard]] Prefix find_prefix(std::span<const TokenId> prompt, std::uint64_t context_key,
                                   std::optional<std::int64_t> most = {}) const;

  // Tokens that append() can take before the copies under way have finished: within the
  // reservation, and beyond it from blocks nobody reserved.
  [[nodiscard]] std::int64_t append_room(SequenceId id) const;
  // Makes places for the next `count` tokens of the sequence, at most append_room().
  void append(SequenceId id, std::int64_t count);
  // All appended tokens are computed: window blocks that no next token reads become free.
  void advance_windows();
  // Device blocks that a sequence of so many tokens sets aside for its window blocks.
  [[nodiscard]] std::int64_t window_reservation(std::int64_t max_tokens) const {
    const std::int64_t blocks = blocks_for(max_tokens, shape_.block_tokens);
    return shape_.windows.blocks * window_room(shape_.windows, shape_.block_tokens, blocks);
  }

  // The KV of the sequence's first `tokens.size()` tokens is written; its blocks that became full
  // are findable by their tokens. Where an equal block is findable already, the sequence goes on
  // with that one and gives its own back (the same tokens make the same KV).
  void publish(SequenceId id, std::span<const TokenId> tokens);

  // Ends a sequence; its unshared, unfindable blocks become free.
  void release(SequenceId id, KvMoves& moves);
  // Ends every sequence and move of a job that stopped in the middle. Nothing is findable then.
  void give_up();

  // Changes where blocks are, and appends to `moves` what has to happen to their bytes.
  [[nodiscard]] KvPlacer placer(KvMoves& moves) {
    return {pool_, sequences_, shape_.block_tokens, moves};
  }
  // All copies have finished.
  void finish_moves() { pool_.finish_moves(); }

  [[nodiscard]] const KvSequence& sequence(SequenceId id) const { return sequences_[id]; }
  [[nodiscard]] KvBlockTable table(SequenceId id) const { return {sequences_[id], pool_}; }
  [[nodiscard]] const KvBlockPool& pool() const { return pool_; }
  [[nodiscard]] const KvTiers& tiers() const { return pool_.tiers(); }
  [[nodiscard]] const KvWindowShape& window_shape() const { return shape_.windows; }

  // Recounts everything from scratch and throws an internal error on any contradiction (tests).
  void check() const;

 private:
  void check_sequences() const;
  [[nodiscard]] KvWindows windows() {
    return {shape_.windows, shape_.block_tokens, window_store_, pool_, sequences_};
  }
  // How many of these leading blocks a sequence can begin with, by the window blocks there are.
  [[nodiscard]] std::size_t reached_by_windows(std::span<const std::int32_t> blocks) const;

  Shape shape_;
  KvBlockPool pool_;
  KvSequences sequences_;
  std::int64_t window_store_ = 0;
};

}  // namespace triphase
