#include "models/kv_step.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace triphase {
namespace {

constexpr std::int64_t kStagedParts = 4;

}  // namespace

const KvRecomputes KvStep::kNoRecomputes;

void KvStep::begin(KvStore& store, std::span<const BatchSegment> rows,
                   std::span<const std::int64_t> windows, AttentionRunner* attention) {
  store_ = &store;
  attention_ = attention;
  rows_ = rows;
  windows_ = windows;
  find_host_entries();
  make_groups();
  if (store.shape().quantized()) make_scale_tables();
  if (reads_key_columns()) make_column_places();
  std::int64_t count = 0;
  for (const BatchSegment& entry : rows) count += entry.count;
  slot_pages_.resize(static_cast<std::size_t>(count));
  slot_offsets_.resize(static_cast<std::size_t>(count));
  reads_.begin_step(store, attention != nullptr && attention->method().per_kv_head());
  staged_ = 0;
  if (!staging_) return;
  ring_.reset(store.sizes().staging_pages);
  if (prefetch_) stage_to(0);
}

void KvStep::find_host_entries() {
  on_host_.assign(rows_.size(), false);
  // A method chooses with what it keeps on the device.
  if (!store_->shape().host_attention || attention_ != nullptr) return;
  const KvResidency& residency = store_->residency();
  for (std::size_t index = 0; index < rows_.size(); ++index) {
    const BatchSegment& entry = rows_[index];
    bool there = entry.decode;
    const std::int64_t blocks = residency.blocks(entry.sequence);
    for (std::int64_t block = 0; block < blocks && there; ++block) {
      there = residency.host_copy(entry.sequence, block) >= 0;
    }
    on_host_[index] = there;
  }
}

// Consecutive entries whose blocks on the host fit their part of the staging pages together: of
// quarters, so that one is read while others are filled and the link does not wait for what a layer
// computes besides attention; of larger parts where a sequence needs that. What sequences share is
// brought once for a group.
void KvStep::make_groups() {
  groups_.clear();
  staging_ = false;
  if (store_->sizes().host_blocks > 0) {
    std::int64_t largest = 0;
    for (std::size_t index = 0; index < rows_.size(); ++index) {
      largest = std::max(largest, blocks_on_host(index));
    }
    if (largest > 0) {
      const std::int64_t pages = store_->sizes().staging_pages;
      TRIPHASE_CHECK(largest <= pages, "a sequence's blocks on the host exceed the staging pages");
      staging_ = true;
      const std::int64_t room = std::max(pages / kStagedParts, largest);
      seen_blocks_.resize(static_cast<std::size_t>(store_->residency().block_capacity()), -1);
      ++group_stamp_;
      groups_.push_back({});
      for (std::size_t index = 0; index < rows_.size(); ++index) {
        std::int64_t blocks = new_blocks(index);
        if (groups_.back().pages + blocks > room) {
          groups_.push_back({index});
          ++group_stamp_;
          blocks = new_blocks(index);
        }
        groups_.back().pages += blocks;
        ++groups_.back().count;
      }
      return;
    }
  }
  groups_.push_back({0, rows_.size(), 0});
}

std::span<const PageId> KvStep::pages_of(const BatchSegment& rows, LayerId layer) const {
  // A replayed prefix has the rest of its sequence behind it.
  const std::int64_t tokens = rows.first_position + rows.count;
  const auto blocks = static_cast<std::size_t>((tokens + block_tokens() - 1) / block_tokens());
  return store_->residency().pages(rows.sequence, layer).first(blocks);
}

// A sequence's blocks are in the same tier in every layer.
std::int64_t KvStep::blocks_on_host(std::size_t entry) const {
  if (on_host_[entry]) return 0;
  const std::span<const PageId> pages = pages_of(rows_[entry], LayerId(0));
  return std::ranges::count_if(pages, [](PageId page) { return !page.valid(); });
}

// Those that no entry of the group at hand has; they count as seen from here on.
std::int64_t KvStep::new_blocks(std::size_t entry) {
  if (on_host_[entry]) return 0;
  const BatchSegment& rows = rows_[entry];
  const KvResidency& residency = store_->residency();
  const std::span<const PageId> pages = pages_of(rows, LayerId(0));
  std::int64_t count = 0;
  for (std::size_t block = 0; block < pages.size(); ++block) {
    if (pages[block].valid()) continue;
    const std::int32_t index =
        residency.block_index(rows.sequence, static_cast<std::int64_t>(block));
    std::int64_t& seen = seen_blocks_[static_cast<std::size_t>(index)];
    if (seen == group_stamp_) continue;
    seen = group_stamp_;
    ++count;
  }
  return count;
}

void KvStep::make_scale_tables() {
  if (scale_tables_.size() < rows_.size()) scale_tables_.resize(rows_.size());
  for (std::size_t index = 0; index < rows_.size(); ++index) {
    const BatchSegment& entry = rows_[index];
    std::vector<PageId>& table = scale_tables_[index];
    table.clear();
    const std::int64_t blocks = store_->residency().blocks(entry.sequence);
    table.reserve(static_cast<std::size_t>(blocks));
    for (std::int64_t block = 0; block < blocks; ++block) {
      table.emplace_back(store_->residency().block_index(entry.sequence, block));
    }
  }
}

void KvStep::make_column_places() {
  store_->key_columns().begin_step();
  if (column_places_.size() < rows_.size()) {
    column_places_.resize(rows_.size());
    column_tables_.resize(rows_.size());
    host_places_.resize(rows_.size());
  }
  const bool on_host = reads_host_columns();
  for (std::size_t index = 0; index < rows_.size(); ++index) {
    const BatchSegment& entry = rows_[index];
    std::vector<std::int32_t>& places = column_places_[index];
    places.clear();
    host_places_[index].clear();
    if (!attention_->decodes(entry.sequence, entry.first_position + 1)) continue;
    // INT8: the query's own block is read unquantized.
    const std::int64_t tokens = entry.first_position + (store_->shape().quantized() ? 0 : 1);
    const std::int64_t blocks = tokens / block_tokens();
    if (on_host) {
      for (std::int64_t block = 0; block < blocks; ++block) {
        host_places_[index].push_back(store_->host_column(entry.sequence, block));
      }
    }
    const auto is_away = [&](std::int64_t block) {
      return on_host &&
             host_places_[index][static_cast<std::size_t>(block)] != HostKeyColumns::kNone;
    };
    for (std::int64_t block = 0; block < blocks; ++block) {
      places.push_back(
          is_away(block) ? KeyColumns::kNone
                         : store_->key_columns().take(store_->residency(), entry.sequence, block));
    }
    if (std::ranges::all_of(host_places_[index],
                            [](std::int32_t place) { return place == HostKeyColumns::kNone; })) {
      host_places_[index].clear();
    }
  }
}

void KvStep::add_blocks_without_columns(std::size_t entry, LayerId layer,
                                        std::vector<std::int64_t>& blocks) {
  const KeyColumns& columns = store_->key_columns();
  const std::vector<std::int32_t>& places = column_places_[entry];
  for (std::size_t block = 0; block < places.size(); ++block) {
    if (columns.is_ready(columns.page(layer, places[block]))) continue;
    blocks.push_back(static_cast<std::int64_t>(block));
  }
}

std::int64_t KvStep::first_needed_block(const BatchSegment& rows, std::int64_t layer) const {
  const std::int64_t window = windows_[static_cast<std::size_t>(layer)];
  // A method that chooses for itself does so among all tokens.
  if (window <= 0 || attention_ != nullptr) return 0;
  return std::max<std::int64_t>(0, rows.first_position + 1 - window) / block_tokens();
}

const TokenChoice* KvStep::early_choice(const BatchSegment& rows, LayerId layer) const {
  if (attention_ == nullptr || rows.count != 1) return nullptr;
  return attention_->early_choice(layer, rows.sequence, rows.first_position + 1);
}

void KvStep::give_back_before(std::int64_t number) {
  while (staged_ - ring_.held() < std::min(number, staged_)) ring_.give_back_oldest();
}

void KvStep::stage_to(std::int64_t number) {
  const std::int64_t last = prefetch_ ? unit_count() : number + 1;
  while (staged_ < last && ring_.held() < static_cast<std::int64_t>(units_.size())) {
    const Group& group = groups_[static_cast<std::size_t>(staged_ % groups())];
    const std::optional<std::int64_t> page = ring_.take(group.pages);
    if (!page) break;
    stage(staged_++, store_->sizes().device_pages + *page);
  }
  TRIPHASE_CHECK(staged_ > number, "staging pages for the group at hand");
}

std::int64_t KvStep::first_block_to_choose(std::size_t entry, LayerId layer) const {
  const BatchSegment& rows = rows_[entry];
  if (attention_ == nullptr || rows.count != 1) return 0;
  if (attention_->method().reads_key_columns()) {
    // Where places are short, keys are read by rows.
    if (!reads_key_columns()) return 0;
    const std::vector<std::int32_t>& places = column_places_[entry];
    const bool is_short = std::ranges::find(places, KeyColumns::kNone) != places.end();
    if (is_short && !reads_host_columns()) return 0;
  }
  return attention_->first_key_to_choose(layer, rows.sequence, rows.first_position + 1,
                                         store_->shape().quantized(), block_tokens()) /
         block_tokens();
}

void KvStep::stage(std::int64_t number, std::int64_t first_page) {
  Unit& unit = unit_of(number);
  const LayerId layer(number / groups());
  const Group& group = groups_[static_cast<std::size_t>(number % groups())];
  if (unit.tables.size() < group.count) {
    unit.tables.resize(group.count);
    unit.slots.resize(group.count);
    unit.first_blocks.resize(group.count);
    unit.more_blocks.resize(group.count);
  }
  unit.first_page = first_page;
  unit.any_late = false;
  for (std::size_t index = 0; index < group.count; ++index) {
    const BatchSegment& entry = rows_[group.first + index];
    const std::int64_t first = first_block_to_choose(group.first + index, layer);
    unit.more_blocks[index].clear();
    if (first > 0 && reads_host_columns()) {
      const auto blocks = static_cast<std::int64_t>(host_places_[group.first + index].size());
      store_->make_host_columns(entry.sequence, layer, blocks);
    } else if (first > 0 && reads_key_columns()) {
      add_blocks_without_columns(group.first + index, layer, unit.more_blocks[index]);
    }
    unit.any_late = unit.any_late || first > 0;
    unit.first_blocks[index] = std::max(first, first_needed_block(entry, layer.value));
    unit.slots[index].clear();
  }
  read_first_round(unit, layer, group);
  unit.ticket = move_reads(unit.recomputes, unit.input_ticket);
}

void KvStep::read_first_round(Unit& unit, LayerId layer, const Group& group) {
  reads_.begin(layer, unit.first_page);
  for (std::size_t index = 0; index < group.count; ++index) {
    const BatchSegment& entry = rows_[group.first + index];
    const std::span<const PageId> pages = pages_of(entry, layer);
    std::vector<PageId>& table = unit.tables[index];
    table.assign(pages.begin(), pages.end());
    if (on_host_[group.first + index]) continue;
    if (const TokenChoice* choice = early_choice(entry, layer)) {
      reads_.read_tokens(entry, *choice, table, unit.slots[index]);
    } else {
      reads_.read_blocks(entry, unit.first_blocks[index], table);
      for (const std::int64_t block : unit.more_blocks[index]) {
        reads_.read_block(entry, block, table);
      }
    }
  }
}

Ticket KvStep::move_reads(KvRecomputes& recomputes, Ticket& inputs) {
  TransferEngine& transfers = *store_->transfers();
  reads_.make_runs(transfers.piece_cost_bytes(), runs_);
  const Ticket ticket = transfers.move_tokens(Lane::kToDevice, store_->geometry(), runs_);
  reads_.make_recomputes(transfers.piece_cost_bytes(), recomputes, pieces_);
  inputs = transfers.move_pieces(Lane::kToDevice, pieces_);
  return ticket;
}

void KvStep::fetch(LayerId layer, std::int64_t group_index,
                   std::span<const TokenChoice* const> choices) {
  TRIPHASE_CHECK(late_ && choices.size() == segments_.size(), "a choice for each segment");
  Unit& unit = unit_of(layer.value * groups() + group_index);
  const Group& group = groups_[static_cast<std::size_t>(group_index)];
  // Other units have been staged since: what came of this one is counted up again.
  read_first_round(unit, layer, group);
  reads_.begin_second_round();
  for (std::size_t index = 0; index < choices.size(); ++index) {
    const std::size_t at = segment_entries_[index];
    const BatchSegment& entry = rows_[group.first + at];
    if (choices[index] == nullptr) {
      reads_.read_blocks(entry, first_needed_block(entry, layer.value), unit.tables[at]);
    } else {
      reads_.read_tokens(entry, *choices[index], unit.tables[at], unit.slots[at]);
      segment_slots_[index] = unit.slots[at];
    }
  }
  Ticket inputs;
  const Ticket ticket = move_reads(fetched_recomputes_, inputs);
  recomputes_ = &fetched_recomputes_;
  store_->transfers()->wait(ticket);
  store_->transfers()->wait(inputs);
}

KvSlots KvStep::slots(LayerId layer) {
  const std::int64_t block = block_tokens();
  closes_.clear();
  if (store_->shape().quantized()) {
    begin_open_runs(layer);
    std::size_t row = 0;
    for (const OpenRun& run : open_runs_) {
      for (std::int64_t i = 0; i < run.count; ++i, ++row) {
        slot_pages_[row] = run.open_page;
        slot_offsets_[row] = static_cast<std::int32_t>((run.first_position + i) % block);
      }
    }
    return {slot_pages_, slot_offsets_};
  }
  for (const BatchSegment& entry : rows_) {
    const std::span<const PageId> pages = store_->residency().pages(entry.sequence, layer);
    for (std::int64_t i = 0; i < entry.count; ++i) {
      const std::int64_t position = entry.first_position + i;
      const auto row = static_cast<std::size_t>(entry.first_row + i);
      slot_pages_[row] = pages[static_cast<std::size_t>(position / block)];
      slot_offsets_[row] = static_cast<std::int32_t>(position % block);
      store_->forget_key_columns(entry.sequence, layer, position / block);
    }
  }
  return {slot_pages_, slot_offsets_};
}

void KvStep::begin_open_runs(LayerId layer) {
  const std::int64_t block = block_tokens();
  open_runs_.clear();
  for (std::size_t index = 0; index < rows_.size(); ++index) {
    const BatchSegment& entry = rows_[index];
    const std::span<const PageId> pages = store_->residency().pages(entry.sequence, layer);
    // The sequence's own open block is further on than what is computed again, in whole blocks.
    PageId replayed;
    PageId& current = entry.replay ? replayed : store_->open_pages().current(entry.sequence, layer);
    const std::int64_t end = entry.first_position + entry.count;
    for (std::int64_t position = entry.first_position; position < end;) {
      const std::int64_t own = position / block;
      const std::int64_t run_end = std::min(end, (own + 1) * block);
      if (position % block == 0) {
        current = store_->open_pages().take();
      } else {
        TRIPHASE_CHECK(current.valid(), "an open block without its page");
      }
      open_runs_.push_back({index, position, run_end - position, current});
      if (run_end % block == 0) {
        closes_.push_back(
            {.open_page = current,
             .page = pages[static_cast<std::size_t>(own)],
             .scale_page = PageId(store_->residency().block_index(entry.sequence, own))});
        store_->forget_key_columns(entry.sequence, layer, own);
        // Queries of this step still read it; free once the layer is done.
        spent_open_.push_back(current);
        current = PageId();
      }
      position = run_end;
    }
  }
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
          .open_k = store_->open_k_pages(),
          .open_v = store_->open_v_pages(),
          .open_dtype = shape.open_dtype,
          .kt = reads_key_columns() ? store_->key_column_pages() : nullptr,
          .kt_ready = store_->key_columns().ready(),
          .kt_pages = store_->key_columns().places() * shape.layers,
          .kt_run = store_->key_columns().run()};
}

// Rows that choose by channels: those whose keys did not come in the first round.
void KvStep::expect_channels(LayerId layer, std::int64_t group_index) {
  const Unit& unit = unit_of(layer.value * groups() + group_index);
  const Group& group = groups_[static_cast<std::size_t>(group_index)];
  channels_.begin(*store_, layer);
  for (std::size_t index = 0; index < segments_.size(); ++index) {
    const std::size_t at = segment_entries_[index];
    const std::vector<std::int32_t>& places = host_places_[group.first + at];
    if (unit.first_blocks[at] == 0 || places.empty()) continue;
    channels_.expect(index, places);
    brings_channels_ = true;
  }
}

std::span<const AttentionSegment> KvStep::segments(LayerId layer, std::int64_t group_index) {
  const std::int64_t number = layer.value * groups() + group_index;
  recomputes_ = &kNoRecomputes;
  late_ = false;
  brings_channels_ = false;
  if (staging_) {
    give_back_before(number);
    stage_to(number);
    store_->transfers()->wait(unit_of(number).ticket);
    store_->transfers()->wait(unit_of(number).input_ticket);
    recomputes_ = &unit_of(number).recomputes;
    late_ = unit_of(number).any_late;
  }
  make_segments(layer, group_index);
  if (late_ && reads_host_columns()) expect_channels(layer, group_index);
  return segments_;
}

void KvStep::make_segments(LayerId layer, std::int64_t group_index) {
  const std::int64_t number = layer.value * groups() + group_index;
  const Group& group = groups_[static_cast<std::size_t>(group_index)];
  const auto table_of = [&](std::size_t entry) -> std::span<const PageId> {
    if (staging_) return unit_of(number).tables[entry - group.first];
    return store_->residency().pages(rows_[entry].sequence, layer);
  };
  const auto add_sequence = [&](std::size_t entry) {
    segment_sequences_.push_back(rows_[entry].replay ? SequenceId() : rows_[entry].sequence);
    segment_entries_.push_back(entry - group.first);
    segment_slots_.emplace_back();
    if (staging_) segment_slots_.back() = unit_of(number).slots[entry - group.first];
  };
  const bool by_columns = reads_key_columns();
  const auto columns_of = [&](std::size_t entry) -> std::span<const PageId> {
    if (!by_columns) return {};
    std::vector<PageId>& table = column_tables_[entry];
    table.clear();
    for (const std::int32_t place : column_places_[entry]) {
      table.push_back(store_->key_columns().page(layer, place));
    }
    // An empty table would mean another numbering.
    table.emplace_back();
    return table;
  };
  const std::int64_t window = windows_[layer.index()];
  segments_.clear();
  segment_sequences_.clear();
  segment_slots_.clear();
  segment_entries_.clear();
  if (store_->shape().quantized()) {
    for (const OpenRun& run : open_runs_) {
      if (run.entry < group.first || run.entry >= group.first + group.count) continue;
      const BatchSegment& entry = rows_[run.entry];
      add_sequence(run.entry);
      segments_.push_back(
          {.query_begin = entry.first_row + run.first_position - entry.first_position,
           .query_count = run.count,
           .context_tokens = run.first_position + run.count,
           .pages = table_of(run.entry),
           .window = window,
           .scale_pages = scale_tables_[run.entry],
           .open_page = run.open_page,
           .key_columns = columns_of(run.entry)});
    }
    return;
  }
  for (std::size_t index = group.first; index < group.first + group.count; ++index) {
    if (on_host_[index]) continue;
    const BatchSegment& entry = rows_[index];
    add_sequence(index);
    segments_.push_back({.query_begin = entry.first_row,
                         .query_count = entry.count,
                         .context_tokens = entry.first_position + entry.count,
                         .pages = table_of(index),
                         .window = window,
                         .key_columns = columns_of(index)});
  }
}

void KvStep::done(LayerId /*layer*/, std::int64_t group) {
  if (group + 1 < groups()) return;
  for (const PageId page : spent_open_) store_->open_pages().give_back(page);
  spent_open_.clear();
}

}  // namespace triphase
