#include "models/kv_step.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace triphase {
namespace {

// By entry of `rows`, whether its rows are attended on the host.
void find_host_entries(const KvStore& store, std::span<const BatchSegment> rows,
                       const AttentionRunner* attention, std::vector<bool>& on_host) {
  on_host.assign(rows.size(), false);
  // A method chooses with what it keeps on the device.
  if (!store.memory().shape().host_attention || attention != nullptr) return;
  const KvBook& book = store.book();
  for (std::size_t index = 0; index < rows.size(); ++index) {
    const BatchSegment& entry = rows[index];
    bool there = entry.decode;
    const std::int64_t blocks = book.table(entry.sequence).size();
    for (std::int64_t block = 0; block < blocks && there; ++block) {
      there = book.table(entry.sequence)[block].host_copy() >= 0;
    }
    on_host[index] = there;
  }
}

}  // namespace

void KvStep::begin(KvStore& store, std::span<const BatchSegment> rows,
                   std::span<const std::int64_t> windows, AttentionRunner* attention,
                   Stream& stream) {
  store_ = &store;
  attention_ = attention;
  rows_ = rows;
  windows_ = windows;
  stream_ = &stream;
  const auto sets = static_cast<std::size_t>(store.memory().shape().sets.count());
  tables_.assign(sets, nullptr);
  new_tokens_.begin_step(store, rows);
  if (store.memory().shape().quantized()) make_scale_tables();
  if (reads_transposed_k()) columns_.begin_step(store, rows, *attention);
  find_host_entries(store, rows, attention, on_host_);
  lookup_.begin_step(store, rows, windows, attention, reads_transposed_k() ? &columns_ : nullptr,
                     stream);
  make_groups();
  page_tables_.resize(sets * rows.size());
  page_tables_layers_.assign(sets, LayerId());
  if (staging() && lookup_.any_chooses()) {
    lookup_tables_ = lookup_.send_tables();
    if (!store.memory().shape().quantized()) new_tokens_.set_tables(0, &lookup_tables_);
  }
  prefetcher_.begin_step(store, {.rows = rows,
                                 .windows = windows,
                                 .groups = &groups_,
                                 .entries = &entries_,
                                 .reads_whole_blocks = attention == nullptr &&
                                                       !store.memory().shape().host_attention});
}

TokenLookup::Found KvStep::look_up(Unit& unit, std::int64_t number, const Selection& chosen) {
  const SequenceGroup& group = groups_.at(number % groups());
  return lookup_.look_up({.layer = LayerId(number / groups()),
                          .first_row = static_cast<std::int64_t>(group.first),
                          .lists = chosen,
                          .staged = unit.staged,
                          .first_spare_slot = unit.spare_page * block_tokens(),
                          .spare_slots = unit.spare_pages * block_tokens(),
                          .unit = number % lookup_.results()},
                         unit.tickets);
}

TokenLookup::Found KvStep::look_up(LayerId layer, std::int64_t group, const Selection& chosen) {
  TRIPHASE_CHECK(lookup_.looks_up(groups_.at(group), layer) && !lookup_.chooses_ahead(layer),
                 "a choice that is to be looked up");
  const std::int64_t number = layer.value * groups() + group;
  Unit& unit = unit_of(number);
  const std::size_t held = unit.tickets.size();
  TokenLookup::Found found = look_up(unit, number, chosen);
  for (const Ticket ticket : std::span(unit.tickets).subspan(held)) {
    store_->transfers()->hold(ticket);
  }
  return found;
}

KvStep::BytesRead KvStep::bytes_read() const {
  BytesRead read{.blocks = reads_.bytes().blocks, .inputs = reads_.bytes().inputs};
  const ResolveCounts counts = lookup_.counts();
  if (counts.chosen == 0) return read;
  const auto part = static_cast<std::uint64_t>(store_->memory().geometry().record_bytes() /
                                               attention_->method().lists());
  read.recomputed_tokens = static_cast<std::uint64_t>(counts.recomputed);
  const std::uint64_t inputs = read.recomputed_tokens * store_->memory().shape().input_bytes() /
                               static_cast<std::uint64_t>(block_tokens());
  read.tokens = part * static_cast<std::uint64_t>(counts.brought);
  read.chosen = part * static_cast<std::uint64_t>(counts.chosen);
  read.cached = part * static_cast<std::uint64_t>(counts.cached);
  read.inputs += inputs;
  if (!store_->transfers()->counts_what_it_brings()) read.uncounted = read.tokens + inputs;
  return read;
}

void KvStep::make_groups() {
  if (store_->memory().sizes().host_blocks == 0) {
    groups_.make_one(rows_.size());
    return;
  }
  entries_ = {.rows = rows_,
              .blocks =
                  [this](std::size_t entry) {
                    if (on_host_[entry]) return std::int64_t{0};
                    return store_->book().table(rows_[entry].sequence).size();
                  },
              // A sequence's blocks are in the same tier in every layer.
              .is_offloaded =
                  [this](std::size_t entry, std::int64_t block) {
                    return !store_->book().table(rows_[entry].sequence)[block].on_device();
                  },
              .chosen_pages = [this](std::size_t entry) -> std::optional<std::int64_t> {
                if (!lookup_.chooses(entry)) return std::nullopt;
                return lookup_.pages(entry);
              }};
  groups_.make(store_->book(), entries_, store_->memory().sizes().staging_pages);
}

void KvStep::make_scale_tables() {
  const KvMemory& memory = store_->memory();
  const auto sets = static_cast<std::size_t>(memory.shape().sets.count());
  if (scale_tables_.size() < sets * rows_.size()) scale_tables_.resize(sets * rows_.size());
  for (std::size_t set = 0; set < sets; ++set) {
    const LayerId layer = memory.shape().sets.first(static_cast<std::int64_t>(set));
    for (std::size_t index = 0; index < rows_.size(); ++index) {
      std::vector<PageId>& table = scale_tables_[table_of(layer, index)];
      const KvBlockTable blocks = store_->book().table(rows_[index].sequence);
      table.clear();
      table.reserve(static_cast<std::size_t>(blocks.size()));
      for (std::int64_t block = 0; block < blocks.size(); ++block) {
        table.emplace_back(memory.block_of(blocks, block, layer));
      }
    }
  }
}

void KvStep::stage_to(std::int64_t reading) {
  while (prefetcher_.placed() - reading < most_staged(prefetcher_.placed())) {
    const std::int64_t number = prefetcher_.placed();
    const std::optional<std::int64_t> page = prefetcher_.place_next(reading);
    if (!page) break;
    stage(number, *page);
  }
  TRIPHASE_CHECK(prefetcher_.placed() > reading, "staging pages for the group at hand");
}

std::int64_t KvStep::most_staged(std::int64_t number) const {
  const std::int64_t units = std::ssize(units_);
  // Results of later ones would be written over those still read.
  const bool ahead = groups_.at(number % groups()).chooses && attention_->method().chooses_early();
  return ahead ? std::min(units, lookup_.results()) : units;
}

void KvStep::stage(std::int64_t number, std::int64_t first_page) {
  Unit& unit = unit_of(number);
  const LayerId layer(number / groups());
  const SequenceGroup& group = groups_.at(number % groups());
  const bool looked_up = lookup_.looks_up(group, layer);
  unit.tickets.clear();
  unit.found = {};
  unit.recomputes.clear();
  unit.prefetched_ranges = 0;
  if (on_device(layer)) return;
  fill_tables(unit, layer, group);
  reads_.begin(*store_, layer, first_page);
  for (std::size_t index = 0; index < group.count; ++index) {
    read_blocks(group.first + index, layer, looked_up, unit.tables[index]);
  }
  unit.prefetched_ranges = reads_.prefetched_ranges();
  unit.recomputes = reads_.recomputes();
  TransferEngine& transfers = *store_->transfers();
  unit.tickets.push_back(
      transfers.move_tokens(Lane::kToDevice, store_->memory().geometry(), reads_.make_runs()));
  unit.tickets.push_back(transfers.move_pieces(Lane::kToDevice, reads_.make_pieces()));
  if (!looked_up) return;
  unit.spare_page = reads_.next_page();
  unit.spare_pages = first_page + group.pages - unit.spare_page;
  if (unit.spare_page > first_page) note_staged(unit, group);
  if (!lookup_.chooses_ahead(layer)) return;
  const Selection chosen = attention_->chosen_ahead(layer, rows_[group.first].sequence,
                                                    static_cast<std::int64_t>(group.count));
  unit.found = look_up(unit, number, chosen);
}

void KvStep::fill_tables(Unit& unit, LayerId layer, const SequenceGroup& group) {
  if (unit.tables.size() < group.count) unit.tables.resize(group.count);
  unit.staged.clear();
  for (std::size_t index = 0; index < group.count; ++index) {
    store_->memory().fill_pages(store_->book().table(rows_[group.first + index].sequence), layer,
                                unit.tables[index]);
  }
}

void KvStep::read_blocks(std::size_t entry, LayerId layer, bool looked_up,
                         std::vector<PageId>& table) {
  if (on_host_[entry]) return;
  if (looked_up) {
    for (const std::int64_t block : lookup_.whole_blocks(entry, layer)) {
      reads_.read_block(rows_[entry], block, table);
    }
    return;
  }
  std::int64_t block = store_->first_host_read(rows_[entry], layer, windows_[layer.index()]);
  for (; block < std::ssize(table); ++block) reads_.read_block(rows_[entry], block, table);
}

void KvStep::note_staged(Unit& unit, const SequenceGroup& group) const {
  unit.staged.assign(group.count * static_cast<std::size_t>(lookup_.row_blocks()), -1);
  const std::int64_t device_pages = store_->memory().sizes().device_pages;
  for (std::size_t index = 0; index < group.count; ++index) {
    const std::vector<PageId>& table = unit.tables[index];
    const std::size_t first = index * static_cast<std::size_t>(lookup_.row_blocks());
    for (std::size_t block = 0; block < table.size(); ++block) {
      if (table[block].value >= device_pages) unit.staged[first + block] = table[block].value;
    }
  }
}

void KvStep::set_tables(std::int64_t set, const SegmentTables* tables) {
  if (same_in_set(set)) tables_[set] = tables;
  new_tokens_.set_tables(set, tables);
  if (set > 0 || !new_tokens_.partial_blocks().taken_for_step()) return;
  lookup_tables_.rows = tables->rows;
  lookup_tables_.partial_pages = tables->partial_pages;
}

KvLayerView KvStep::view(LayerId layer) const {
  KvLayerView view = store_->memory().view(layer);
  view.kt = reads_transposed_k() ? store_->memory().transposed_k_pages(layer) : nullptr;
  view.kt_ready = store_->transposed_k().ready(layer);
  view.kt_pages = store_->transposed_k().places();
  view.kt_run = store_->transposed_k().run();
  return view;
}

KvStep::Group KvStep::read(LayerId layer, std::int64_t group) {
  const std::int64_t number = layer.value * groups() + group;
  Group part;
  if (staging()) {
    prefetcher_.give_back_before(number);
    stage_to(number);
    part.prefetched_blocks = prefetcher_.prefetch(number);
    if (part.prefetched_blocks > 0) reads_.count_prefetched(part.prefetched_blocks);
    const Unit& unit = unit_of(number);
    store_->prefetched().hold(unit.prefetched_ranges);
    for (const Ticket ticket : unit.tickets) store_->transfers()->hold(ticket);
    part.recomputes = unit.recomputes;
    part.looks_up = lookup_.looks_up(groups_.at(group), layer);
    if (part.looks_up && lookup_.chooses_ahead(layer)) {
      part.looked_up = &unit.found.lists;
      part.listed_recomputes = unit.found.recomputed;
    }
  }
  make_segments(layer, group, part.looks_up);
  part.segments = segments_;
  part.sequences = segment_sequences_;
  return part;
}

KvStep::Group KvStep::announced(LayerId layer, std::int64_t group) {
  const SequenceGroup& of = groups_.at(group);
  if (staging() && !(of.chooses && lookup_.chooses_in(layer))) return {};
  Group part;
  part.looks_up = staging() && lookup_.looks_up(of, layer);
  // Staging the unit fills them again.
  if (staging()) fill_tables(unit_of(layer.value * groups() + group), layer, of);
  make_segments(layer, group, part.looks_up);
  part.segments = segments_;
  part.sequences = segment_sequences_;
  return part;
}

// Once by blocks: a step has layers times thousands of pages.
void KvStep::fill_page_tables(LayerId layer) {
  const KvMemory& memory = store_->memory();
  LayerId& of = page_tables_layers_[memory.shape().sets.of(layer).set];
  if (of == layer) return;
  for (std::size_t entry = 0; entry < rows_.size(); ++entry) {
    std::vector<PageId>& table = page_tables_[table_of(layer, entry)];
    if (of.valid()) {
      KvMemory::move_pages(memory.shape().sets, table, of, layer);
    } else {
      memory.fill_pages(store_->book().table(rows_[entry].sequence), layer, table);
    }
  }
  of = layer;
}

std::span<const AttentionSegment> KvStep::all_segments(LayerId layer) {
  make_segments(layer, {.first = 0, .count = rows_.size()}, nullptr, false);
  return segments_;
}

void KvStep::make_segments(LayerId layer, std::int64_t group_index, bool looks_up) {
  const Unit* unit = on_device(layer) ? nullptr : &unit_of(layer.value * groups() + group_index);
  make_segments(layer, groups_.at(group_index), unit, looks_up);
}

void KvStep::make_segments(LayerId layer, const SequenceGroup& group, const Unit* unit,
                           bool looks_up) {
  const LayerSets::Place place = store_->memory().shape().sets.of(layer);
  const auto pages_of = [&](std::size_t entry) -> std::span<const PageId> {
    if (unit != nullptr) return unit->tables[entry - group.first];
    return page_tables_[table_of(layer, entry)];
  };
  const bool by_columns = reads_transposed_k();
  const auto columns_of = [&](std::size_t entry) -> std::span<const PageId> {
    return by_columns ? columns_.table(entry) : std::span<const PageId>();
  };
  const auto written_of = [&](std::size_t entry) {
    return by_columns ? columns_.written(entry) : 0;
  };
  // The tables that serve an entry, and its row there; the resolver's know no staging pages.
  const bool by_lookup = looks_up && unit->staged.empty();
  const bool by_entry = by_lookup || (unit != nullptr && group.chooses && group.pages == 0);
  const SegmentTables* tables = tables_[place.set];
  const auto tables_of = [&](std::size_t entry, AttentionSegment& segment) {
    segment.tables = by_entry ? &lookup_tables_ : looks_up ? nullptr : tables;
    // In steps that stage, tables are of all groups: then each entry has one segment.
    segment.table_row = static_cast<std::int64_t>(by_entry || staging() ? entry : segments_.size());
    segment.table_layer = place.page;
  };
  const std::int64_t window = windows_[layer.index()];
  if (unit == nullptr) fill_page_tables(layer);
  segments_.clear();
  segment_sequences_.clear();
  if (store_->memory().shape().quantized()) {
    for (const PartialBlocks::Run& run : new_tokens_.partial_blocks().runs()) {
      if (run.entry < group.first || run.entry >= group.first + group.count) continue;
      const BatchSegment& entry = rows_[run.entry];
      segment_sequences_.push_back(entry.sequence);
      AttentionSegment segment{
          .query_begin = entry.first_row + run.first_position - entry.first_position,
          .query_count = run.count,
          .context_tokens = run.first_position + run.count,
          .pages = pages_of(run.entry),
          .window = window,
          .scale_pages = scale_tables_[table_of(layer, run.entry)],
          .partial_page = run.partial_page,
          .transposed_k = columns_of(run.entry),
          .transposed_blocks = written_of(run.entry)};
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
                             .pages = pages_of(index),
                             .window = window,
                             .transposed_k = columns_of(index),
                             .transposed_blocks = written_of(index)};
    tables_of(index, segment);
    segments_.push_back(segment);
  }
}

void KvStep::done(std::int64_t group) {
  if (group + 1 < groups()) return;
  new_tokens_.partial_blocks().end_layer();
}

}  // namespace triphase
