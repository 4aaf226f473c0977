#pragma once

// Moves blocks of sequences between the tiers in the book, and lists what has to happen to their
// bytes for the book to be true.
//
// A block that moves has a place on both tiers, and is read at its old one, until its copy has
// finished. Counts of free places already treat the old place as free, so a decision can plan with
// it. Whoever takes such a place waits for the copies first.

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "scheduler/kv/kv_block_pool.h"
#include "scheduler/kv/kv_block_table.h"
#include "scheduler/kv/kv_mirrors.h"
#include "scheduler/kv/kv_sequence.h"

namespace triphase {

// What has to happen to bytes, in this order.
struct KvMove {
  enum class Kind : std::uint8_t {
    kOffload,   // copy the slab to the host block
    kMirrored,  // the block is offloaded, but the host block has its bytes already
    kLoad,      // copy the host block to the slab
    kGiveUp,  // no sequence reads the host block: it may be overwritten, unless one finds it again
    kWait,    // all copies so far must have finished before what follows
  };
  Kind kind = Kind::kWait;
  std::int32_t block = KvBlock::kNone;
  std::int32_t slab = KvBlock::kNone;
  std::int32_t host_block = KvBlock::kNone;

  friend bool operator==(const KvMove&, const KvMove&) = default;
};
using KvMoves = std::vector<KvMove>;

// KvBook::placer() makes one for a few calls; it appends to `moves`. A request that the state
// of the blocks forbids throws an internal error.
class KvPlacer {
 public:
  KvPlacer(KvBlockPool& pool, KvSequences& sequences, std::int64_t block_tokens, KvMoves& moves)
      : pool_(&pool), sequences_(&sequences), block_tokens_(block_tokens), moves_(&moves) {}

  // Moves the oldest full blocks on the device to the host.
  void offload(SequenceId id, std::int64_t count);
  // Moves the youngest blocks on the host to the device.
  void load(SequenceId id, std::int64_t count);
  // The oldest host blocks, whose hidden states are cached, become recomputable.
  void discard(SequenceId id, std::int64_t count);
  // Moves all blocks to the host, a partial one too, until resume() loads the `count` youngest.
  // Drops the sequence's reservations. The sequence must share nothing.
  void preempt(SequenceId id);
  void resume(SequenceId id, std::int64_t count);

  // What follows in the list happens after all copies so far.
  void wait();
  // What the sequence has reserved on the device and on the host, its mirrors included.
  void drop_reservations(SequenceId id);

 private:
  [[nodiscard]] KvBlockTable table(SequenceId id) const { return {(*sequences_)[id], *pool_}; }
  void offload_block(KvSequence& payer, std::int32_t number);
  void load_block(KvSequence& payer, std::int32_t number);
  void check_no_hole(SequenceId id, std::int64_t first, std::int64_t end) const;

  KvBlockPool* pool_;
  KvSequences* sequences_;
  std::int64_t block_tokens_;
  KvMoves* moves_;
};

}  // namespace triphase
