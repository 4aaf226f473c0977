#pragma once

// Which tokens of blocks on the host have a copy in cache slots on the device, and which leave when
// others come. PURE bookkeeping; kv_store has the bytes. Every (layer, part of a token) has as many
// slots as any other, so that no layer's tokens push out those of the next: layers take turns, and
// a common set would lose each token just before it is used again.
//
// A token keeps its slot for one step beyond the last in which it was chosen, so that neither what
// is read in this step nor what was read in the last one is overwritten. Of the older ones those
// leave first that were chosen longest ago, and of these the ones chosen least often.

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
    std::int64_t blocks = 0;  // KvResidency::block_capacity()
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
  // A slot for a token that has none and is about to be brought; kNone: all are in use.
  [[nodiscard]] std::int32_t add(std::int64_t layer, std::int64_t part, BlockKey block,
                                 std::int64_t offset);

  // Recounts everything and throws an internal error on any contradiction (tests).
  void check() const;

 private:
  struct Slot {
    BlockKey block;  // index -1: nothing there yet
    std::int32_t offset = 0;
    std::int32_t uses = 0;  // steps in which it was chosen
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
  void list_leaving(Set& set) const;

  Shape shape_;
  std::int64_t step_ = 0;
  std::vector<Set> sets_;
  std::vector<Cached> blocks_;
};

}  // namespace triphase
