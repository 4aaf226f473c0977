#pragma once

// Where a step's decoded rows find the transposed K of their blocks (memory/kv TransposedK), for
// methods that score by it. Kept between steps to reuse its memory.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "memory/kv/kv_store.h"
#include "models/attention_runner.h"
#include "models/forward_batch.h"

namespace triphase {

class ColumnPlaces {
 public:
  // Takes places for the full blocks of decoded rows. Entries below count in `rows`.
  void begin_step(KvStore& store, std::span<const BatchSegment> rows, AttentionRunner& attention);

  // Whether each of the entry's full blocks got a place.
  [[nodiscard]] bool complete(std::size_t entry) const;
  // Adds the blocks whose keys do not lie there yet in this layer.
  void add_blocks_without(std::size_t entry, LayerId layer,
                          std::vector<std::int64_t>& blocks) const;
  // AttentionSegment::transposed_k, for the step.
  [[nodiscard]] std::span<const PageId> table(std::size_t entry) const {
    return entries_[entry].table;
  }
  // The entry's leading blocks whose K^T is known to be there
  // (AttentionSegment::transposed_blocks).
  [[nodiscard]] std::int64_t written(std::size_t entry) const {
    return columns_->forgotten() == forgotten_ ? entries_[entry].written : 0;
  }

 private:
  struct Entry {
    std::vector<PageId> table;  // by full block, and one that is none
    std::int64_t written = 0;   // when the step began

    [[nodiscard]] std::span<const PageId> places() const {
      return std::span(table).first(table.size() - 1);
    }
  };

  const TransposedK* columns_ = nullptr;
  std::uint64_t forgotten_ = 0;  // when the step began
  std::vector<Entry> entries_;
};

}  // namespace triphase
