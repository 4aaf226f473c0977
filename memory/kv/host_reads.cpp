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

// A page of the table that is a staging page already was put there by this layer's reads.
void HostReads::read_block(const BatchSegment& rows, std::int64_t block, std::span<PageId> table) {
  PageId& page = table[static_cast<std::size_t>(block)];
  if (page.valid()) return;
  const std::int32_t index = store_->book().table(rows.sequence).number(block);
  const auto [place, is_new] = found_.try_emplace(index, blocks_.size());
  if (is_new) add_block(rows, block, index);
  page = blocks_[place->second].page;
}

void HostReads::add_block(const BatchSegment& rows, std::int64_t block, std::int32_t block_index) {
  const KvBlock& of = store_->book().table(rows.sequence)[block];
  Block& added = blocks_.emplace_back();
  if (const auto source = store_->prefetch_source(layer_, rows.sequence, block)) {
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
                         .scale_page = PageId(block_index),
                         .input_block = of.input_block,
                         .first_position = block * store_->shape().block_tokens,
                         .rope_key = rows.rope_key});
}

std::span<const TokenRun> HostReads::make_runs() {
  runs_.clear();
  for (const Block& block : blocks_) {
    if (block.brought) continue;
    runs_.push_back(store_->block_run(block.page, block.host_block, layer_));
    bytes_.blocks += KvStore::page_bytes(store_->shape());
  }
  return runs_;
}

std::span<const BytePiece> HostReads::make_pieces() {
  const KvStore::Shape& shape = store_->shape();
  const auto codes_bytes = static_cast<std::size_t>(shape.block_tokens * shape.input_width);
  const auto scale_bytes = static_cast<std::size_t>(shape.block_tokens) * sizeof(float);
  pieces_.clear();
  for (const KvRecompute& block : recomputes_) {
    const std::byte* codes = store_->saved_inputs(block.input_block, layer_);
    const std::size_t page = block.page.index() * (KvStore::page_bytes(shape) / 2);
    pieces_.push_back({store_->k_pages() + page, codes, codes_bytes});
    pieces_.push_back({store_->v_pages() + page, codes + codes_bytes, scale_bytes});
    bytes_.inputs += codes_bytes + scale_bytes;
  }
  return pieces_;
}

}  // namespace triphase
