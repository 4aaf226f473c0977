#pragma once

// INT8: a step's new tokens go to unquantized pages of their sequences' partial blocks, until a
// block is full. Layer by layer: begin_layer(), then the caller does what runs() and
// full_blocks() say, then end_layer(). Kept between steps to reuse its memory.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "kernels/ops.h"
#include "memory/kv/batch_segment.h"
#include "memory/kv/kv_store.h"

namespace triphase {

class PartialBlocks {
 public:
  // Rows of one entry of the step that are in one block, and the page of that block.
  struct Run {
    std::size_t entry = 0;
    std::int64_t first_position = 0;
    std::int64_t count = 0;
    PageId partial_page;
  };

  // `store` and `rows` must stay until the step ends.
  void begin_step(KvStore& store, std::span<const BatchSegment> rows);
  // In a step where each sequence has one new token: pages by layer and row, taken now for the
  // whole step; empty in other steps, and without INT8. Call it before the first begin_layer().
  [[nodiscard]] std::span<const PageId> take_for_step(std::int64_t layers);
  [[nodiscard]] bool taken_for_step() const { return !step_pages_.empty(); }

  // Pages that were taken for the step allow it to be called again.
  void begin_layer(LayerId layer);
  // By entry, in the layer that was begun last.
  [[nodiscard]] std::span<const Run> runs() const { return runs_; }
  [[nodiscard]] std::span<const FullBlock> full_blocks() const { return full_blocks_; }
  // Nobody reads the partial pages of the layer's full blocks any more.
  void end_layer();

 private:
  KvStore* store_ = nullptr;
  std::span<const BatchSegment> rows_;
  std::vector<PageId> step_pages_;
  std::vector<Run> runs_;
  std::vector<FullBlock> full_blocks_;
  struct Spent {
    SequenceId sequence;
    LayerId layer;
    PageId page;
  };
  std::vector<Spent> spent_;  // free again once the layer ends
};

}  // namespace triphase
