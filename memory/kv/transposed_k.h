#pragma once

// Which blocks have a place for K^T, all layers each, wherever the blocks are: a block keeps its
// place while it is offloaded, so that it can be scored without its keys. Blocks that follow each
// other in a sequence get places side by side where that is possible, since one channel of all
// these blocks is then one run of memory (KvLayerView::kt_run). PURE bookkeeping; kv_memory has the
// bytes.

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/kv/kv_book.h"

namespace triphase {

class TransposedK {
 public:
  static constexpr std::int32_t kNone = -1;

  TransposedK() = default;
  // `places` places, each for one block: the pages of K^T of every layer. Groups of `run` places
  // are side by side in memory. Block numbers are below `capacity`.
  TransposedK(std::int64_t places, std::int64_t layers, std::int64_t capacity,
              std::int64_t run = 1);

  [[nodiscard]] std::int64_t places() const { return std::ssize(owners_); }
  [[nodiscard]] std::int64_t run() const { return run_; }

  // A step begins: blocks may have ended since the last one.
  void begin_step() { collected_ = false; }
  // The block's place; kNone: it has none.
  [[nodiscard]] std::int32_t find(const KvBook& book, SequenceId sequence,
                                  std::int64_t block) const;
  // The block's place. A block without one gets a free place, or that of a block that ended before
  // this step. kNone: there is none.
  [[nodiscard]] std::int32_t take(const KvBook& book, SequenceId sequence, std::int64_t block);

  // By place: whether its K^T is written in the layer (KvLayerView::kt_ready). Null without places.
  [[nodiscard]] std::uint8_t* ready(LayerId layer) {
    return ready_.empty() ? nullptr : ready_.data() + layer.value * places();
  }
  [[nodiscard]] bool is_ready(LayerId layer, std::int32_t place) const {
    return ready_[layer.value * places() + place] != 0;
  }
  // How many of the places have K^T in every layer that is scored by it, from the first place on;
  // `last` is the last of these layers.
  [[nodiscard]] std::int64_t count_ready(std::span<const PageId> places, LayerId last) const;
  // How often K^T that was written has been forgotten: what count_ready() said holds until then.
  [[nodiscard]] std::uint64_t forgotten() const { return forgotten_; }
  // K^T of the block in this layer is made anew when it is next wanted. Whoever changes the block's
  // keys calls this; moving a block changes no keys.
  void forget(const KvBook& book, SequenceId sequence, LayerId layer, std::int64_t block);

  // Most places that were taken at a time.
  [[nodiscard]] std::int64_t peak() const { return peak_; }

 private:
  struct Owner {
    std::int32_t index = kNone;  // KvBlockTable::number
    std::uint64_t id = 0;
  };

  [[nodiscard]] bool is_free(std::int64_t place) const { return owners_[place].index == kNone; }
  // A free place, or kNone. Best is the place after that of the sequence's block before, then the
  // first place of an unused group, of an unused half of one, of a quarter, and so on.
  [[nodiscard]] std::int32_t choose(const KvBook& book, SequenceId sequence, std::int64_t block);
  void set_owner(std::int32_t place, Owner owner);
  // Frees places whose blocks have ended.
  void collect(const KvBook& book);

  std::int64_t layers_ = 0;
  std::int64_t run_ = 1;
  std::vector<Owner> owners_;         // by place
  std::vector<std::int32_t> places_;  // by block number
  std::int64_t taken_ = 0;
  std::vector<std::int32_t> taken_of_group_;
  // The first place and group that may be free: everything before them is taken.
  std::int64_t free_place_ = 0;
  std::int64_t free_group_ = 0;
  std::vector<std::uint8_t> ready_;
  bool collected_ = false;  // in this step
  std::uint64_t forgotten_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace triphase
