#pragma once

// The block table of one sequence: its blocks, the oldest first, and how many are on each tier.
// Places are ordered by age: the oldest blocks are recomputable, the next ones are on the host, the
// rest is on the device. A view that is valid until the book changes.

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "scheduler/kv/kv_block_pool.h"
#include "scheduler/kv/kv_sequence.h"

namespace triphase {

class KvBlockTable {
 public:
  KvBlockTable(const KvSequence& sequence, const KvBlockPool& pool)
      : sequence_(&sequence), pool_(&pool) {}

  [[nodiscard]] std::int64_t size() const { return std::ssize(sequence_->blocks); }
  // Of the sequence at its longest.
  [[nodiscard]] std::int64_t max_size() const { return sequence_->max_blocks; }
  // The block's number in the pool. Sequences that share the block have the same number.
  [[nodiscard]] std::int32_t number(std::int64_t position) const {
    TRIPHASE_CHECK(position >= 0 && position < size(), "a block that is not there");
    return sequence_->blocks[position];
  }
  [[nodiscard]] const KvBlock& operator[](std::int64_t position) const {
    return (*pool_)[number(position)];
  }
  // The number of one of the block's window blocks; kNone: the sequence's window does not reach it.
  [[nodiscard]] std::int32_t window(std::int64_t position, std::int64_t index) const {
    if (position < sequence_->first_window) return KvBlock::kNone;
    return pool_->windows(number(position))[index];
  }
  [[nodiscard]] const KvBlock& block(std::int32_t number) const { return (*pool_)[number]; }

  // Leading blocks at `place` or where older blocks are.
  [[nodiscard]] std::int64_t up_to(BlockPlace place) const;
  // Blocks by where they will be once all copies have finished.
  [[nodiscard]] std::int64_t recomputable() const { return up_to(BlockPlace::kRecomputable); }
  // On the host or recomputable.
  [[nodiscard]] std::int64_t offloaded() const { return up_to(BlockPlace::kOffloading); }
  [[nodiscard]] std::int64_t on_host() const { return offloaded() - recomputable(); }
  [[nodiscard]] std::int64_t on_device() const { return size() - offloaded(); }

  // Leading blocks whose hidden states are cached, or will be when they are computed.
  [[nodiscard]] std::int64_t with_inputs() const;
  // Leading blocks that other sequences have too.
  [[nodiscard]] std::int64_t shared() const;

 private:
  const KvSequence* sequence_;
  const KvBlockPool* pool_;
};

}  // namespace triphase
