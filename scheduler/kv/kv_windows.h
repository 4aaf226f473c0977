#pragma once

// Layers with a sliding window keep their KV on the device as far back as the window reaches, and
// no further: window blocks. The other layers' blocks may be on the host meanwhile, or have been
// discarded. Models that have both kinds of layers divide them so that every slab has as many pages
// (memory/kv/kv_shape.h); a block may have several window blocks.
//
// A sequence sets window blocks aside at its admission, for a window and two blocks at its edges.
// What the prompt tokens of one step need beyond that comes from a store for all sequences. Each
// sequence pays for the window blocks that it holds, those that it shares included, so that it can
// go on when the others end. Works on the book's pool and sequences.

#include <cstdint>

#include "scheduler/kv/kv_block_pool.h"
#include "scheduler/kv/kv_sequence.h"

namespace triphase {

struct KvWindowShape {
  std::int64_t tokens = 0;       // of the longest window; 0: all layers keep all tokens
  std::int64_t blocks = 0;       // window blocks of a block
  std::int64_t step_tokens = 0;  // most prompt tokens of a step

  friend bool operator==(const KvWindowShape&, const KvWindowShape&) = default;
};

// The first block that the token at `position` reads in a layer with a window of so many tokens.
[[nodiscard]] constexpr std::int64_t first_block_in_window(std::int64_t position,
                                                           std::int64_t window,
                                                           std::int64_t block_tokens) {
  return position < window ? 0 : (position + 1 - window) / block_tokens;
}
// How many of its `max_blocks` blocks a sequence sets window blocks aside for.
[[nodiscard]] std::int64_t window_room(const KvWindowShape& shape, std::int64_t block_tokens,
                                       std::int64_t max_blocks);
// The same of all sequences together: the store for prompt tokens.
[[nodiscard]] std::int64_t window_store(const KvWindowShape& shape, std::int64_t block_tokens);

// Blocks that a sequence can have on the device where it runs alone, of so many device blocks for
// blocks and window blocks.
[[nodiscard]] std::int64_t most_blocks_alone(const KvWindowShape& shape, std::int64_t block_tokens,
                                             std::int64_t device_blocks);

// KvBook makes one for a few calls. Without windows the calls do nothing.
class KvWindows {
 public:
  // `store`: blocks that are left of it.
  KvWindows(const KvWindowShape& shape, std::int64_t block_tokens, std::int64_t& store,
            KvBlockPool& pool, KvSequences& sequences)
      : shape_(&shape),
        block_tokens_(block_tokens),
        store_(&store),
        pool_(&pool),
        sequences_(&sequences) {}

  // Sets the store aside, once.
  void begin();
  // The admitted sequence has the blocks that it shares. The caller has seen that there is room.
  void admit(SequenceId id);
  // The sequence got a new block, its last one.
  void add(SequenceId id);
  // The sequence's tokens are computed: what the next one does not read is let go.
  void advance(SequenceId id);
  // `equal` takes the place of the sequence's block at `position`; before it does.
  void replace(SequenceId id, std::int64_t position, std::int32_t equal);
  // The sequence ends or is preempted.
  void end(SequenceId id);

 private:
  void hold(std::int32_t number);
  void let_go(std::int32_t number);
  void let_go_before(KvSequence& of, std::int64_t position);
  void reserve(std::int64_t blocks);

  const KvWindowShape* shape_;
  std::int64_t block_tokens_;
  std::int64_t* store_;
  KvBlockPool* pool_;
  KvSequences* sequences_;
};

}  // namespace triphase
