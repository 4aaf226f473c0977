#include "memory/kv/host_reads.h"

#include <algorithm>

namespace triphase {

void HostReads::begin(KvStore& store, LayerId layer, std::int64_t first_page) {
  store_ = &store;
  layer_ = layer;
  next_page_ = first_page;
  prefetched_ranges_ = 0;
  blocks_.clear();
  recomputes_.clear();
  found_.clear();
}

// A valid page is on the device, or this layer's reads have put a staging page there.
void HostReads::read_block(const BatchSegment& rows, std::int64_t block, std::span<PageId> table) {
  PageId& page = table[block];
  if (page.valid()) return;
  const std::int32_t number = store_->book().table(rows.sequence).number(block);
  const auto [place, is_new] = found_.try_emplace(number, blocks_.size());
  if (is_new) add_block(rows, block);
  page = blocks_[place->second].page;
}

void HostReads::add_block(const BatchSegment& rows, std::int64_t block) {
  const KvBlockTable table = store_->book().table(rows.sequence);
  const KvBlock& of = table[block];
  Block& added = blocks_.emplace_back();
  if (const auto source = PrefetchedBlocks::source_of(table, layer_, block)) {
    if (const auto found = store_->prefetched().use(*source)) {
      added.page = found->page;
      added.brought = true;
      prefetched_ranges_ = std::max(prefetched_ranges_, found->range + 1);
      return;
    }
  }
  added.page = PageId(next_page_++);
  if (of.place != BlockPlace::kRecomputable) {
    added.host_block = of.host_block;
    return;
  }
  added.brought = true;
  recomputes_.push_back({.page = added.page,
                         .scale_page = PageId(table.number(block)),
                         .input_block = of.input_block,
                         .first_position = block * store_->memory().shape().block_tokens,
                         .rope_key = rows.rope_key});
}

std::span<const TokenRun> HostReads::make_runs() {
  runs_.clear();
  for (const Block& block : blocks_) {
    if (block.brought) continue;
    runs_.push_back(store_->memory().block_run(block.page, block.host_block, layer_));
    bytes_.blocks += store_->memory().shape().page_bytes();
  }
  return runs_;
}

std::span<const BytePiece> HostReads::make_pieces() {
  const KvMemory& memory = store_->memory();
  const KvShape& shape = memory.shape();
  const auto codes_bytes = static_cast<std::size_t>(shape.block_tokens * shape.input_width);
  const auto scale_bytes = static_cast<std::size_t>(shape.block_tokens) * sizeof(float);
  pieces_.clear();
  for (const KvRecompute& block : recomputes_) {
    const std::byte* codes = memory.saved_inputs(block.input_block, layer_);
    const std::size_t page = block.page.index() * (shape.page_bytes() / 2);
    pieces_.push_back({memory.k_pages() + page, codes, codes_bytes});
    pieces_.push_back({memory.v_pages() + page, codes + codes_bytes, scale_bytes});
    bytes_.inputs += codes_bytes + scale_bytes;
  }
  return pieces_;
}

}  // namespace triphase
