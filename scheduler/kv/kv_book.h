#pragma once

// The one book of KV: which place holds which block of which sequence. Engine, placement policies
// and simulator run it; memory/kv/kv_store keeps the bytes behind it. PURE bookkeeping: no bytes,
// no device, not thread safe.
//
// Tokens are grouped into blocks of `block_tokens` consecutive positions, all layers together. On
// the device a block has one slab, whose pages are those of its layers; on the host it has one host
// block. A block whose layer inputs X are saved (it has an input block) may give up its host block:
// it is then recomputable. A block is full when all its positions are written. Within a sequence
// places are ordered by age: the oldest blocks are recomputable, the next ones are on the host, the
// rest is on the device. Full blocks of equal token prefixes are shared and counted by references;
// prompt blocks stay findable after their sequences have ended, until their place is needed.
//
// A sequence is admitted with a reservation of blocks on each tier that others cannot take; beyond
// it, it grows into what nobody holds or has reserved.
//
// A block that moves holds a place on both tiers until the move is finished, and is read where it
// was. What is free counts such a block where it goes, so that a decision can plan with places that
// become free; who takes such a place waits for the moves first.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "scheduler/kv/kv_tier.h"
#include "scheduler/kv/prefix_index.h"

namespace triphase {

// In the order of a sequence's blocks, the oldest first.
enum class BlockPlace : std::uint8_t {
  kRecomputable,  // nowhere: K and V come from the saved layer inputs
  kHost,
  kOffloading,  // on its way to the host, read on the device
  kLoading,     // on its way to the device, read on the host
  kDevice,
};

struct KvBlock {
  static constexpr std::int32_t kNone = -1;

  std::uint64_t id = 0;  // no other block's ever; 0: none has this number now
  BlockPlace place = BlockPlace::kDevice;
  bool copied = false;     // host_block has what the slab has
  bool preempted = false;  // of a sequence that waits on the host: nobody shares it
  std::int32_t references = 0;
  std::int32_t slab = kNone;
  std::int32_t host_block = kNone;
  std::int32_t input_block = kNone;   // where its layer inputs are saved
  std::int32_t mirrored_for = kNone;  // on the device: the sequence that reserved host_block

  // Whether it is read on the device.
  [[nodiscard]] bool on_device() const {
    return place == BlockPlace::kDevice || place == BlockPlace::kOffloading;
  }
  // The host block that what is written to this block is written to as well.
  [[nodiscard]] std::int32_t mirror() const { return mirrored_for == kNone ? kNone : host_block; }
  // The host block that holds all that is written of the block, wherever it is read.
  [[nodiscard]] std::int32_t host_copy() const {
    const bool there = copied || place == BlockPlace::kHost || place == BlockPlace::kLoading;
    return there ? host_block : kNone;
  }
};

struct KvSequence {
  bool live = false;
  std::int64_t tokens = 0;
  std::int64_t reserved_device = 0;  // blocks still to be taken
  std::int64_t reserved_host = 0;
  std::int64_t reserved_inputs = 0;
  std::int64_t mirrors = 0;       // of reserved_host, those that blocks on the device have
  std::int64_t max_blocks = 0;    // at its longest
  std::int64_t input_blocks = 0;  // leading ones whose layer inputs are saved
  std::int64_t published_blocks = 0;
  std::uint64_t context_key = 0;
  std::vector<std::int32_t> blocks{};  // their numbers
};

// What has to happen to bytes for the book to be true, in this order.
struct KvMove {
  enum class Kind : std::uint8_t {
    kOffload,   // copy the slab to the host block
    kMirrored,  // the same, but the host block has it already
    kLoad,      // copy the host block to the slab
    kGiveUp,    // the host block may be overwritten after this
    kWait,      // all copies so far must have arrived before what follows
  };
  Kind kind = Kind::kWait;
  std::int32_t block = KvBlock::kNone;
  std::int32_t slab = KvBlock::kNone;
  std::int32_t host_block = KvBlock::kNone;

  friend bool operator==(const KvMove&, const KvMove&) = default;
};
using KvMoves = std::vector<KvMove>;

class KvBook {
 public:
  struct Shape {
    std::int64_t block_tokens = 32;
    // Blocks of all layers.
    std::int64_t device_blocks = 0;
    std::int64_t host_blocks = 0;
    std::int64_t input_blocks = 0;  // of saved layer inputs
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

  explicit KvBook(const Shape& shape);
  // Makes room for all blocks there can ever be, so that append() allocates nothing.
  void reserve();

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

  // Leading blocks of the prompt that are there, at most `most`: those that running sequences hold,
  // and after them those on the device that only wait to be found.
  struct Prefix {
    std::vector<std::int32_t> blocks;
    std::int64_t held = 0;
    std::int64_t away = 0;  // on the host or recomputable
  };
  [[nodiscard]] Prefix find_prefix(std::span<const TokenId> prompt, std::uint64_t context_key,
                                   std::optional<std::int64_t> most = {}) const;

  // Tokens that append() can take before the moves under way are finished: within the reservation,
  // and beyond it from blocks nobody reserved.
  [[nodiscard]] std::int64_t append_room(SequenceId sequence) const;
  // Makes places for the next `count` tokens of the sequence, at most append_room().
  void append(SequenceId sequence, std::int64_t count);

  // Says that the KV of the sequence's first `tokens.size()` tokens is written; its blocks that
  // became full are findable by their tokens. Where an equal block is findable already, the
  // sequence goes on with that one and gives its own back (the same tokens make the same KV).
  void publish(SequenceId sequence, std::span<const TokenId> tokens);

  // Ends a sequence; its unshared, unfindable blocks become free.
  void release(SequenceId sequence, KvMoves& moves);
  // Ends every sequence and move of a job that stopped in the middle. Nothing is findable then.
  void give_up();

  // The oldest blocks on the device go to the host.
  void offload(SequenceId sequence, std::int64_t count, KvMoves& moves);
  // The youngest blocks on the host come back.
  void load(SequenceId sequence, std::int64_t count, KvMoves& moves);
  // The oldest host blocks, whose layer inputs are saved, become recomputable.
  void discard(SequenceId sequence, std::int64_t count, KvMoves& moves);
  // All blocks go to the host, a partial one too, until resume() brings the `count` youngest back.
  // Reservations are dropped. The sequence must share nothing.
  void preempt(SequenceId sequence, KvMoves& moves);
  void resume(SequenceId sequence, std::int64_t count, KvMoves& moves);

  // All copies have arrived.
  void finish_moves();
  [[nodiscard]] bool moving() const { return !moving_.empty(); }

  [[nodiscard]] const KvSequence& sequence(SequenceId id) const;
  [[nodiscard]] const KvBlock& block(std::int32_t index) const {
    return blocks_[static_cast<std::size_t>(index)];
  }
  // Number of a sequence's block, below block_capacity(), the same for all that share it.
  [[nodiscard]] std::int32_t block_index(SequenceId sequence, std::int64_t block) const;
  [[nodiscard]] const KvBlock& block(SequenceId sequence, std::int64_t position) const {
    return block(block_index(sequence, position));
  }
  // The id of the block that has this number now; 0: none has it.
  [[nodiscard]] std::uint64_t id_at(std::int32_t index) const {
    return static_cast<std::size_t>(index) < blocks_.size() ? block(index).id : 0;
  }
  [[nodiscard]] std::int64_t block_capacity() const {
    return shape_.device_blocks + shape_.host_blocks + shape_.input_blocks;
  }

  [[nodiscard]] std::int64_t tokens(SequenceId id) const { return sequence(id).tokens; }
  [[nodiscard]] std::int64_t blocks(SequenceId id) const {
    return static_cast<std::int64_t>(sequence(id).blocks.size());
  }
  // Leading blocks of the sequence at `place` or where older blocks are.
  [[nodiscard]] std::int64_t blocks_up_to(SequenceId sequence, BlockPlace place) const;
  // Blocks by where they will be once the moves are finished.
  [[nodiscard]] std::int64_t recomputable_blocks(SequenceId sequence) const {
    return blocks_up_to(sequence, BlockPlace::kRecomputable);
  }
  [[nodiscard]] std::int64_t away_blocks(SequenceId sequence) const {
    return blocks_up_to(sequence, BlockPlace::kOffloading);
  }
  [[nodiscard]] std::int64_t host_blocks(SequenceId sequence) const {
    return away_blocks(sequence) - recomputable_blocks(sequence);
  }
  [[nodiscard]] std::int64_t device_blocks(SequenceId sequence) const {
    return blocks(sequence) - away_blocks(sequence);
  }
  // Leading blocks whose layer inputs are saved, or will be when they are computed.
  [[nodiscard]] std::int64_t input_blocks(SequenceId sequence) const;
  // Leading blocks that other sequences hold too.
  [[nodiscard]] std::int64_t shared_blocks(SequenceId sequence) const;

  // Blocks of each tier: free, used, promised.
  [[nodiscard]] const KvTier& device() const { return device_; }
  [[nodiscard]] const KvTier& host() const { return host_; }
  [[nodiscard]] const KvTier& inputs() const { return inputs_; }
  [[nodiscard]] const Shape& shape() const { return shape_; }

  // Recounts everything from scratch and throws an internal error on any contradiction (tests).
  void check() const;

 private:
  static constexpr std::int32_t kNone = KvBlock::kNone;

  [[nodiscard]] KvSequence& at(SequenceId id);
  [[nodiscard]] KvBlock& own_block(SequenceId sequence, std::int64_t position) {
    return blocks_[static_cast<std::size_t>(block_index(sequence, position))];
  }
  SequenceId new_sequence();
  std::int32_t new_block(KvSequence& payer);
  void take_slab(KvBlock& block, KvSequence& payer);
  // Evicts until the tier has a place.
  [[nodiscard]] std::int32_t take(KvTier& tier);
  void reference(std::int32_t index);
  void dereference(std::int32_t index);
  void free_block(std::int32_t index);
  void evict_one_block();
  // A findable block that nobody holds any more, or that somebody holds again.
  void count_evictable(const KvBlock& block, std::int64_t change);
  void drop_reservations(SequenceId id);
  void drop_unheld_inputs(KvBlock& block);
  void take_over_inputs(KvBlock& from, KvBlock& to);

  void offload_block(KvSequence& payer, std::int32_t index, KvMoves& moves);
  void load_block(KvSequence& payer, std::int32_t index, KvMoves& moves);
  void check_no_hole(SequenceId id, std::int64_t first, std::int64_t end) const;
  void wait(KvMoves& moves);
  void begin_mirror(KvBlock& block, SequenceId payer);
  void end_mirror(KvBlock& block);  // its host block stays with it
  void drop_mirror(KvBlock& block);
  void drop_mirrors(SequenceId payer);

  void check_sequences() const;
  void check_blocks() const;

  Shape shape_;
  KvTier device_;
  KvTier host_;
  KvTier inputs_;
  KvTier numbers_;  // of blocks
  PrefixIndex index_;
  std::vector<KvBlock> blocks_;
  std::vector<KvSequence> sequences_;
  std::vector<std::int32_t> free_sequences_;
  std::vector<std::int32_t> moving_;  // blocks on their way
  std::uint64_t last_block_id_ = 0;
};

}  // namespace triphase
