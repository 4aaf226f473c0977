#pragma once

// Which blocks on the host one group of sequences reads as a whole, in one layer. Each gets a
// staging page, in which its tokens have the same offsets as on the host. Of recomputable blocks
// the saved layer inputs are brought. PURE bookkeeping; kept between uses to reuse its memory.

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "memory/kv/batch_segment.h"
#include "memory/kv/kv_store.h"

namespace triphase {

// A block that nothing stores: the layer inputs of its tokens come from `input_block` into its
// staging page, codes where its K will be and scales where its V will be, each token's at its
// offset; K and V are then projected.
struct KvRecompute {
  PageId page;
  PageId scale_page;                // INT8: of its scales
  std::int32_t input_block = -1;    // KvBlock::input_block
  std::int64_t first_position = 0;  // of its tokens
  std::uint64_t rope_key = 0;
};

class HostReads {
 public:
  // Starts over for a layer; the first block gets `first_page`, the others the pages after it, but
  // for those that were prefetched (KvStore::prefetched), which stay where they are.
  void begin(KvStore& store, LayerId layer, std::int64_t first_page);
  // Puts staging pages into the sequence's page table where a block is on the host.
  void read_block(const BatchSegment& rows, std::int64_t block, std::span<PageId> table);

  // The first page that no block got.
  [[nodiscard]] std::int64_t next_page() const { return next_page_; }
  // So many of the prefetched ranges, from the first on, must have arrived before what was read is
  // read.
  [[nodiscard]] std::int64_t prefetched_ranges() const { return prefetched_ranges_; }
  // What is recomputed.
  [[nodiscard]] const std::vector<KvRecompute>& recomputes() const { return recomputes_; }

  // What brings K and V, and what brings layer inputs.
  [[nodiscard]] std::span<const TokenRun> make_runs();
  [[nodiscard]] std::span<const BytePiece> make_pieces();

  // Counts blocks that were brought for a step to come.
  void count_prefetched(std::int64_t blocks) {
    bytes_.blocks += static_cast<std::uint64_t>(blocks) * KvStore::page_bytes(store_->shape());
  }
  // Since the start.
  struct Bytes {
    std::uint64_t blocks = 0;
    std::uint64_t inputs = 0;  // of layer inputs
  };
  [[nodiscard]] const Bytes& bytes() const { return bytes_; }

 private:
  struct Block {
    std::int32_t host_block = -1;
    PageId page;
    bool brought = false;  // before the step, or by its layer inputs
  };

  void add_block(const BatchSegment& rows, std::int64_t block, std::int32_t block_index);

  KvStore* store_ = nullptr;
  LayerId layer_;
  std::int64_t next_page_ = 0;
  std::int64_t prefetched_ranges_ = 0;
  std::vector<Block> blocks_;
  std::vector<KvRecompute> recomputes_;
  std::unordered_map<std::int32_t, std::size_t> found_;  // by KvBook::block_index
  std::vector<TokenRun> runs_;
  std::vector<BytePiece> pieces_;
  Bytes bytes_;
};

}  // namespace triphase
