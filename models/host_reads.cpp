#include "models/host_reads.h"

#include <algorithm>

#include "base/error.h"
#include "memory/transfer/gather_runs.h"

namespace triphase {

void HostReads::begin_step(KvStore& store, std::int64_t parts) {
  store_ = &store;
  parts_ = parts;
  block_cells_ = store.shape().block_tokens * parts_;
  store.token_cache(parts_).begin_step();
}

void HostReads::begin(LayerId layer, std::int64_t first_page) {
  layer_ = layer;
  next_page_ = first_page;
  early_ranges_ = early_token_ranges_ = 0;
  blocks_.clear();
  arrived_ = 0;
  recomputes_.clear();
  cells_.clear();
  slots_.clear();
  found_.clear();
}

// A page of the table that is a staging page already was put there by this layer's reads.
std::int64_t HostReads::block_of(const BatchSegment& rows, std::int64_t block, PageId& page) {
  if (page.valid() && page.value < store_->sizes().device_pages) return -1;
  const std::int32_t index = store_->book().block_index(rows.sequence, block);
  const auto next = static_cast<std::int64_t>(blocks_.size());
  const auto [place, is_new] = found_.try_emplace(index, next);
  if (is_new) add_block(rows, block, index);
  page = blocks_[static_cast<std::size_t>(place->second)].page;
  return place->second;
}

void HostReads::add_block(const BatchSegment& rows, std::int64_t block, std::int32_t block_index) {
  const KvBook& book = store_->book();
  const SequenceId sequence = rows.sequence;
  Block& added = blocks_.emplace_back();
  cells_.resize(cells_.size() + static_cast<std::size_t>(block_cells_), 0);
  slots_.resize(cells_.size(), -1);
  if (const auto source = store_->early_source(layer_, sequence, block)) {
    if (const auto found = store_->early().use(*source)) {
      added.page = found->page;
      added.whole = added.early = true;
      early_ranges_ = std::max(early_ranges_, found->range + 1);
      return;
    }
  }
  added.page = PageId(next_page_++);
  if (book.block(sequence, block).place != BlockPlace::kRecomputable) {
    added.record = store_->host_record(book.block(sequence, block).host_block, layer_, 0);
    return;
  }
  added.recomputed = static_cast<std::int32_t>(recomputes_.size());
  recomputes_.push_back({.page = added.page,
                         .scale_page = PageId(block_index),
                         .input_block = book.block(sequence, block).input_block,
                         .first_position = block * store_->shape().block_tokens,
                         .rope_key = rows.rope_key});
}

bool HostReads::has_arrived(SequenceId sequence, std::int64_t block, PageId& page) const {
  if (arrived_ == 0) return false;
  const auto found = found_.find(store_->book().block_index(sequence, block));
  if (found == found_.end() || found->second >= arrived_) return false;
  TRIPHASE_CHECK(blocks_[static_cast<std::size_t>(found->second)].whole,
                 "a first round brings whole blocks");
  page = blocks_[static_cast<std::size_t>(found->second)].page;
  return true;
}

void HostReads::read_blocks(const BatchSegment& rows, std::int64_t first_block,
                            std::span<PageId> table) {
  for (std::int64_t block = first_block; block < static_cast<std::int64_t>(table.size()); ++block) {
    read_block(rows, block, table);
  }
}

void HostReads::read_block(const BatchSegment& rows, std::int64_t block, std::span<PageId> table) {
  const std::int64_t index = block_of(rows, block, table[static_cast<std::size_t>(block)]);
  if (index >= 0) blocks_[static_cast<std::size_t>(index)].whole = true;
}

std::int32_t HostReads::slot_of(const BatchSegment& rows, std::int64_t token, std::int64_t part,
                                PageId& page) {
  const SequenceId sequence = rows.sequence;
  const std::int64_t block = token / store_->shape().block_tokens;
  const std::int64_t offset = token % store_->shape().block_tokens;
  if (has_arrived(sequence, block, page)) return -1;
  TokenCache& cache = store_->token_cache(parts_);
  const TokenCache::BlockKey key{store_->book().block_index(sequence, block),
                                 store_->book().block(sequence, block).id};
  const auto part_bytes = static_cast<std::uint64_t>(store_->geometry().record_bytes() / parts_);
  bytes_.chosen += part_bytes;
  const TokenCache::Hit hit = cache.look_up(layer_.value, part, key, offset);
  if (hit.slot >= 0) {
    if (hit.early) {
      early_token_ranges_ = store_->early_tokens().ranges_of(layer_.value);
    } else {
      bytes_.cached += part_bytes;
    }
    return static_cast<std::int32_t>(store_->cache_slot(layer_, hit.slot));
  }
  const std::int64_t index = block_of(rows, block, page);
  const bool recomputed = blocks_[static_cast<std::size_t>(index)].recomputed >= 0;
  const auto cell = static_cast<std::size_t>(index * block_cells_ + offset * parts_ + part);
  // Marked before and not in the cache: it comes to the staging page for another sequence.
  if (cells_[cell] != 0) return -1;
  cells_[cell] = 1;
  // What is recomputed is whole tokens; slots of single heads are not for them.
  if (recomputed && parts_ > 1) return -1;
  const std::int32_t added = cache.add(layer_.value, part, key, offset);
  if (added >= 0) slots_[cell] = static_cast<std::int32_t>(store_->cache_slot(layer_, added));
  return slots_[cell];
}

void HostReads::read_tokens(const BatchSegment& rows, const TokenChoice& choice,
                            std::span<PageId> table, std::vector<std::int32_t>& slots) {
  const std::int64_t block_tokens = store_->shape().block_tokens;
  const auto device_pages = static_cast<std::int32_t>(store_->sizes().device_pages);
  const auto lists = static_cast<std::int64_t>(choice.begins.size()) - 1;
  TRIPHASE_CHECK(lists == parts_, "a choice with another number of lists");
  slots.clear();
  slots.reserve(choice.tokens.size());
  for (std::int64_t list = 0; list < lists; ++list) {
    const auto at = static_cast<std::size_t>(list);
    const auto begin = static_cast<std::size_t>(choice.begins[at]);
    const auto count = static_cast<std::size_t>(choice.begins[at + 1]) - begin;
    for (const std::int32_t token : std::span(choice.tokens).subspan(begin, count)) {
      PageId& page = table[static_cast<std::size_t>(token / block_tokens)];
      const bool on_device = page.valid() && page.value < device_pages;
      slots.push_back(on_device ? -1 : slot_of(rows, token, list, page));
    }
  }
}

void HostReads::make_runs(std::int64_t gap_bytes, std::vector<TokenRun>& runs) {
  const KvStore::Shape& shape = store_->shape();
  const KvGeometry geometry = store_->geometry();
  const auto cells = static_cast<std::size_t>(block_cells_);
  runs.clear();
  for (auto index = static_cast<std::size_t>(arrived_); index < blocks_.size(); ++index) {
    const Block& block = blocks_[index];
    if (block.recomputed >= 0 || block.early) continue;
    const std::int64_t slot = block.page.value * shape.block_tokens;
    const std::span<std::uint8_t> wanted = std::span(cells_).subspan(index * cells, cells);
    const auto slots = std::span<const std::int32_t>(slots_).subspan(index * cells, cells);
    if (block.whole) {
      runs.push_back({.slot = slot,
                      .record = block.record,
                      .count = static_cast<std::int32_t>(shape.block_tokens),
                      .head_count = static_cast<std::int32_t>(shape.kv_heads)});
      bytes_.blocks += KvStore::page_bytes(shape);
      // What another sequence expects in the cache comes there too.
      for (std::size_t cell = 0; cell < cells; ++cell) {
        if (slots[cell] < 0) wanted[cell] = 0;
      }
    }
    const std::size_t before = runs.size();
    gather_runs(geometry, {slot, block.record, wanted, slots}, block.whole ? 0 : gap_bytes, runs);
    for (const TokenRun& run : std::span(runs).subspan(before)) {
      bytes_.tokens += static_cast<std::uint64_t>(geometry.bytes(run));
    }
  }
}

void HostReads::make_recomputes(std::int64_t gap_bytes, KvRecomputes& recomputes,
                                std::vector<BytePiece>& pieces) {
  recomputes.clear();
  pieces.clear();
  for (auto index = static_cast<std::size_t>(arrived_); index < blocks_.size(); ++index) {
    if (blocks_[index].recomputed < 0) continue;
    KvRecompute& block = recomputes.blocks.emplace_back(
        recomputes_[static_cast<std::size_t>(blocks_[index].recomputed)]);
    const std::size_t first = recomputes.tokens.size();
    add_tokens(index, block, recomputes.tokens);
    add_pieces(block, std::span(recomputes.tokens).subspan(first), gap_bytes, pieces);
  }
}

void HostReads::add_tokens(std::size_t index, KvRecompute& block,
                           std::vector<KvRecomputeToken>& tokens) {
  const std::int64_t block_tokens = store_->shape().block_tokens;
  const std::size_t before = tokens.size();
  for (std::int64_t offset = 0; offset < block_tokens; ++offset) {
    const auto first =
        static_cast<std::size_t>(static_cast<std::int64_t>(index) * block_cells_ + offset * parts_);
    const auto wanted = std::span(cells_).subspan(first, static_cast<std::size_t>(parts_));
    const bool chosen = std::ranges::any_of(wanted, [](std::uint8_t cell) { return cell != 0; });
    const std::int32_t cached = slots_[first];
    const auto token = static_cast<std::int32_t>(offset);
    const bool whole = blocks_[index].whole;
    if (whole || (chosen && cached < 0)) {
      tokens.push_back({token, static_cast<std::int32_t>(block.page.value * block_tokens) + token});
    }
    if (chosen && cached >= 0) tokens.push_back({token, cached});
  }
  block.token_count = static_cast<std::int32_t>(tokens.size() - before);
}

void HostReads::add_pieces(const KvRecompute& block, std::span<const KvRecomputeToken> tokens,
                           std::int64_t gap_bytes, std::vector<BytePiece>& pieces) {
  if (tokens.empty()) return;
  const KvStore::Shape& shape = store_->shape();
  const std::int64_t width = shape.input_width;
  const std::byte* codes = store_->saved_inputs(block.input_block, layer_);
  const std::size_t page = block.page.index() * (KvStore::page_bytes(shape) / 2);
  const auto add = [&](std::byte* to, const std::byte* from, std::int64_t bytes) {
    pieces.push_back({to, from, static_cast<std::size_t>(bytes)});
    bytes_.inputs += static_cast<std::uint64_t>(bytes);
  };
  // Runs of tokens, and of gaps that are not worth a piece more. One token may go to two slots.
  for (std::size_t at = 0; at < tokens.size();) {
    const std::int64_t first = tokens[at].offset;
    std::int64_t end = first + 1;
    for (++at; at < tokens.size() && (tokens[at].offset - end) * width <= gap_bytes; ++at) {
      end = tokens[at].offset + 1;
    }
    add(store_->k_pages() + page + first * width, codes + first * width, (end - first) * width);
  }
  // Scales take less than a piece more would cost.
  constexpr std::int64_t kScale = sizeof(float);
  const std::int64_t first = tokens.front().offset * kScale;
  add(store_->v_pages() + page + first, codes + shape.block_tokens * width + first,
      (tokens.back().offset + 1) * kScale - first);
}

}  // namespace triphase
