#include "models/token_lookup.h"

#include <algorithm>
#include <utility>

#include "scheduler/kv/block_tokens.h"

namespace triphase {

void TokenLookup::begin_step(KvStore& store, std::span<const BatchSegment> rows,
                             std::span<const std::int64_t> windows, AttentionRunner* attention,
                             const ColumnPlaces* columns, Stream& stream) {
  store_ = &store;
  rows_ = rows;
  windows_ = windows;
  attention_ = attention;
  columns_ = columns;
  stream_ = &stream;
  last_ = {};
  chooses_.assign(rows.size(), false);
  if (resolver_ == nullptr || attention == nullptr) return;
  store.transfers()->begin_step();
  for (std::size_t entry = 0; entry < rows.size(); ++entry) {
    const BatchSegment& of = rows[entry];
    chooses_[entry] = of.count == 1 && attention->chooses(of.sequence, of.first_position + 1);
  }
}

bool TokenLookup::any_chooses() const {
  return std::ranges::find(chooses_, true) != chooses_.end();
}

const SegmentTables& TokenLookup::send_tables() {
  std::vector<std::int32_t> written = store_->written().take();
  if (attention_->method().lists() > 1) {
    // Hot rows hold nothing of recomputable blocks.
    const std::int64_t host_blocks = store_->memory().sizes().host_blocks;
    std::erase_if(written, [&](std::int32_t block) { return block >= host_blocks; });
  }
  const BlockTables tables = step_block_tables_.make(*store_, rows_);
  row_blocks_ = tables.row_blocks;
  block_tables_ = resolver_->begin_step(tables, written, *stream_);
  return block_tables_;
}

std::int64_t TokenLookup::first_block_to_choose(std::size_t entry, LayerId layer) const {
  const BatchSegment& rows = rows_[entry];
  if (attention_->method().reads_transposed_k()) {
    // Where K^T has too few places, keys are read by rows.
    if (columns_ == nullptr || !columns_->complete(entry)) return 0;
  }
  const std::int64_t block_tokens = store_->memory().shape().block_tokens;
  return attention_->first_key_to_choose(layer, rows.sequence, rows.first_position + 1,
                                         store_->memory().shape().quantized(), block_tokens) /
         block_tokens;
}

std::span<const std::int64_t> TokenLookup::whole_blocks(std::size_t entry, LayerId layer) {
  whole_blocks_.clear();
  const BatchSegment& rows = rows_[entry];
  const KvBook& book = store_->book();
  const std::int64_t blocks = book.table(rows.sequence).size();
  std::int64_t first = blocks;
  if (!chooses_ahead(layer)) {
    first = first_block_to_choose(entry, layer);
    if (first > 0 && columns_ != nullptr) columns_->add_blocks_without(entry, layer, whole_blocks_);
    std::erase_if(whole_blocks_, [&](std::int64_t block) { return on_device(entry, block); });
  }
  const bool lists = lists_recomputes(rows);
  for (std::int64_t block = 0; block < blocks; ++block) {
    const bool unlisted =
        !lists && book.table(rows.sequence)[block].place == BlockPlace::kRecomputable;
    if (unlisted || (block >= first && !on_device(entry, block))) whole_blocks_.push_back(block);
  }
  std::ranges::sort(whole_blocks_);
  whole_blocks_.erase(std::unique(whole_blocks_.begin(), whole_blocks_.end()), whole_blocks_.end());
  return whole_blocks_;
}

std::int64_t TokenLookup::pages(std::size_t entry) {
  const BatchSegment& rows = rows_[entry];
  const std::int64_t blocks = store_->book().table(rows.sequence).size();
  const auto on_host_from = [&](std::int64_t first) {
    std::int64_t count = 0;
    for (std::int64_t block = first; block < blocks; ++block)
      count += on_device(entry, block) ? 0 : 1;
    return count;
  };
  const std::int64_t on_host = on_host_from(0);
  if (on_host == 0) return 0;
  const std::int64_t tokens = attention_->list_tokens(rows.sequence, rows.first_position + 1);
  const std::int64_t block_tokens = store_->memory().shape().block_tokens;
  std::int64_t most = 0;
  bool asked_ahead = false;
  std::int64_t first_whole = blocks;  // of what layers that do not choose read
  for (LayerId layer(0); layer.value < std::ssize(windows_); layer = LayerId(layer.value + 1)) {
    if (!chooses_in(layer)) {
      first_whole =
          std::min(first_whole, store_->first_host_read(rows, layer, windows_[layer.index()]));
      if (first_whole == 0) return on_host;
      continue;
    }
    // All layers that choose ahead read equally many tokens.
    if (chooses_ahead(layer) && std::exchange(asked_ahead, true)) continue;
    const std::int64_t whole = std::ssize(whole_blocks(entry, layer));
    most = std::max(most, whole + blocks_for(tokens, block_tokens));
  }
  return std::min(on_host, std::max(most, on_host_from(first_whole)));
}

std::int64_t TokenLookup::most_recomputed(const ResolveCall& call) const {
  std::int64_t most = 0;
  const auto first = static_cast<std::size_t>(call.first_row);
  for (const BatchSegment& rows : rows_.subspan(first, static_cast<std::size_t>(call.lists.rows))) {
    if (!lists_recomputes(rows)) continue;
    const std::int64_t blocks = store_->book().table(rows.sequence).recomputable();
    most += std::min(blocks * store_->memory().shape().block_tokens, call.lists.capacity);
  }
  return most;
}

TokenLookup::Found TokenLookup::look_up(const ResolveCall& call, std::vector<Ticket>& tickets) {
  TransferEngine& transfers = *store_->transfers();
  // The resolver counts the layers that can be on the host.
  ResolveCall numbered = call;
  numbered.layer = LayerId(store_->memory().shape().sets.of(call.layer).page);
  KvResolver::Resolved resolved;
  // Beside compute, but where compute's stream brings a table of the call's own.
  const bool on_compute = !call.staged.empty();
  if (on_compute) {
    transfers.hold(last_);
    resolved = resolver_->resolve(numbered, *stream_);
  }
  last_ = transfers.bring(store_->memory().geometry(), [&](Stream* lane) {
    if (!on_compute) resolved = resolver_->resolve(numbered, lane == nullptr ? *stream_ : *lane);
    return resolved.missing;
  });
  tickets.push_back(last_);
  Found found{resolved.lists, resolved.recomputed};
  found.recomputed.most = std::min(resolved.recomputed.most, most_recomputed(call));
  if (found.recomputed.most == 0) return found;
  tickets.push_back(transfers.bring_inputs(
      store_->memory().geometry(),
      {store_->memory().saved_inputs(0, call.layer), store_->memory().shape().input_width},
      found.recomputed));
  return found;
}

ResolveCounts TokenLookup::counts() const {
  if (resolver_ == nullptr || stream_ == nullptr) return {};
  return resolver_->counts(*stream_);
}

}  // namespace triphase
