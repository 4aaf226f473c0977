#pragma once

// The memory that holds KV, and where in it each block's bytes are.
//
// On the device there is one pool of pages. A page holds K and V of one layer for `block_tokens`
// tokens of one sequence, laid out as kernels/ops.h (KvLayerView) wants it. First come the pages of
// the book's slabs, those of a slab's layers (LayerSets) side by side; then staging pages, for
// blocks that are read from the host; then cache pages, for single tokens from the host that are
// kept a while. K^T of blocks has pages of its own. With INT8 there are also the scales of every
// block, wherever its codes are, and a pool of partial pages. On the host there is one record per
// token and layer, and the INT8 hidden states of blocks that may be recomputed.

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "kernels/kv_records.h"
#include "kernels/kv_scale.h"
#include "kernels/ops.h"
#include "memory/kv/kv_shape.h"
#include "memory/memory_pool.h"
#include "scheduler/kv/kv_block_table.h"

namespace triphase {

class KvMemory {
 public:
  // Takes all its memory from the pools (tags kv, kt and cached-hidden-states). Throws
  // E-MEM-BUDGET. Blocks have numbers below `numbers`. `host` may be null where host_blocks is 0.
  KvMemory(const KvShape& shape, const KvSizes& sizes, std::int64_t numbers, MemoryPool& device,
           MemoryPool* host);

  [[nodiscard]] const KvShape& shape() const { return shape_; }
  [[nodiscard]] const KvSizes& sizes() const { return sizes_; }

  // The first page of each pool, the same for every layer: layers differ by their page tables.
  [[nodiscard]] std::byte* k_pages() const { return k_.data(); }
  [[nodiscard]] std::byte* v_pages() const { return v_.data(); }
  [[nodiscard]] std::byte* partial_k_pages() const { return partial_k_.data(); }
  [[nodiscard]] std::byte* partial_v_pages() const { return partial_v_.data(); }
  // K^T of a layer as KvLayerView wants it, a page for each of the places; null without
  // transposed_k.
  [[nodiscard]] std::byte* transposed_k_pages(LayerId layer) const;
  // Scales of a layer, by block number (block_of()); null where the KV is not INT8.
  [[nodiscard]] KvScale* scales(LayerId layer) const;
  // All of these for a layer, but for K^T.
  [[nodiscard]] KvLayerView view(LayerId layer) const;

  // The page where a layer of the block is read; none: it is not on the device.
  [[nodiscard]] PageId page(const KvBlock& block, LayerId layer) const {
    if (!block.on_device()) return {};
    return slab_page(block.slab, layer);
  }
  [[nodiscard]] PageId slab_page(std::int32_t slab, LayerId layer) const {
    return PageId(slab * shape_.slab_pages() + shape_.sets.of(layer).page);
  }
  // The number of the block that has the layer's KV at `position`: the sequence's block or one of
  // its window blocks. kNone: no window reaches it any more.
  [[nodiscard]] std::int32_t block_of(const KvBlockTable& blocks, std::int64_t position,
                                      LayerId layer) const {
    const std::int64_t set = shape_.sets.of(layer).set;
    return set == 0 ? blocks.number(position) : blocks.window(position, set - 1);
  }
  [[nodiscard]] PageId page(const KvBlockTable& blocks, std::int64_t position,
                            LayerId layer) const {
    const std::int32_t number = block_of(blocks, position, layer);
    return number == KvBlock::kNone ? PageId() : page(blocks.block(number), layer);
  }
  // The page table of a sequence in a layer.
  void fill_pages(const KvBlockTable& blocks, LayerId layer, std::vector<PageId>& table) const;
  // Turns pages of one layer's table into those of another's of the same set.
  static void move_pages(const LayerSets& sets, std::span<PageId> table, LayerId from, LayerId to) {
    const auto pages = static_cast<std::int32_t>(sets.of(to).page - sets.of(from).page);
    for (PageId& page : table) page.value += page.valid() ? pages : 0;
  }

  // Record of a token of a host block.
  [[nodiscard]] std::int64_t host_record(std::int32_t host_block, LayerId layer,
                                         std::int64_t offset) const;
  // A layer of a host block and the page that it is copied to or from.
  [[nodiscard]] TokenRun block_run(PageId page, std::int32_t host_block, LayerId layer) const;
  [[nodiscard]] KvGeometry geometry() const;
  // Codes of a block's cached hidden states on the host, [block_tokens][input_width]; its scales
  // follow them.
  [[nodiscard]] std::byte* saved_inputs(std::int32_t input_block, LayerId layer) const;

 private:
  KvShape shape_;
  KvSizes sizes_;
  Buffer k_;
  Buffer v_;
  Buffer partial_k_;
  Buffer partial_v_;
  Buffer scales_;
  Buffer transposed_k_;
  Buffer host_;
  Buffer host_inputs_;
};

}  // namespace triphase
