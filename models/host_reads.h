#pragma once

// What one group of sequences reads, in one layer, of the blocks that are on the host: whole
// blocks, or of a block only the tokens that an attention method chose. Every block gets a staging
// page, in which its tokens have the same offsets as on the host; what is not asked for is not
// brought. PURE bookkeeping; kept between uses to reuse its memory.

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "memory/kv_store.h"
#include "models/attention/attention_method.h"

namespace triphase {

class HostReads {
 public:
  // Starts over for a layer; the first block gets `first_page`, the others the pages after it.
  // `per_head`: choices are lists by KV head.
  void begin(const KvStore& store, LayerId layer, std::int64_t first_page, bool per_head);

  // Both put staging pages into the sequence's page table where a block that is read is on the
  // host.
  void read_blocks(SequenceId sequence, std::int64_t first_block, std::span<PageId> table);
  void read_tokens(SequenceId sequence, const TokenChoice& choice, std::span<PageId> table);

  // The pieces that bring them; a gap of up to `gap_bytes` between two is brought along.
  struct Bytes {
    std::uint64_t blocks = 0;  // of blocks that come whole
    std::uint64_t tokens = 0;  // of chosen tokens, with the gaps
  };
  Bytes make_runs(std::int64_t gap_bytes, std::vector<TokenRun>& runs) const;

 private:
  struct Block {
    std::int64_t record = 0;  // of its first token
    bool whole = false;
  };

  // Index into blocks_ of a block of the sequence that is on the host; -1: it is on the device.
  std::int64_t block_of(SequenceId sequence, std::int64_t block, PageId& page);
  [[nodiscard]] std::span<std::uint8_t> cells_of(std::int64_t index) {
    return std::span(cells_).subspan(static_cast<std::size_t>(index * block_cells_),
                                     static_cast<std::size_t>(block_cells_));
  }

  const KvStore* store_ = nullptr;
  LayerId layer_;
  std::int64_t first_page_ = 0;
  std::int64_t parts_ = 1;  // of a token: KV heads that are chosen apart
  std::int64_t block_cells_ = 0;
  std::vector<Block> blocks_;  // by staging page
  std::vector<std::uint8_t> cells_;
  std::unordered_map<std::int32_t, std::int64_t> found_;  // by KvResidency::block_index
};

}  // namespace triphase
