#pragma once

// The host blocks that one group of sequences reads as a whole in one layer. Each block gets a
// staging page, in which its tokens have the same offsets as on the host. For a recomputable block
// its cached hidden states are loaded instead. PURE bookkeeping; kept between uses to reuse its
// memory.

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "memory/kv/batch_segment.h"
#include "memory/kv/kv_store.h"

namespace triphase {

// A block whose K and V nothing stores. The cached hidden states of its tokens are loaded from
// `input_block` to its staging page: codes where its K will be, scales where its V will be, each
// token's at its offset. K and V are then projected from them.
struct KvRecompute {
  PageId page;
  PageId scale_page;                // INT8: of its scales
  std::int32_t input_block = -1;    // KvBlock::input_block
  std::int64_t first_position = 0;  // of its tokens
  std::uint64_t rope_key = 0;
};

class HostReads {
 public:
  // Starts over for a layer. The first block gets `first_page`, the others the pages after it;
  // blocks that were prefetched (KvStore::prefetched) keep their pages.
  void begin(KvStore& store, LayerId layer, std::int64_t first_page);
  // Puts staging pages into the sequence's page table where a block is on the host.
  void read_block(const BatchSegment& rows, std::int64_t block, std::span<PageId> table);

  // The first page that no block got.
  [[nodiscard]] std::int64_t next_page() const { return next_page_; }
  // The number of leading prefetched ranges whose transfers must finish before these blocks are
  // attended.
  [[nodiscard]] std::int64_t prefetched_ranges() const { return prefetched_ranges_; }
  // The blocks that are recomputed.
  [[nodiscard]] const std::vector<KvRecompute>& recomputes() const { return recomputes_; }

  // The transfers of K and V, and the transfers of cached hidden states.
  [[nodiscard]] std::span<const TokenRun> make_runs();
  [[nodiscard]] std::span<const BytePiece> make_pieces();

  // Counts blocks that were prefetched for a later step.
  void count_prefetched(std::int64_t blocks) {
    bytes_.blocks += static_cast<std::uint64_t>(blocks) * store_->memory().shape().page_bytes();
  }
  // Since the start.
  struct Bytes {
    std::uint64_t blocks = 0;
    std::uint64_t inputs = 0;  // of cached hidden states
  };
  [[nodiscard]] const Bytes& bytes() const { return bytes_; }

 private:
  struct Block {
    std::int32_t host_block = -1;
    PageId page;
    bool brought = false;  // before the step, or by its hidden states
  };

  void add_block(const BatchSegment& rows, std::int64_t block);

  KvStore* store_ = nullptr;
  LayerId layer_;
  std::int64_t next_page_ = 0;
  std::int64_t prefetched_ranges_ = 0;
  std::vector<Block> blocks_;
  std::vector<KvRecompute> recomputes_;
  std::unordered_map<std::int32_t, std::size_t> found_;  // by KvBlockTable::number
  std::vector<TokenRun> runs_;
  std::vector<BytePiece> pieces_;
  Bytes bytes_;
};

}  // namespace triphase
