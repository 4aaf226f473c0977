#include "models/kv_step.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace triphase {

void KvStep::begin(KvStore& store, std::span<const BatchSegment> rows,
                   std::span<const std::int64_t> windows, AttentionRunner* attention,
                   Stream& stream) {
  const bool kept = store_ == &store && !store.early().empty();
  fetched_ = kept ? next_.fetched() : NextStep::Fetched{};
  if (kept) {
    ring_.give_back_before(unit_count());
  } else {
    if (!store.early().empty()) store.end_early();
    ring_.reset(store.sizes().staging_pages);
  }
  store_ = &store;
  attention_ = attention;
  rows_ = rows;
  windows_ = windows;
  stream_ = &stream;
  tables_ = slot_tables_ = nullptr;
  partial_blocks_.begin_step(store, rows);
  if (store.shape().quantized()) make_scale_tables();
  if (reads_transposed_k()) columns_.begin_step(store, rows, *attention);
  find_host_entries();
  find_choosing_entries();
  make_groups();
  page_tables_.resize(rows.size());
  if (staging() && std::ranges::find(choosing_, true) != choosing_.end()) {
    send_block_tables(stream);
  }
  std::int64_t count = 0;
  for (const BatchSegment& entry : rows) count += entry.count;
  slot_pages_.resize(static_cast<std::size_t>(count));
  slot_offsets_.resize(static_cast<std::size_t>(count));
  staged_ = 0;
  meet_early();
  next_.begin(store, rows, windows);
}

void KvStep::find_host_entries() {
  on_host_.assign(rows_.size(), false);
  // A method chooses with what it keeps on the device.
  if (!store_->shape().host_attention || attention_ != nullptr) return;
  const KvBook& book = store_->book();
  for (std::size_t index = 0; index < rows_.size(); ++index) {
    const BatchSegment& entry = rows_[index];
    bool there = entry.decode;
    const std::int64_t blocks = book.blocks(entry.sequence);
    for (std::int64_t block = 0; block < blocks && there; ++block) {
      there = book.block(entry.sequence, block).host_copy() >= 0;
    }
    on_host_[index] = there;
  }
}

void KvStep::find_choosing_entries() {
  choosing_.assign(rows_.size(), false);
  if (resolver_ == nullptr || attention_ == nullptr) return;
  for (std::size_t entry = 0; entry < rows_.size(); ++entry) {
    const BatchSegment& rows = rows_[entry];
    choosing_[entry] =
        rows.count == 1 && attention_->chooses(rows.sequence, rows.first_position + 1);
  }
}

void KvStep::find_needed(std::size_t entry, LayerId layer) {
  needed_.clear();
  const BatchSegment& rows = rows_[entry];
  const KvBook& book = store_->book();
  const std::int64_t blocks = book.blocks(rows.sequence);
  std::int64_t first = blocks;
  if (!chooses_ahead(layer)) {
    first = first_block_to_choose(entry, layer);
    if (first > 0 && reads_transposed_k()) columns_.add_blocks_without(entry, layer, needed_);
    std::erase_if(needed_, [&](std::int64_t block) { return !is_away(entry, block); });
  }
  const bool lists = lists_recomputes(rows);
  for (std::int64_t block = 0; block < blocks; ++block) {
    const bool unlisted =
        !lists && book.block(rows.sequence, block).place == BlockPlace::kRecomputable;
    if (unlisted || (block >= first && is_away(entry, block))) needed_.push_back(block);
  }
  std::ranges::sort(needed_);
  needed_.erase(std::unique(needed_.begin(), needed_.end()), needed_.end());
}

std::int64_t KvStep::chosen_pages(std::size_t entry) {
  const BatchSegment& rows = rows_[entry];
  std::int64_t away = 0;
  const std::int64_t blocks = store_->book().blocks(rows.sequence);
  for (std::int64_t block = 0; block < blocks; ++block) away += is_away(entry, block) ? 1 : 0;
  if (away == 0) return 0;
  const std::int64_t tokens = attention_->list_tokens(rows.sequence, rows.first_position + 1);
  std::int64_t most = 0;
  bool asked_ahead = false;
  for (LayerId layer(0); layer.index() < windows_.size(); layer = LayerId(layer.value + 1)) {
    // Some layers read whole blocks.
    if (!chooses_in(layer)) return away;
    // Of those that choose ahead all read the same.
    if (chooses_ahead(layer) && std::exchange(asked_ahead, true)) continue;
    find_needed(entry, layer);
    const std::int64_t pages = std::ssize(needed_) + (tokens + block_tokens() - 1) / block_tokens();
    most = std::max(most, pages);
  }
  return std::min(away, most);
}

void KvStep::send_block_tables(Stream& stream) {
  std::vector<std::int32_t> written = store_->take_written_host_blocks();
  if (attention_->method().lists() > 1) {
    // Of recomputable blocks nothing is in hot rows.
    const std::int64_t host_blocks = store_->sizes().host_blocks;
    std::erase_if(written, [&](std::int32_t block) { return block >= host_blocks; });
  }
  const BlockTables tables = step_block_tables_.make(*store_, rows_);
  row_blocks_ = tables.row_blocks;
  block_tables_ = resolver_->begin_step(tables, written, stream);
  if (!store_->shape().quantized()) slot_tables_ = &block_tables_;
}

Selection KvStep::resolve(Unit& unit, std::int64_t number, const Selection& chosen) {
  const SequenceGroup& group = groups_.at(number % groups());
  const LayerId layer(number / groups());
  const KvResolver::Resolved resolved =
      resolver_->resolve({.layer = layer,
                          .first_row = static_cast<std::int64_t>(group.first),
                          .lists = chosen,
                          .staged = unit.staged,
                          .first_spare_slot = unit.spare_page * block_tokens(),
                          .spare_slots = unit.spare_pages * block_tokens(),
                          .unit = number % resolver_->units()},
                         *stream_);
  TransferEngine& transfers = *store_->transfers();
  unit.tickets.push_back(transfers.bring(store_->geometry(), resolved.missing));
  unit.listed_recomputes = resolved.recomputed;
  unit.listed_recomputes.most = std::min(resolved.recomputed.most, most_recomputed(group, chosen));
  if (unit.listed_recomputes.most == 0) return resolved.lists;
  unit.tickets.push_back(transfers.bring_inputs(
      store_->geometry(), {store_->saved_inputs(0, layer), store_->shape().input_width},
      unit.listed_recomputes));
  return resolved.lists;
}

std::int64_t KvStep::most_recomputed(const SequenceGroup& group, const Selection& chosen) const {
  std::int64_t most = 0;
  for (std::size_t entry = group.first; entry < group.first + group.count; ++entry) {
    if (!lists_recomputes(rows_[entry])) continue;
    const std::int64_t blocks = store_->book().recomputable_blocks(rows_[entry].sequence);
    most += std::min(blocks * block_tokens(), chosen.capacity);
  }
  return most;
}

Selection KvStep::look_up(LayerId layer, std::int64_t group, const Selection& chosen) {
  TRIPHASE_CHECK(looks_up_ && looked_up_ == nullptr, "a choice that is to be looked up");
  const std::int64_t number = layer.value * groups() + group;
  Unit& unit = unit_of(number);
  const std::size_t held = unit.tickets.size();
  const Selection lists = resolve(unit, number, chosen);
  for (const Ticket ticket : std::span(unit.tickets).subspan(held)) {
    store_->transfers()->hold(ticket);
  }
  recomputes_ = {};
  listed_recomputes_ = unit.listed_recomputes;
  return lists;
}

KvStep::BytesRead KvStep::bytes_read() const {
  BytesRead read{.blocks = reads_.bytes().blocks, .inputs = reads_.bytes().inputs};
  if (resolver_ == nullptr || stream_ == nullptr) return read;
  const ResolveCounts counts = resolver_->counts(*stream_);
  const auto part =
      static_cast<std::uint64_t>(store_->geometry().record_bytes() / attention_->method().lists());
  read.recomputed_tokens = static_cast<std::uint64_t>(counts.recomputed);
  const std::uint64_t inputs = read.recomputed_tokens * KvStore::input_bytes(store_->shape()) /
                               static_cast<std::uint64_t>(block_tokens());
  read.tokens = part * static_cast<std::uint64_t>(counts.brought);
  read.chosen = part * static_cast<std::uint64_t>(counts.chosen);
  read.cached = part * static_cast<std::uint64_t>(counts.cached);
  read.inputs += inputs;
  if (!store_->transfers()->counts_what_it_brings()) read.uncounted = read.tokens + inputs;
  return read;
}

void KvStep::make_groups() {
  if (store_->sizes().host_blocks == 0) {
    groups_.make_one(rows_.size());
  } else {
    entries_ = {
        .rows = rows_,
        .blocks =
            [this](std::size_t entry) {
              if (on_host_[entry]) return std::int64_t{0};
              return store_->book().blocks(rows_[entry].sequence);
            },
        // A sequence's blocks are in the same tier in every layer.
        .is_away = [this](std::size_t entry, std::int64_t block) { return is_away(entry, block); },
        .chosen_pages = [this](std::size_t entry) -> std::optional<std::int64_t> {
          if (!choosing_[entry]) return std::nullopt;
          return chosen_pages(entry);
        }};
    groups_.make(store_->book(), entries_, store_->sizes().staging_pages);
  }
}

void KvStep::make_scale_tables() {
  if (scale_tables_.size() < rows_.size()) scale_tables_.resize(rows_.size());
  for (std::size_t index = 0; index < rows_.size(); ++index) {
    const BatchSegment& entry = rows_[index];
    std::vector<PageId>& table = scale_tables_[index];
    table.clear();
    const std::int64_t blocks = store_->book().blocks(entry.sequence);
    table.reserve(static_cast<std::size_t>(blocks));
    for (std::int64_t block = 0; block < blocks; ++block) {
      table.emplace_back(store_->book().block_index(entry.sequence, block));
    }
  }
}

std::int64_t KvStep::first_needed_block(const BatchSegment& rows, std::int64_t layer) const {
  // A method that chooses for itself does so among all tokens.
  if (attention_ != nullptr) return 0;
  return rows.first_block_in_window(windows_[static_cast<std::size_t>(layer)], block_tokens());
}

void KvStep::meet_early() {
  fresh_.clear();
  last_early_unit_ = -1;
  early_for_next_ = 0;
  const EarlyBlocks& early = store_->early();
  if (early.empty()) return;
  std::vector<std::int64_t> readers(static_cast<std::size_t>(early.ranges()), -1);
  const std::int64_t units = staging() ? early.layers() * groups() : 0;
  for (std::int64_t number = 0; number < units; ++number) {
    const LayerId layer(number / groups());
    std::int64_t& fresh = fresh_.emplace_back(0);
    groups_.for_each_away(
        store_->book(), entries_, groups_.at(number % groups()),
        [&](std::size_t entry, std::int64_t block) {
          const auto source = store_->early_source(layer, rows_[entry].sequence, block);
          const auto found = source ? early.find(*source) : std::nullopt;
          if (found) {
            readers[static_cast<std::size_t>(found->range)] = last_early_unit_ = number;
          } else {
            ++fresh;
          }
        });
  }
  if (last_early_unit_ < 0) {
    end_early();
    ring_.reset(store_->sizes().staging_pages);
    return;
  }
  // The pages of a range that were not filled are for the unit that it was meant for.
  for (std::int64_t number = 0; number < units; ++number) {
    const NextStep::Range* range = meant_for(number);
    if (range == nullptr) continue;
    std::int64_t& reader = readers[static_cast<std::size_t>(range - fetched_.ranges.data())];
    reader = std::max(reader, number);
    last_early_unit_ = std::max(last_early_unit_, number);
  }
  for (std::size_t range = 0; range < readers.size(); ++range) {
    const std::int64_t reader = readers[range] < 0 ? last_early_unit_ : readers[range];
    ring_.set_reader(static_cast<std::int64_t>(range), reader);
  }
}

const NextStep::Range* KvStep::meant_for(std::int64_t number) const {
  const std::int64_t group = number % groups();
  if (group >= fetched_.groups) return nullptr;
  const auto range = static_cast<std::size_t>(number / groups() * fetched_.groups + group);
  return range < fetched_.ranges.size() ? &fetched_.ranges[range] : nullptr;
}

void KvStep::end_early() {
  store_->end_early();
  last_early_unit_ = -1;
  fetched_.ranges.clear();
  fresh_.clear();
}

std::optional<std::int64_t> KvStep::take_pages(std::int64_t number) {
  const auto index = static_cast<std::size_t>(number);
  const std::int64_t fresh =
      index < fresh_.size() ? fresh_[index] : groups_.at(number % groups()).pages;
  const NextStep::Range* range = meant_for(number);
  if (range != nullptr && range->pages - range->early >= fresh) {
    return range->first_page + range->early;
  }
  return ring_.take(fresh, number);
}

void KvStep::stage_to(std::int64_t number) {
  const std::int64_t last = prefetch_ ? unit_count() : number + 1;
  while (staged_ < last && staged_ - number < static_cast<std::int64_t>(units_.size())) {
    // Results of later ones would be written over those still read.
    const bool ahead = resolver_ != nullptr && groups_.at(staged_ % groups()).chooses &&
                       attention_->method().chooses_early();
    if (ahead && staged_ - number >= resolver_->units()) break;
    std::optional<std::int64_t> page = take_pages(staged_);
    if (!page && staged_ == number && last_early_unit_ >= 0) {
      // What was brought early leaves no room for what has come to it since.
      end_early();
      ring_.reset(store_->sizes().staging_pages);
      page = take_pages(staged_);
    }
    if (!page) break;
    stage(staged_++, store_->sizes().device_pages + *page);
  }
  TRIPHASE_CHECK(staged_ > number, "staging pages for the group at hand");
}

// While the last layer computes, so that what this step still needs of the link comes first.
void KvStep::fetch_for_next_step(std::int64_t number) {
  const bool last_layer = number + groups() >= unit_count();
  if (!prefetch_ || !last_layer || staged_ < unit_count() || last_early_unit_ >= 0) return;
  if (store_->shape().host_attention) return;
  if (attention_ != nullptr) return;
  const std::int64_t blocks = next_.fetch(ring_, unit_count());
  early_for_next_ += blocks;
  reads_.count_early(blocks);
}

std::int64_t KvStep::first_block_to_choose(std::size_t entry, LayerId layer) const {
  const BatchSegment& rows = rows_[entry];
  if (attention_ == nullptr || rows.count != 1) return 0;
  if (attention_->method().reads_transposed_k()) {
    // Where places are short, keys are read by rows.
    if (!reads_transposed_k() || !columns_.complete(entry)) return 0;
  }
  return attention_->first_key_to_choose(layer, rows.sequence, rows.first_position + 1,
                                         store_->shape().quantized(), block_tokens()) /
         block_tokens();
}

void KvStep::stage(std::int64_t number, std::int64_t first_page) {
  Unit& unit = unit_of(number);
  const LayerId layer(number / groups());
  const SequenceGroup& group = groups_.at(number % groups());
  const bool looked_up = looks_up(group, layer);
  unit.tickets.clear();
  unit.listed_recomputes = {};
  fill_tables(unit, layer, group);
  reads_.begin(*store_, layer, first_page);
  for (std::size_t index = 0; index < group.count; ++index) {
    read_blocks(group.first + index, layer, looked_up, unit.tables[index]);
  }
  unit.early_ranges = reads_.early_ranges();
  unit.recomputes = reads_.recomputes();
  TransferEngine& transfers = *store_->transfers();
  unit.tickets.push_back(
      transfers.move_tokens(Lane::kToDevice, store_->geometry(), reads_.make_runs()));
  unit.tickets.push_back(transfers.move_pieces(Lane::kToDevice, reads_.make_pieces()));
  if (!looked_up) return;
  unit.spare_page = reads_.next_page();
  unit.spare_pages = first_page + group.pages - unit.spare_page;
  if (unit.spare_page > first_page) note_staged(unit, group);
  if (!chooses_ahead(layer)) return;
  const auto rows = rows_.subspan(group.first, group.count);
  unit.looked_up = resolve(unit, number, attention_->choose_ahead(layer, rows, *stream_));
}

void KvStep::fill_tables(Unit& unit, LayerId layer, const SequenceGroup& group) {
  if (unit.tables.size() < group.count) unit.tables.resize(group.count);
  unit.staged.clear();
  for (std::size_t index = 0; index < group.count; ++index) {
    store_->fill_pages(rows_[group.first + index].sequence, layer, unit.tables[index]);
  }
}

void KvStep::read_blocks(std::size_t entry, LayerId layer, bool looked_up,
                         std::vector<PageId>& table) {
  if (on_host_[entry]) return;
  if (looked_up) {
    find_needed(entry, layer);
    for (const std::int64_t block : needed_) reads_.read_block(rows_[entry], block, table);
    return;
  }
  const std::int64_t blocks = std::ssize(table);
  for (std::int64_t block = first_needed_block(rows_[entry], layer.value); block < blocks;
       ++block) {
    reads_.read_block(rows_[entry], block, table);
  }
}

void KvStep::note_staged(Unit& unit, const SequenceGroup& group) const {
  unit.staged.assign(group.count * static_cast<std::size_t>(row_blocks_), -1);
  const std::int64_t device_pages = store_->sizes().device_pages;
  for (std::size_t index = 0; index < group.count; ++index) {
    const std::vector<PageId>& table = unit.tables[index];
    const std::size_t first = index * static_cast<std::size_t>(row_blocks_);
    for (std::size_t block = 0; block < table.size(); ++block) {
      if (table[block].value >= device_pages) unit.staged[first + block] = table[block].value;
    }
  }
}

KvSlots KvStep::slots(LayerId layer) {
  const std::int64_t block = block_tokens();
  if (store_->shape().quantized()) {
    partial_blocks_.begin_layer(layer);
    std::size_t row = 0;
    for (const PartialBlocks::Run& run : partial_blocks_.runs()) {
      for (std::int64_t i = 0; i < run.count; ++i, ++row) {
        slot_pages_[row] = run.partial_page;
        slot_offsets_[row] = static_cast<std::int32_t>((run.first_position + i) % block);
      }
    }
    return {slot_pages_, slot_offsets_, slot_tables_, layer.value};
  }
  for (const BatchSegment& entry : rows_) {
    for (std::int64_t i = 0; i < entry.count; ++i) {
      const std::int64_t position = entry.first_position + i;
      const KvBlock& own = store_->book().block(entry.sequence, position / block);
      const auto row = static_cast<std::size_t>(entry.first_row + i);
      slot_pages_[row] = store_->page(own, layer);
      slot_offsets_[row] = static_cast<std::int32_t>(position % block);
      store_->forget_transposed_k(entry.sequence, layer, position / block);
    }
  }
  return {slot_pages_, slot_offsets_, slot_tables_, layer.value};
}

void KvStep::set_slot_tables(const SegmentTables* tables) {
  slot_tables_ = tables;
  if (!partial_blocks_.taken_for_step()) return;
  block_tables_.rows = tables->rows;
  block_tables_.partial_pages = tables->partial_pages;
}

KvLayerView KvStep::view(LayerId layer) const {
  const KvStore::Shape& shape = store_->shape();
  return {.k = store_->k_pages(),
          .v = store_->v_pages(),
          .dtype = shape.dtype,
          .page_tokens = shape.block_tokens,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .scales = store_->scales(layer),
          .partial_k = store_->partial_k_pages(),
          .partial_v = store_->partial_v_pages(),
          .partial_dtype = shape.partial_dtype,
          .kt = reads_transposed_k() ? store_->transposed_k_pages() : nullptr,
          .kt_ready = store_->transposed_k().ready(),
          .kt_pages = store_->transposed_k().places() * shape.layers,
          .kt_run = store_->transposed_k().run()};
}

std::span<const AttentionSegment> KvStep::segments(LayerId layer, std::int64_t group_index) {
  const std::int64_t number = layer.value * groups() + group_index;
  recomputes_ = {};
  listed_recomputes_ = {};
  looks_up_ = false;
  looked_up_ = nullptr;
  if (staging()) {
    if (last_early_unit_ >= 0 && number > last_early_unit_) end_early();
    ring_.give_back_before(number);
    stage_to(number);
    fetch_for_next_step(number);
    const Unit& unit = unit_of(number);
    store_->hold_early(unit.early_ranges);
    for (const Ticket ticket : unit.tickets) store_->transfers()->hold(ticket);
    recomputes_ = unit.recomputes;
    looks_up_ = looks_up(groups_.at(group_index), layer);
    if (looks_up_ && chooses_ahead(layer)) {
      looked_up_ = &unit.looked_up;
      listed_recomputes_ = unit.listed_recomputes;
    }
  }
  make_segments(layer, group_index);
  return segments_;
}

std::span<const AttentionSegment> KvStep::announced_segments(LayerId layer, std::int64_t index) {
  const SequenceGroup& group = groups_.at(index);
  looks_up_ = staging() && looks_up(group, layer);
  if (staging() && !(group.chooses && chooses_in(layer))) return {};
  // Staging the unit fills them again.
  if (staging()) fill_tables(unit_of(layer.value * groups() + index), layer, group);
  make_segments(layer, index);
  return segments_;
}

void KvStep::make_segments(LayerId layer, std::int64_t group_index) {
  const std::int64_t number = layer.value * groups() + group_index;
  const SequenceGroup& group = groups_.at(group_index);
  const auto table_of = [&](std::size_t entry) -> std::span<const PageId> {
    if (staging()) return unit_of(number).tables[entry - group.first];
    return page_tables_[entry];
  };
  const bool by_columns = reads_transposed_k();
  const auto columns_of = [&](std::size_t entry) -> std::span<const PageId> {
    return by_columns ? columns_.table(entry, layer) : std::span<const PageId>();
  };
  // The tables that serve an entry, and its row there; the resolver's know no staging pages.
  const bool by_lookup = looks_up_ && unit_of(number).staged.empty();
  const bool by_entry = by_lookup || (staging() && group.chooses && group.pages == 0);
  const auto tables_of = [&](std::size_t entry, AttentionSegment& segment) {
    segment.tables = by_entry ? &block_tables_ : looks_up_ ? nullptr : tables_;
    segment.table_row = static_cast<std::int64_t>(by_entry ? entry : segments_.size());
    segment.table_layer = layer.value;
  };
  const std::int64_t window = windows_[layer.index()];
  for (std::size_t entry = 0; entry < page_tables_.size() && !staging(); ++entry) {
    store_->fill_pages(rows_[entry].sequence, layer, page_tables_[entry]);
  }
  segments_.clear();
  segment_sequences_.clear();
  if (store_->shape().quantized()) {
    for (const PartialBlocks::Run& run : partial_blocks_.runs()) {
      if (run.entry < group.first || run.entry >= group.first + group.count) continue;
      const BatchSegment& entry = rows_[run.entry];
      segment_sequences_.push_back(entry.sequence);
      AttentionSegment segment{
          .query_begin = entry.first_row + run.first_position - entry.first_position,
          .query_count = run.count,
          .context_tokens = run.first_position + run.count,
          .pages = table_of(run.entry),
          .window = window,
          .scale_pages = scale_tables_[run.entry],
          .partial_page = run.partial_page,
          .transposed_k = columns_of(run.entry)};
      tables_of(run.entry, segment);
      segments_.push_back(segment);
    }
    return;
  }
  for (std::size_t index = group.first; index < group.first + group.count; ++index) {
    if (on_host_[index]) continue;
    const BatchSegment& entry = rows_[index];
    segment_sequences_.push_back(entry.sequence);
    AttentionSegment segment{.query_begin = entry.first_row,
                             .query_count = entry.count,
                             .context_tokens = entry.first_position + entry.count,
                             .pages = table_of(index),
                             .window = window,
                             .transposed_k = columns_of(index)};
    tables_of(index, segment);
    segments_.push_back(segment);
  }
}

void KvStep::done(LayerId /*layer*/, std::int64_t group) {
  if (group + 1 < groups()) return;
  partial_blocks_.end_layer();
}

}  // namespace triphase
