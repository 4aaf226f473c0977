#include "kernels/cuda/step_tables.h"

#include <algorithm>

#include "kernels/cuda/cache_view.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

KvBlock block_of(const FullBlock& block, const KvLayerView& cache) {
  require(block.partial_page.valid() && block.page.valid() && block.scale_page.valid(),
          "quantize_blocks", "a page out of range", [&] { return shape_of(cache); });
  return {block.partial_page.value, block.page.value, block.scale_page.value};
}

std::int32_t slot_of(PageId page, std::int32_t offset, const KvLayerView& cache) {
  require(page.valid() && offset >= 0 && offset < cache.page_tokens, "kv_append",
          "a slot out of range", [&] { return shape_of(cache); });
  return static_cast<std::int32_t>(page.value * cache.page_tokens) + offset;
}

}  // namespace

SegmentTables StepTables::make(std::span<const AttentionSegment> segments, const KvSlots& slots,
                               const StepPartialPages& partial, const KvLayerView& cache,
                               ArgumentRing& arguments, Stream& stream) {
  SegmentTables tables;
  for (const AttentionSegment& segment : segments) {
    const auto pages =
        static_cast<std::int64_t>(std::max(segment.pages.size(), segment.scale_pages.size()));
    tables.max_pages = std::max(tables.max_pages, pages);
  }
  tables.max_pages = table_pages(tables.max_pages);
  const auto max_pages = static_cast<std::size_t>(tables.max_pages);
  const std::size_t entries = segments.size() * max_pages;
  const std::size_t scales_at = entries;
  const std::size_t lengths_at = scales_at + (cache.quantized() ? entries : 0);
  const std::size_t slots_at = lengths_at + segments.size();
  const std::size_t rows = cache.quantized() ? 0 : slots.pages.size();
  words_.assign(slots_at + rows, 0);
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const AttentionSegment& segment = segments[i];
    const auto fill = [&](std::size_t at, std::span<const PageId> pages) {
      for (std::size_t page = 0; page < pages.size(); ++page) {
        words_[at + i * max_pages + page] = pages[page].value;
      }
    };
    fill(0, segment.pages);
    if (cache.quantized()) fill(scales_at, segment.scale_pages);
    words_[lengths_at + i] = static_cast<std::int32_t>(segment.context_tokens);
  }
  for (std::size_t row = 0; row < rows; ++row) {
    words_[slots_at + row] = slot_of(slots.pages[row], slots.offsets[row], cache);
  }
  const std::size_t partial_at = words_.size();
  const std::size_t full_blocks_at = add_partial_pages(slots, partial, cache);
  const std::int32_t* base = arguments.send(std::span<const std::int32_t>(words_), stream);
  tables.pages = base;
  tables.scale_pages = cache.quantized() ? base + scales_at : nullptr;
  tables.lengths = base + lengths_at;
  tables.slots = rows > 0 ? base + slots_at : nullptr;
  if (partial.pages.empty()) return tables;
  tables.rows = std::ssize(slots.offsets);
  tables.partial_pages = base + partial_at;
  tables.partial_slots = tables.partial_pages + partial.pages.size();
  tables.full_blocks = std::ssize(partial.full_blocks);
  tables.full_block_places = base + full_blocks_at;
  return tables;
}

std::size_t StepTables::add_partial_pages(const KvSlots& slots, const StepPartialPages& partial,
                                          const KvLayerView& cache) {
  const std::size_t rows = slots.offsets.size();
  for (const PageId page : partial.pages) words_.push_back(page.value);
  for (std::size_t at = 0; at < partial.pages.size(); ++at) {
    words_.push_back(slot_of(partial.pages[at], slots.offsets[at % rows], cache));
  }
  const std::size_t full_blocks_at = words_.size();
  const std::size_t layers = partial.pages.empty() ? 0 : partial.pages.size() / rows;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    for (const FullBlock& close : partial.full_blocks) {
      const auto row =
          std::ranges::find(partial.pages.first(rows), close.partial_page) - partial.pages.begin();
      const KvBlock block = block_of(close, cache);
      words_.push_back(partial.pages[layer * rows + static_cast<std::size_t>(row)].value);
      words_.push_back(block.page + static_cast<std::int32_t>(layer));
      words_.push_back(block.scale_page);
    }
  }
  return full_blocks_at;
}

const std::int32_t* StepTables::send_slots(const KvSlots& slots, const KvLayerView& cache,
                                           ArgumentRing& arguments, Stream& stream) {
  words_.clear();
  for (std::size_t row = 0; row < slots.pages.size(); ++row) {
    words_.push_back(slot_of(slots.pages[row], slots.offsets[row], cache));
  }
  return arguments.send(std::span<const std::int32_t>(words_), stream);
}

const KvBlock* StepTables::send_full_blocks(const FullBlocks& full_blocks, const KvLayerView& cache,
                                            ArgumentRing& arguments, Stream& stream) {
  blocks_.clear();
  for (const FullBlock& block : full_blocks.blocks) blocks_.push_back(block_of(block, cache));
  const SegmentTables* tables = full_blocks.tables;
  if (tables != nullptr && tables->full_block_places != nullptr) {
    return reinterpret_cast<const KvBlock*>(tables->full_block_places) +
           full_blocks.table_layer * tables->full_blocks;
  }
  return arguments.send(std::span<const KvBlock>(blocks_), stream);
}

}  // namespace triphase::cuda
