#pragma once

// The tables of a step that Ops::make_tables sends once for all layers, and those of one call where
// a step has none: page tables, slots of new tokens, blocks that fill up. Not thread safe.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/argument_ring.h"
#include "kernels/cuda/kv_quantize.h"
#include "kernels/ops.h"

namespace triphase::cuda {

class StepTables {
 public:
  // Ops::make_tables; the result lies on the device as long as `arguments` keeps it.
  [[nodiscard]] SegmentTables make(std::span<const AttentionSegment> segments, const KvSlots& slots,
                                   const StepPartialPages& partial, const KvLayerView& cache,
                                   ArgumentRing& arguments, Stream& stream);
  // By row the slot of its new token: page * page_tokens + offset.
  [[nodiscard]] const std::int32_t* send_slots(const KvSlots& slots, const KvLayerView& cache,
                                               ArgumentRing& arguments, Stream& stream);
  // The layer's full blocks: those of a step's tables where it has such.
  [[nodiscard]] const KvBlock* send_full_blocks(const FullBlocks& full_blocks,
                                                const KvLayerView& cache, ArgumentRing& arguments,
                                                Stream& stream);

 private:
  // Adds for each layer: the rows' partial pages; where their tokens go there; the blocks that
  // close. Returns where the last of these begin.
  std::size_t add_partial_pages(const KvSlots& slots, const StepPartialPages& partial,
                                const KvLayerView& cache);

  std::vector<std::int32_t> words_;  // on their way; kept to reuse its memory
  std::vector<KvBlock> blocks_;      // as words_
};

}  // namespace triphase::cuda
