#pragma once

// Counts the places of the tiers: slabs on the device, host blocks, input blocks. PURE.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "scheduler/kv/kv_block.h"

namespace triphase {

// The places of one tier: which are taken, how many are reserved, and how many belong to blocks
// that no sequence refers to. Uses memory for the most places that were ever taken, not for all.
class KvTier {
 public:
  explicit KvTier(std::int64_t places) : places_(places) {}
  // No give_back() allocates from here on.
  void preallocate() { returned_.reserve(static_cast<std::size_t>(places_)); }

  // The next place; has_place() says whether there is one.
  [[nodiscard]] std::int32_t take() {
    TRIPHASE_CHECK(has_place(), "a tier ran out of places");
    std::int32_t place = static_cast<std::int32_t>(next_);
    if (returned_.empty()) {
      ++next_;
    } else {
      place = returned_.back();
      returned_.pop_back();
    }
    peak_ = std::max(peak_, used());
    return place;
  }
  void give_back(std::int32_t place) { returned_.push_back(place); }
  [[nodiscard]] bool has_place() const { return taken() < places_; }

  // Changes the number of places that are set aside for sequences; others cannot take them.
  void reserve(std::int64_t places) { reserved_ += places; }
  // Changes the number of places whose blocks can be evicted: they count as free.
  void count_evictable(std::int64_t change) { evictable_ += change; }
  // Changes the number of places whose blocks are being copied to another tier: they count as free,
  // but cannot be taken before the copies have finished.
  void count_moving(std::int64_t change) { moving_ += change; }

  [[nodiscard]] std::int64_t places() const { return places_; }
  [[nodiscard]] std::int64_t taken() const { return next_ - std::ssize(returned_); }
  // Taken by blocks of sequences, those being copied to another tier included.
  [[nodiscard]] std::int64_t used() const { return taken() - evictable_; }
  [[nodiscard]] std::int64_t peak() const { return peak_; }
  [[nodiscard]] std::int64_t peak_taken() const { return next_; }  // evictable ones included
  [[nodiscard]] std::int64_t reserved() const { return reserved_; }
  [[nodiscard]] std::int64_t evictable() const { return evictable_; }
  [[nodiscard]] std::int64_t moving() const { return moving_; }
  // Neither used nor reserved.
  [[nodiscard]] std::int64_t free() const { return places_ - used() - reserved_ + moving_; }

 private:
  std::int64_t places_;
  std::int64_t next_ = 0;  // places from here on were never taken
  std::vector<std::int32_t> returned_;
  std::int64_t reserved_ = 0;
  std::int64_t evictable_ = 0;
  std::int64_t moving_ = 0;
  std::int64_t peak_ = 0;
};

// The tiers in which a block can have a place.
struct KvTiers {
  KvTier device;
  KvTier host;
  KvTier inputs;  // cached hidden states, on the host

  // No sequence refers to the block any more (1), or one does again (-1).
  void count_evictable(const KvBlock& block, std::int64_t change) {
    if (block.place == BlockPlace::kDevice) device.count_evictable(change);
    if (block.place == BlockPlace::kHost) host.count_evictable(change);
    if (block.input_block != KvBlock::kNone) inputs.count_evictable(change);
  }
  // The places that the block has.
  void give_back(const KvBlock& block) {
    if (block.slab != KvBlock::kNone) device.give_back(block.slab);
    if (block.host_block != KvBlock::kNone) host.give_back(block.host_block);
    if (block.input_block != KvBlock::kNone) inputs.give_back(block.input_block);
  }
};

}  // namespace triphase
