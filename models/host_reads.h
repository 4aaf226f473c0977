#pragma once

// What one group of sequences reads, in one layer, of the blocks that are on the host: whole
// blocks, or of a block only the tokens that an attention method chose. Every block gets a staging
// page, in which its tokens have the same offsets as on the host; what is not asked for is not
// brought. Chosen tokens go to slots of the store's token cache while it has some, and are not
// brought again while they stay there. Of recomputable blocks the same tokens' saved layer inputs
// are brought. What a method chooses only once some blocks are there comes in a second round.
// PURE bookkeeping; kept between uses to reuse its memory.

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "memory/kv/kv_store.h"
#include "models/attention/attention_method.h"
#include "models/forward_batch.h"

namespace triphase {

// A block that nothing stores: layer inputs of some of its tokens come from `input_block` into its
// staging page, codes where its K will be and scales where its V will be, each token's at its
// offset; their K and V are then projected.
struct KvRecompute {
  PageId page;
  PageId scale_page;                // INT8: of its scales
  std::int32_t input_block = -1;    // KvBlock::input_block
  std::int64_t first_position = 0;  // of its tokens
  std::uint64_t rope_key = 0;
  std::int32_t token_count = 0;  // in the list of tokens, in the order of the blocks
};

// One of them: its offset in the block, and the device slot where its K and V go.
struct KvRecomputeToken {
  std::int32_t offset = 0;
  std::int32_t slot = 0;
};

// All of one layer's reads.
struct KvRecomputes {
  std::vector<KvRecompute> blocks;
  std::vector<KvRecomputeToken> tokens;

  void clear() {
    blocks.clear();
    tokens.clear();
  }
};

class HostReads {
 public:
  // A step of the engine begins. `parts`: AttentionMethod::lists() of what chooses, else 1.
  void begin_step(KvStore& store, std::int64_t parts);
  // Starts over for a layer; the first block gets `first_page`, the others the pages after it, but
  // for those that were brought early (KvStore::early), which stay where they are.
  void begin(LayerId layer, std::int64_t first_page);
  // So many of the early ranges, from the first on, must have arrived before what was read is read.
  [[nodiscard]] std::int64_t early_ranges() const { return early_ranges_; }
  // The same of the early tokens (KvStore::early_tokens).
  [[nodiscard]] std::int64_t early_token_ranges() const { return early_token_ranges_; }
  // Counts blocks that were brought whole for a step to come.
  void count_early(std::int64_t blocks) {
    bytes_.blocks += static_cast<std::uint64_t>(blocks) * KvStore::page_bytes(store_->shape());
  }
  // And chosen tokens.
  void count_early_tokens(std::uint64_t bytes) { bytes_.tokens += bytes; }

  // What was read so far has arrived, as whole blocks; what follows is read beside it.
  void begin_second_round() { arrived_ = static_cast<std::int64_t>(blocks_.size()); }

  // All put staging pages into the sequence's page table where a block that is read is on the
  // host.
  void read_blocks(const BatchSegment& rows, std::int64_t first_block, std::span<PageId> table);
  void read_block(const BatchSegment& rows, std::int64_t block, std::span<PageId> table);
  // slots: for each chosen token the device slot where it is or will be, -1: as the table says.
  void read_tokens(const BatchSegment& rows, const TokenChoice& choice, std::span<PageId> table,
                   std::vector<std::int32_t>& slots);

  // The pieces that bring what this round read; a gap of up to `gap_bytes` between two is brought
  // along.
  void make_runs(std::int64_t gap_bytes, std::vector<TokenRun>& runs);
  // What of it is recomputed, and the pieces that bring its layer inputs.
  void make_recomputes(std::int64_t gap_bytes, KvRecomputes& recomputes,
                       std::vector<BytePiece>& pieces);

  // Since the start.
  struct Bytes {
    std::uint64_t blocks = 0;  // of blocks brought whole
    std::uint64_t tokens = 0;  // of chosen tokens brought, with the gaps
    std::uint64_t chosen = 0;  // of tokens that were on the host and chosen
    std::uint64_t cached = 0;  // of these, in the cache already, and not brought there for the step
    std::uint64_t inputs = 0;  // of layer inputs brought
  };
  [[nodiscard]] const Bytes& bytes() const { return bytes_; }

 private:
  struct Block {
    std::int64_t record = 0;  // of its first token
    PageId page;
    bool whole = false;
    bool early = false;            // it was brought before the step
    std::int32_t recomputed = -1;  // index into recomputes_
  };

  // Index into blocks_ of a block of the sequence that is on the host; -1: it is on the device.
  std::int64_t block_of(const BatchSegment& rows, std::int64_t block, PageId& page);
  // The same of one that is read for the first time.
  void add_block(const BatchSegment& rows, std::int64_t block, std::int32_t block_index);
  // Whether the block came in an earlier round; then its page is in `page`.
  [[nodiscard]] bool has_arrived(SequenceId sequence, std::int64_t block, PageId& page) const;
  // Device slot of one part of a token that is on the host, -1: by its page; makes it come if it
  // is not there.
  std::int32_t slot_of(const BatchSegment& rows, std::int64_t token, std::int64_t part,
                       PageId& page);
  // The tokens of one recomputable block.
  void add_tokens(std::size_t index, KvRecompute& block, std::vector<KvRecomputeToken>& tokens);
  void add_pieces(const KvRecompute& block, std::span<const KvRecomputeToken> tokens,
                  std::int64_t gap_bytes, std::vector<BytePiece>& pieces);

  KvStore* store_ = nullptr;
  LayerId layer_;
  std::int64_t parts_ = 1;  // of a token: KV heads that are chosen apart
  std::int64_t block_cells_ = 0;
  std::int64_t next_page_ = 0;
  std::int64_t early_ranges_ = 0;
  std::int64_t early_token_ranges_ = 0;
  std::vector<Block> blocks_;
  std::int64_t arrived_ = 0;  // of them, in earlier rounds
  std::vector<KvRecompute> recomputes_;
  std::vector<std::uint8_t> cells_;                       // [block][token][part]: is to come
  std::vector<std::int32_t> slots_;                       // to this slot; -1: to the staging page
  std::unordered_map<std::int32_t, std::int64_t> found_;  // by KvBook::block_index
  Bytes bytes_;
};

}  // namespace triphase
