#pragma once

// The bytes of KV that a job keeps, beside the book that says whose they are. The store does to the
// bytes what the book has noted, and ends sequences in all that it keeps for them. Everything else
// is the job of its parts, which callers use directly:
//   book()           which blocks each sequence has, and on which tier
//   memory()         the pools, and where each block's bytes are
//   partial_pages()  INT8: the pages of blocks that are not full yet
//   transposed_k()   which blocks have K^T on the device
//   prefetched()     blocks that were loaded to staging pages for the step to come
//   written()        host blocks whose cached copies are out of date
// Not thread safe.

#include <span>
#include <vector>

#include "memory/kv/batch_segment.h"
#include "memory/kv/kv_memory.h"
#include "memory/kv/kv_shape.h"
#include "memory/kv/partial_pages.h"
#include "memory/kv/prefetched_blocks.h"
#include "memory/kv/transposed_k.h"
#include "memory/kv/written_blocks.h"
#include "memory/memory_pool.h"
#include "memory/transfer/transfer_engine.h"
#include "scheduler/kv/kv_book.h"

namespace triphase {

class KvStore {
 public:
  // Takes its memory from the pools. Throws E-MEM-BUDGET. `host` and `transfers` may be null where
  // host_blocks is 0.
  KvStore(const KvShape& shape, const KvSizes& sizes, MemoryPool& device, MemoryPool* host,
          TransferEngine* transfers);
  ~KvStore();
  KvStore(const KvStore&) = delete;
  KvStore& operator=(const KvStore&) = delete;

  [[nodiscard]] KvBook& book() { return book_; }
  [[nodiscard]] const KvBook& book() const { return book_; }
  [[nodiscard]] const KvMemory& memory() const { return memory_; }
  [[nodiscard]] PartialPages& partial_pages() { return partial_pages_; }
  [[nodiscard]] const PartialPages& partial_pages() const { return partial_pages_; }
  [[nodiscard]] TransposedK& transposed_k() { return transposed_k_; }
  [[nodiscard]] const TransposedK& transposed_k() const { return transposed_k_; }
  // carry_out() has the host block of a prefetched block overwritten only after its transfer.
  [[nodiscard]] PrefetchedBlocks& prefetched() { return prefetched_; }
  [[nodiscard]] const PrefetchedBlocks& prefetched() const { return prefetched_; }
  [[nodiscard]] WrittenBlocks& written() { return written_; }
  [[nodiscard]] TransferEngine* transfers() const { return transfers_; }
  // The first block that the rows read in a layer with this sliding window (0: none), if it is on
  // the host.
  [[nodiscard]] std::int64_t first_host_read(const BatchSegment& rows, LayerId layer,
                                             std::int64_t window) const {
    if (!memory_.shape().sets.on_host(layer)) return book_.table(rows.sequence).size();
    return rows.first_block_in_window(window, memory_.shape().block_tokens);
  }

  // Does to the bytes what the book has noted, in that order. Copies go on after this.
  void carry_out(std::span<const KvMove> moves);
  // Waits for the copies under way, and finishes them in the book. Throws what made one fail.
  void settle();
  // Ends a sequence (KvBook::release) and what the store keeps for it.
  void release(SequenceId sequence);
  // For a job that ends in the middle: waits for every copy, failed or not, also for prefetched
  // blocks, and ends all sequences. Nothing is findable then.
  void give_up() noexcept;

 private:
  struct Copy {
    Ticket ticket;
    std::int32_t block = -1;
  };

  void wait_for_copies();

  TransferEngine* transfers_;
  KvBook book_;
  KvMemory memory_;
  PartialPages partial_pages_;
  TransposedK transposed_k_;
  WrittenBlocks written_;
  PrefetchedBlocks prefetched_;
  std::vector<Copy> copies_;
  KvMoves moves_;
  std::vector<TokenRun> runs_;
};

}  // namespace triphase
