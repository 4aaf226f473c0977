#pragma once

// Which tokens of blocks on the host have a copy in cache slots on the device, and which leave when
// others come. PURE bookkeeping; kv_store has the bytes. Every (layer, part of a token) has as many
// slots as any other, so that no layer's tokens push out those of the next: layers take turns, and
// a common set would lose each token just before it is used again.
//
// A token keeps its slot for one step beyond the last in which it was chosen, so that neither what
// is read in this step nor what was read in the last one is overwritten. Of the older ones those
// leave first that were chosen longest ago, and of these the ones chosen least often.
//
// What the next step will choose can be told before it begins: it stays as if that step had chosen
// it, and what is missing can be brought early.

#include <cstdint>
#include <vector>

namespace triphase {

class TokenCache {
 public:
  struct Shape {
    std::int64_t layers = 0;
    std::int64_t parts = 1;  // of a token: KV heads that are chosen apart
    std::int64_t block_tokens = 0;
    std::int64_t slots = 0;   // of each (layer, part)
    std::int64_t blocks = 0;  // KvBook::block_capacity()
  };
  // A block by its place in the bookkeeping, and by what tells it from others that were there.
  struct BlockKey {
    std::int32_t index = -1;
    std::uint64_t id = 0;
  };
  static constexpr std::int32_t kNone = -1;

  TokenCache() = default;
  explicit TokenCache(const Shape& shape);

  [[nodiscard]] bool empty() const { return shape_.slots == 0; }
  [[nodiscard]] const Shape& shape() const { return shape_; }

  // Layers follow each other within a step.
  void begin_step() { ++step_; }

  // Slot of a token that is chosen in this step, counted within its (layer, part); kNone: it has
  // none.
  [[nodiscard]] std::int32_t find(std::int64_t layer, std::int64_t part, BlockKey block,
                                  std::int64_t offset);
  // The same, and whether it was brought before this step began and is asked for the first time.
  struct Hit {
    std::int32_t slot = kNone;
    bool early = false;
  };
  [[nodiscard]] Hit look_up(std::int64_t layer, std::int64_t part, BlockKey block,
                            std::int64_t offset);
  // A slot for a token that has none and is about to be brought; kNone: all are in use.
  [[nodiscard]] std::int32_t add(std::int64_t layer, std::int64_t part, BlockKey block,
                                 std::int64_t offset);

  // Whether a token that the step after this one will choose has a slot; it keeps it for that step.
  [[nodiscard]] bool keep_for_next(std::int64_t layer, std::int64_t part, BlockKey block,
                                   std::int64_t offset);
  // A slot for one that has none, which this step no longer reads; kNone: all are in use. To be
  // asked once all that stays has been told.
  [[nodiscard]] std::int32_t add_for_next(std::int64_t layer, std::int64_t part, BlockKey block,
                                          std::int64_t offset);
  // Tokens brought early that no step has asked for.
  [[nodiscard]] std::int64_t early() const { return early_; }
  // The step that it was brought for is past: a token like others.
  void end_early(std::int64_t layer, std::int64_t part, std::int32_t slot);
  // The slot holds nothing: what should have come there did not.
  void forget(std::int64_t layer, std::int64_t part, std::int32_t slot);

  // Recounts everything and throws an internal error on any contradiction (tests).
  void check() const;

 private:
  struct Slot {
    BlockKey block;  // index -1: nothing there yet
    std::int32_t offset = 0;
    std::int32_t uses = 0;  // steps in which it was chosen, or that were said to choose it
    bool early = false;
    std::int64_t last_step = -2;
  };
  // The slots of one (layer, part).
  struct Set {
    std::vector<Slot> slots;
    std::vector<std::int32_t> leaving;  // may be taken in leaving_step, the first one last
    std::int64_t leaving_step = -1;
  };
  // Slots of a block's tokens, [layer][part][offset].
  struct Cached {
    std::uint64_t id = 0;
    std::vector<std::int32_t> slots;
  };

  [[nodiscard]] std::size_t cell(std::int64_t layer, std::int64_t part, std::int64_t offset) const {
    return static_cast<std::size_t>((layer * shape_.parts + part) * shape_.block_tokens + offset);
  }
  [[nodiscard]] Set& set_of(std::int64_t layer, std::int64_t part) {
    return sets_[static_cast<std::size_t>(layer * shape_.parts + part)];
  }
  // The token's slot, which the step has chosen; null: it has none.
  Slot* find_for(std::int64_t step, std::int64_t layer, std::int64_t part, BlockKey block,
                 std::int64_t offset, std::int32_t& at);
  std::int32_t add_for(std::int64_t step, std::int64_t layer, std::int64_t part, BlockKey block,
                       std::int64_t offset);
  // Lists what may leave when `step` chooses.
  static void list_leaving(Set& set, std::int64_t step);
  void unlist(std::int64_t layer, std::int64_t part, const Slot& slot);
  void set_early(Slot& slot, bool early) {
    early_ += static_cast<std::int64_t>(early) - static_cast<std::int64_t>(slot.early);
    slot.early = early;
  }

  Shape shape_;
  std::int64_t step_ = 0;
  std::int64_t early_ = 0;
  std::vector<Set> sets_;
  std::vector<Cached> blocks_;
};

}  // namespace triphase
