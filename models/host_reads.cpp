#include "models/host_reads.h"

#include "memory/transfer/gather_runs.h"
#include "runtime/base/error.h"

namespace triphase {

void HostReads::begin(const KvStore& store, LayerId layer, std::int64_t first_page, bool per_head) {
  store_ = &store;
  layer_ = layer;
  first_page_ = first_page;
  parts_ = per_head ? store.shape().kv_heads : 1;
  block_cells_ = store.shape().block_tokens * parts_;
  blocks_.clear();
  cells_.clear();
  found_.clear();
}

// A page of the table that is a staging page already was put there by this layer's reads.
std::int64_t HostReads::block_of(SequenceId sequence, std::int64_t block, PageId& page) {
  if (page.valid()) return page.value >= first_page_ ? page.value - first_page_ : -1;
  const KvResidency& residency = store_->residency();
  const auto next = static_cast<std::int64_t>(blocks_.size());
  const auto [place, is_new] = found_.try_emplace(residency.block_index(sequence, block), next);
  if (is_new) {
    blocks_.push_back({store_->host_record(residency.host_block(sequence, block), layer_, 0)});
    cells_.resize(cells_.size() + static_cast<std::size_t>(block_cells_), 0);
  }
  page = PageId(static_cast<std::int32_t>(first_page_ + place->second));
  return place->second;
}

void HostReads::read_blocks(SequenceId sequence, std::int64_t first_block,
                            std::span<PageId> table) {
  for (std::int64_t block = first_block; block < static_cast<std::int64_t>(table.size()); ++block) {
    const std::int64_t index = block_of(sequence, block, table[static_cast<std::size_t>(block)]);
    if (index >= 0) blocks_[static_cast<std::size_t>(index)].whole = true;
  }
}

void HostReads::read_tokens(SequenceId sequence, const TokenChoice& choice,
                            std::span<PageId> table) {
  const std::int64_t block_tokens = store_->shape().block_tokens;
  const auto lists = static_cast<std::int64_t>(choice.begins.size()) - 1;
  TRIPHASE_CHECK(lists == parts_, "a choice with another number of lists");
  for (std::int64_t list = 0; list < lists; ++list) {
    const auto at = static_cast<std::size_t>(list);
    const auto begin = static_cast<std::size_t>(choice.begins[at]);
    const auto count = static_cast<std::size_t>(choice.begins[at + 1]) - begin;
    for (const std::int32_t token : std::span(choice.tokens).subspan(begin, count)) {
      const std::int64_t block = token / block_tokens;
      const std::int64_t index = block_of(sequence, block, table[static_cast<std::size_t>(block)]);
      if (index < 0) continue;
      cells_of(index)[static_cast<std::size_t>(token % block_tokens * parts_ + list)] = 1;
    }
  }
}

HostReads::Bytes HostReads::make_runs(std::int64_t gap_bytes, std::vector<TokenRun>& runs) const {
  const KvStore::Shape& shape = store_->shape();
  const KvGeometry geometry = store_->geometry();
  Bytes bytes;
  runs.clear();
  for (std::size_t index = 0; index < blocks_.size(); ++index) {
    const Block& block = blocks_[index];
    const std::int64_t slot = (first_page_ + static_cast<std::int64_t>(index)) * shape.block_tokens;
    if (block.whole) {
      runs.push_back({.slot = slot,
                      .record = block.record,
                      .count = static_cast<std::int32_t>(shape.block_tokens),
                      .head_count = static_cast<std::int32_t>(shape.kv_heads)});
      bytes.blocks += KvStore::page_bytes(shape);
      continue;
    }
    const auto cells = static_cast<std::size_t>(block_cells_);
    const std::size_t before = runs.size();
    gather_runs(geometry, {slot, block.record, std::span(cells_).subspan(index * cells, cells)},
                gap_bytes, runs);
    for (const TokenRun& run : std::span(runs).subspan(before)) {
      bytes.tokens += static_cast<std::uint64_t>(geometry.bytes(run));
    }
  }
  return bytes;
}

}  // namespace triphase
