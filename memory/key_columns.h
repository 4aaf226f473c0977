#pragma once

// Which blocks have a place for K^T, all layers each, wherever the blocks live: a block keeps its
// place when it goes to the host and comes back, so that it can be scored without its keys. PURE
// bookkeeping; kv_store has the bytes.

#include <cstdint>
#include <vector>

#include "memory/kv_residency.h"

namespace triphase {

class KeyColumns {
 public:
  static constexpr std::int32_t kNone = -1;

  KeyColumns() = default;
  // Places for so many blocks, in a cache of block numbers below `capacity`.
  KeyColumns(std::int64_t places, std::int64_t layers, std::int64_t capacity);

  [[nodiscard]] std::int64_t places() const { return static_cast<std::int64_t>(owners_.size()); }

  // A step begins: blocks may have gone since the last one.
  void begin_step() { collected_ = false; }
  // The block's place, which it gets now if one is free (or its block was gone when the step
  // began); kNone: none is.
  [[nodiscard]] std::int32_t take(const KvResidency& residency, SequenceId sequence,
                                  std::int64_t block);
  [[nodiscard]] std::int32_t find(const KvResidency& residency, SequenceId sequence,
                                  std::int64_t block) const;

  // Pages are numbered layer by layer.
  [[nodiscard]] PageId page(LayerId layer, std::int32_t place) const {
    return place == kNone ? PageId()
                          : PageId(static_cast<std::int32_t>(layer.value * places()) + place);
  }
  // By page: whether its K^T is written (KvLayerView::kt_ready).
  [[nodiscard]] std::uint8_t* ready() { return ready_.empty() ? nullptr : ready_.data(); }
  [[nodiscard]] bool is_ready(PageId page) const { return ready_[page.index()] != 0; }
  void forget(PageId page) { ready_[page.index()] = 0; }

  // Most places that were taken at a time.
  [[nodiscard]] std::int64_t peak() const { return peak_; }

 private:
  struct Owner {
    std::int32_t index = kNone;  // KvResidency::block_index
    std::uint64_t id = 0;
  };

  // Places whose blocks are gone are free again.
  void collect(const KvResidency& residency);

  std::int64_t layers_ = 0;
  std::vector<Owner> owners_;         // by place
  std::vector<std::int32_t> places_;  // by block number
  std::vector<std::int32_t> free_;
  std::vector<std::uint8_t> ready_;
  bool collected_ = false;  // in this step
  std::int64_t peak_ = 0;
};

}  // namespace triphase
