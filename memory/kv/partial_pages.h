#pragma once

// Which partial page holds the partial block of each (sequence, layer), for INT8 KV: a page from a
// common set, taken when a block is begun and free again when it is full. PURE bookkeeping.

#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/ids.h"

namespace triphase {

class PartialPages {
 public:
  PartialPages(std::int64_t pages, std::int64_t layers) : layers_(layers), pages_(pages) {
    free_.reserve(static_cast<std::size_t>(pages));
    for (std::int64_t page = pages; page-- > 0;) free_.emplace_back(page);
  }

  [[nodiscard]] PageId take() {
    TRIPHASE_CHECK(!free_.empty(), "partial pages ran out");
    const PageId page = free_.back();
    free_.pop_back();
    return page;
  }
  void give_back(PageId page) { free_.push_back(page); }

  // The page of the sequence's partial block in a layer; none between blocks.
  [[nodiscard]] PageId& current(SequenceId sequence, LayerId layer) {
    if (current_.size() <= sequence.index()) current_.resize(sequence.index() + 1);
    auto& of_sequence = current_[sequence.index()];
    if (of_sequence.empty()) of_sequence.resize(static_cast<std::size_t>(layers_));
    return of_sequence[layer.index()];
  }

  void forget(SequenceId sequence) {
    if (current_.size() <= sequence.index()) return;
    for (PageId& page : current_[sequence.index()]) {
      if (page.valid()) give_back(page);
      page = PageId();
    }
  }

  void forget_all() {
    for (std::size_t at = 0; at < current_.size(); ++at) {
      forget(SequenceId(static_cast<std::int64_t>(at)));
    }
  }

  [[nodiscard]] std::int64_t free_pages() const { return std::ssize(free_); }
  [[nodiscard]] std::int64_t pages() const { return pages_; }

 private:
  std::int64_t layers_;
  std::int64_t pages_;
  std::vector<PageId> free_;
  std::vector<std::vector<PageId>> current_;  // by sequence, by layer
};

}  // namespace triphase
