#pragma once

// Which place holds which token's K and V. PURE bookkeeping: no bytes, no device, not thread safe.
//
// A token is keyed by (sequence, layer, head group, token) as DESIGN section 3 has it. Tokens are
// grouped into blocks of `block_tokens` consecutive positions. A block at home on the device has
// one page per layer, from a common set of device pages; one at home on the host has one host
// block, which holds all layers. A block whose layer inputs are saved (it has an input block) may
// give up its host block: it is then recomputable. A block is closed when all its positions are
// written; only closed blocks move. Closed blocks of equal token prefixes are shared: blocks are
// reference-counted, and closed prompt blocks stay findable (and evictable, least recently used
// first) after their sequences have ended.
//
// A sequence is admitted with a reservation of blocks on each tier that others cannot take; beyond
// it, it grows into what nobody holds or has reserved.

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"

namespace triphase {

// Where a block's bytes are valid. While a block moves it is read where it was.
// kRecomputable: nowhere; K and V come from the saved layer inputs.
enum class BlockPlace : std::uint8_t { kDevice, kLeaving, kHost, kReturning, kRecomputable };

class KvResidency {
 public:
  struct Shape {
    std::int64_t layers = 0;
    std::int64_t block_tokens = 32;
    std::int64_t device_pages = 0;  // pages of one layer each
    std::int64_t host_blocks = 0;   // blocks of all layers
    std::int64_t input_blocks = 0;  // of saved layer inputs, all layers
    // Blocks of a sequence with a host reservation have their host block from their beginning: what
    // is written to them on the device is written there too.
    bool mirrored = false;
  };

  // In blocks, beyond those the sequence shares. Nothing for the device: all it will ever need.
  struct Reservation {
    std::optional<std::int64_t> device_blocks;
    std::int64_t host_blocks = 0;
    std::int64_t input_blocks = 0;                   // leading blocks whose layer inputs are saved
    std::optional<std::int64_t> most_shared_blocks;  // share no more than these
  };

  explicit KvResidency(const Shape& shape);

  // A new sequence whose KV depends on its tokens and on `context_key` (for example the RoPE base
  // chosen at admission: equal tokens under different keys are never shared). It will grow to at
  // most `max_tokens`; what `reservation` says is set aside now.
  // `prompt` finds shareable blocks: at most prompt.size() - 1 tokens, since the last one must be
  // computed for its logits. Returns no id when the reservation does not fit; nothing changed then.
  struct Admission {
    SequenceId sequence;             // invalid: does not fit now
    std::int64_t shared_tokens = 0;  // leading tokens whose KV is already there
  };
  [[nodiscard]] Admission admit(std::span<const TokenId> prompt, std::int64_t max_tokens,
                                std::uint64_t context_key, const Reservation& reservation);
  [[nodiscard]] Admission admit(std::span<const TokenId> prompt, std::int64_t max_tokens,
                                std::uint64_t context_key) {
    return admit(prompt, max_tokens, context_key, {});
  }

  // Leading blocks of the prompt that are there: held by running sequences, and after those the
  // ones in device pages that only wait to be found.
  struct Prefix {
    std::vector<std::int32_t> blocks;  // block indices
    std::int64_t held = 0;
  };
  [[nodiscard]] Prefix find_prefix(std::span<const TokenId> prompt,
                                   std::uint64_t context_key) const;

  // Tokens that append() can take now: within the reservation, and beyond it from pages nobody
  // reserved.
  [[nodiscard]] std::int64_t append_room(SequenceId sequence) const;

  // Makes places for the next `count` tokens of the sequence, at most append_room().
  void append(SequenceId sequence, std::int64_t count);

  // A closed block (with `open`: of a sequence that is suspended, also its last one) starts to
  // move. From then on and until the finish_ call it counts on both
  // tiers and is read where it was. `pages` are those on the device, by layer.
  struct Move {
    std::int32_t host_block = -1;
    std::span<const PageId> pages;
    bool there = false;  // nothing to copy: the block was mirrored
  };
  [[nodiscard]] Move begin_offload(SequenceId sequence, std::int64_t block, bool open = false);
  void finish_offload(SequenceId sequence, std::int64_t block);
  [[nodiscard]] Move begin_reload(SequenceId sequence, std::int64_t block);
  void finish_reload(SequenceId sequence, std::int64_t block);
  // A host block whose layer inputs are saved is dropped; from now on it is recomputable.
  void discard(SequenceId sequence, std::int64_t block);
  // The move failed: the block stays where it was.
  void cancel_move(SequenceId sequence, std::int64_t block);

  [[nodiscard]] std::int64_t blocks(SequenceId sequence) const;
  // Blocks reserved and not taken yet.
  [[nodiscard]] std::int64_t reserved_blocks(SequenceId sequence) const {
    return at(sequence).reserved_pages / shape_.layers;
  }
  [[nodiscard]] std::int64_t reserved_host_blocks(SequenceId sequence) const {
    return at(sequence).reserved_host;
  }
  // What is reserved and not taken is for others again.
  void drop_reservations(SequenceId sequence);
  // Whether other sequences hold the block too.
  [[nodiscard]] bool shared(SequenceId sequence, std::int64_t block) const {
    return block_at(sequence, block).references > 1;
  }
  [[nodiscard]] BlockPlace block_place(SequenceId sequence, std::int64_t block) const;
  // Of a block that is on the host or moving; -1 otherwise.
  [[nodiscard]] std::int32_t host_block(SequenceId sequence, std::int64_t block) const;
  // The host block that what is written to this block is written to as well; -1: it is not.
  [[nodiscard]] std::int32_t mirror(SequenceId sequence, std::int64_t block) const {
    const Block& at = block_at(sequence, block);
    return at.mirrored_for == kNone ? -1 : at.host_block;
  }
  // The host block that holds all that is written of the block, wherever it is read; -1: none does.
  [[nodiscard]] std::int32_t host_copy(SequenceId sequence, std::int64_t block) const;
  // Where the block's layer inputs are saved; -1: nowhere.
  [[nodiscard]] std::int32_t input_block(SequenceId sequence, std::int64_t block) const {
    return block_at(sequence, block).input_block;
  }
  // Leading blocks whose layer inputs are saved, or will be when they are computed.
  [[nodiscard]] std::int64_t input_blocks(SequenceId sequence) const;
  // Number of a block, below block_capacity(), the same for all sequences that share it.
  [[nodiscard]] std::int32_t block_index(SequenceId sequence, std::int64_t block) const;
  // The same for a block's whole life, and no other block's ever.
  [[nodiscard]] std::uint64_t block_id(SequenceId sequence, std::int64_t block) const {
    return block_at(sequence, block).id;
  }
  // The id of the block that has this number now; 0: none has it.
  [[nodiscard]] std::uint64_t id_at(std::int32_t block_index) const {
    const Block& block = blocks_[static_cast<std::size_t>(block_index)];
    return block.live ? block.id : 0;
  }
  [[nodiscard]] std::int64_t block_capacity() const {
    return static_cast<std::int64_t>(blocks_.size());
  }

  // Says that the KV of the sequence's first `tokens.size()` tokens is written; its newly closed
  // blocks become findable by their tokens. Where an equal block is findable already, the sequence
  // goes on with that one and gives its own back (the same tokens make the same KV).
  void publish(SequenceId sequence, std::span<const TokenId> tokens);

  // Ends a sequence; its unshared, unfindable blocks become free.
  void release(SequenceId sequence);

  [[nodiscard]] std::int64_t tokens(SequenceId sequence) const;
  // The page table of a layer: a page per block, none for blocks that are not on the device.
  [[nodiscard]] std::span<const PageId> pages(SequenceId sequence, LayerId layer) const;

  [[nodiscard]] std::int64_t free_pages() const { return static_cast<std::int64_t>(free_.size()); }
  [[nodiscard]] std::int64_t used_pages() const { return shape_.device_pages - free_pages(); }
  [[nodiscard]] std::int64_t evictable_pages() const { return evictable_blocks_ * shape_.layers; }
  [[nodiscard]] std::int64_t reserved_pages() const { return reserved_; }
  [[nodiscard]] std::int64_t peak_pages() const { return peak_; }
  // Host blocks that a new move could take.
  [[nodiscard]] std::int64_t free_host_blocks() const {
    return static_cast<std::int64_t>(free_host_.size()) + evictable_host_blocks_ -
           (reserved_host_ - mirrors_);
  }
  // Held by sequences, moves under way included.
  [[nodiscard]] std::int64_t used_host_blocks() const {
    return shape_.host_blocks - static_cast<std::int64_t>(free_host_.size()) -
           evictable_host_blocks_;
  }
  // Input blocks that nobody has or is promised.
  [[nodiscard]] std::int64_t free_input_blocks() const {
    return static_cast<std::int64_t>(free_inputs_.size()) + evictable_inputs_ - reserved_inputs_;
  }
  [[nodiscard]] std::int64_t peak_input_blocks() const { return peak_inputs_; }
  [[nodiscard]] std::int64_t peak_host_blocks() const { return peak_host_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }

  // Recounts everything from scratch and throws an internal error on any contradiction (tests).
  void check() const;

 private:
  using BlockIndex = std::int32_t;
  static constexpr BlockIndex kNoBlock = -1;

  static constexpr std::int32_t kNone = -1;

  struct Block {
    std::uint64_t id = 0;
    std::vector<PageId> pages;  // by layer; empty: not on the device
    BlockPlace place = BlockPlace::kDevice;
    std::int32_t host_block = kNone;
    std::int32_t input_block = kNone;
    std::int32_t mirrored_for = kNone;  // on the device: whose reservation host_block is of
    bool copied = false;                // host_block has what is in the pages
    std::int32_t references = 0;
    bool findable = false;
    bool live = false;
    BlockIndex parent = kNoBlock;  // findable: the block before it
    std::uint64_t key = 0;         // findable: its hash
    std::uint64_t context_key = 0;
    std::vector<TokenId> tokens;            // findable: for exact comparison
    std::int32_t children = 0;              // findable blocks that name this as parent
    std::list<BlockIndex>::iterator lru{};  // findable and unreferenced
  };

  struct Sequence {
    bool live = false;
    std::int64_t tokens = 0;
    std::int64_t reserved_pages = 0;   // still to be taken
    std::int64_t reserved_host = 0;    // host blocks still to be taken
    std::int64_t mirrors = 0;          // of reserved_host, those that blocks on the device have
    std::int64_t max_blocks = 0;       // at its longest
    std::int64_t input_blocks = 0;     // leading ones whose layer inputs are saved
    std::int64_t reserved_inputs = 0;  // input blocks still to be taken
    std::uint64_t context_key = 0;
    std::int64_t published_blocks = 0;
    std::vector<BlockIndex> blocks;
    std::vector<std::vector<PageId>> pages;  // by layer: the page table
  };

  [[nodiscard]] BlockIndex find_child(BlockIndex parent, std::uint64_t context_key,
                                      std::span<const TokenId> tokens) const;
  [[nodiscard]] std::uint64_t hash(BlockIndex parent, std::uint64_t context_key,
                                   std::span<const TokenId> tokens) const;
  void reference(BlockIndex index);
  void dereference(BlockIndex index);
  void make_unfindable(BlockIndex index);
  void free_block(BlockIndex index);
  void take_input_block(BlockIndex index, Sequence& sequence);
  void drop_unheld_inputs(BlockIndex index);
  void take_over_inputs(BlockIndex from, BlockIndex to);
  // A findable block that nobody holds any more, or that somebody holds again.
  void count_evictable(const Block& block, std::int64_t change);
  void evict_one_block();
  void take_pages(BlockIndex index, SequenceId payer);
  [[nodiscard]] std::int32_t take_host_block();
  void begin_mirror(BlockIndex index, SequenceId payer);
  void end_mirror(Block& block);  // its host block stays with it
  void drop_mirror(Block& block);
  void drop_mirrors(SequenceId payer);
  BlockIndex new_block(SequenceId payer);
  void update_page_tables(BlockIndex index);
  [[nodiscard]] Block& block_at(SequenceId sequence, std::int64_t block);
  [[nodiscard]] const Block& block_at(SequenceId sequence, std::int64_t block) const;
  void push_block(Sequence& sequence, BlockIndex index) const;
  Sequence& at(SequenceId id);
  [[nodiscard]] const Sequence& at(SequenceId id) const;

  Shape shape_;
  std::vector<PageId> free_;
  std::int64_t reserved_ = 0;
  std::int64_t peak_ = 0;
  std::int64_t evictable_blocks_ = 0;  // with pages
  std::vector<std::int32_t> free_host_;
  std::int64_t reserved_host_ = 0;
  std::int64_t mirrors_ = 0;
  std::int64_t peak_host_ = 0;
  std::int64_t evictable_host_blocks_ = 0;
  std::vector<std::int32_t> free_inputs_;
  std::int64_t reserved_inputs_ = 0;
  std::int64_t evictable_inputs_ = 0;
  std::int64_t peak_inputs_ = 0;
  std::vector<Block> blocks_;
  std::vector<BlockIndex> free_blocks_;
  std::uint64_t last_block_id_ = 0;
  std::vector<Sequence> sequences_;
  std::vector<std::int32_t> free_sequences_;
  std::unordered_multimap<std::uint64_t, BlockIndex> index_;
  std::list<BlockIndex> lru_;  // front: evict first
};

}  // namespace triphase
