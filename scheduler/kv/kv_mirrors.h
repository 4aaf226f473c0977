#pragma once

// Mirrors: host blocks that blocks on the device have from their beginning. What is written to such
// a block is written to its mirror too, so attention can read it on the host. A mirror belongs to
// one sequence and counts against its host reservation. Works on the book's pool and sequences.

#include <cstdint>

#include "scheduler/kv/kv_block_pool.h"
#include "scheduler/kv/kv_sequence.h"

namespace triphase {

class KvMirrors {
 public:
  KvMirrors(KvBlockPool& pool, KvSequences& sequences) : pool_(&pool), sequences_(&sequences) {}

  // The new block gets a mirror from what `owner` reserved on the host.
  void begin(std::int32_t number, SequenceId owner);
  // The host block stays with the block, but is no mirror any more.
  void end(std::int32_t number);
  // Frees the block's mirror, if it has one.
  void drop(std::int32_t number);
  void drop_all(SequenceId owner);

 private:
  KvBlockPool* pool_;
  KvSequences* sequences_;
};

}  // namespace triphase
