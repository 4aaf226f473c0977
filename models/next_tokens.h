#pragma once

// The tokens of the host that the step to come will choose, fetched while the present one ends,
// where the attention method knows them by then: of the sequences that go on decoding, layer by
// layer from the first on, what the token cache lacks and has slots for. Layers that the present
// step has not attended yet are not asked; blocks whose bytes have not reached the host yet, and
// recomputable ones, are left to the step itself. Not thread safe.

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "memory/kv/kv_store.h"
#include "models/attention_runner.h"
#include "models/forward_batch.h"

namespace triphase {

class NextTokens {
 public:
  // A step begins whose rows are these.
  void begin(KvStore& store, std::span<const BatchSegment> rows);
  // Whether fetch() has not been called in this step.
  [[nodiscard]] bool pending() const { return !done_; }
  // Fetches for layers [0, layers), which the step has attended; returns the bytes brought.
  // `spare_page`: a page of the pool that nobody reads, to which gaps between tokens may go that
  // are not worth a piece more; none: they are not brought.
  [[nodiscard]] std::uint64_t fetch(AttentionRunner& attention, std::int64_t layers,
                                    std::optional<std::int64_t> spare_page);

 private:
  // Tells the cache what the sequence's next row chooses in the layer, and marks what it lacks.
  void look_at(const BatchSegment& rows, LayerId layer, const TokenChoice& choice);
  // Finds slots for it; the cells that have none are not wanted any more.
  void take_slots(LayerId layer);
  std::uint64_t bring(LayerId layer, std::optional<std::int64_t> spare_page);
  [[nodiscard]] std::size_t first_cell(const EarlyBlocks::Source& source);

  KvStore* store_ = nullptr;
  std::span<const BatchSegment> rows_;
  bool done_ = false;
  std::int64_t parts_ = 1;  // of a token: KV heads that are chosen apart
  std::int64_t block_cells_ = 0;

  std::vector<EarlyBlocks::Source> blocks_;              // that are read in the layer at hand
  std::unordered_map<std::int32_t, std::size_t> found_;  // by block_index
  std::vector<std::uint8_t> cells_;                      // [block][token][part]: is to come
  std::vector<std::int32_t> slots_;                      // to this slot
  std::vector<TokenRun> runs_;
};

}  // namespace triphase
