#pragma once

// The KV tables of one decoder step: where each layer's new tokens go (new_token_slots.h), and what
// each query attends, with the blocks that are on the host brought into staging pages just before
// they are read. Of a decoded row that attends chosen tokens only these are brought, where
// they can be looked up (token_lookup.h): ahead, where its method knows them before the query
// exists, else once it has chosen; blocks that the method must see before it chooses come as a
// whole. Layer by layer the caller does
//
//   append at new_tokens().slots(layer); quantize new_tokens().full_blocks(layer);
//   for each group: part = read(layer, group); choose for its segments; where the choice is to be
//                   looked up, look_up(layer, group, choice); attend the segments; done(group)
//
// A group is some of the sequences, so many that the staging pages hold several groups at once (all
// sequences, where nothing is on the host). While one group is attended, and while a layer computes
// what is not attention, the blocks of as many groups as the other staging pages hold are on their
// way: those of later layers too, and at a step's end those of the next step
// (memory/kv/kv_prefetcher.h). Kept between steps to reuse its memory; not thread safe.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "memory/kv/batch_segment.h"
#include "memory/kv/host_reads.h"
#include "memory/kv/kv_prefetcher.h"
#include "memory/kv/kv_store.h"
#include "memory/kv/sequence_groups.h"
#include "models/attention_runner.h"
#include "models/column_places.h"
#include "models/new_token_slots.h"
#include "models/token_lookup.h"

namespace triphase {

class KvStep {
 public:
  // Begins a step. The rows' places exist (KvBook::append). windows: by layer, the sliding
  // window in tokens, 0 for none. `attention`: who chooses the tokens of decoded rows; null: all
  // are attended. Spans and `attention` must stay until the step ends. `stream`: of compute.
  void begin(KvStore& store, std::span<const BatchSegment> rows,
             std::span<const std::int64_t> windows, AttentionRunner* attention, Stream& stream);
  // Brings what the first layers read; after begin().
  void begin_staging() {
    if (staging() && prefetcher_.ahead()) stage_to(0);
  }

  // From now on chosen tokens on the host are looked up by it (TokenLookup::set_resolver).
  void set_resolver(KvResolver* resolver) { lookup_.set_resolver(resolver); }

  // Where the rows' K and V go; begin() begins it.
  [[nodiscard]] NewTokenSlots& new_tokens() { return new_tokens_; }
  [[nodiscard]] KvLayerView view(LayerId layer) const;

  // Whether the segments of layer 0 say where those of every layer lie: one group, all of it on the
  // device. Within its set (LayerSets) a layer's pages differ by the layer alone.
  [[nodiscard]] bool same_in_every_layer() const { return groups() == 1 && !staging(); }
  // Whether this can be said of the layers of one set: those with windows may be on the device
  // where others are not.
  [[nodiscard]] bool same_in_set(std::int64_t set) const {
    return same_in_every_layer() || (set > 0 && (!store_->memory().shape().quantized() ||
                                                 new_tokens_.partial_blocks().taken_for_step()));
  }
  // What all groups of a layer read, where same_in_set(). Valid as Group's.
  [[nodiscard]] std::span<const AttentionSegment> all_segments(LayerId layer);
  // Tables made of the new tokens' slots in a set's first layer, and of its segments where
  // same_in_set(): they serve the set until the step ends.
  void set_tables(std::int64_t set, const SegmentTables* tables);

  // Whether the rows of an entry are attended on the host (host_attention.h): then they are in no
  // segment, and nothing is brought for them.
  [[nodiscard]] bool on_host(std::size_t entry) const { return on_host_[entry]; }

  [[nodiscard]] std::int64_t groups() const { return groups_.count(); }
  // What attention reads of one group in one layer. Spans are valid until the next read() or
  // announced().
  struct Group {
    std::span<const AttentionSegment> segments;
    std::span<const SequenceId> sequences;  // by segment
    // Whether the tokens chosen for the segments are looked up; and that choice, where it has been
    // made and looked up already. Else look_up() must follow choosing.
    bool looks_up = false;
    const Selection* looked_up = nullptr;
    // What came as cached hidden states, to be projected before anybody reads K and V: blocks, in
    // their staging pages, and tokens that were looked up.
    std::span<const KvRecompute> recomputes;
    RecomputedTokens listed_recomputes;
    std::int64_t prefetched_blocks = 0;  // that the call brought for the next step
  };
  // Waits for the group's staged blocks; throws what made their transfer fail.
  [[nodiscard]] Group read(LayerId layer, std::int64_t group);
  // Before the first layer, with nothing queued yet that takes arrays of the host: what read() will
  // give, where the device looks up or has all of it; else no segments.
  [[nodiscard]] Group announced(LayerId layer, std::int64_t group);
  // Looks up what was chosen for the rows that read() gave, and brings what is missing: what
  // compute is given from now on finds it at the slots of the result.
  [[nodiscard]] TokenLookup::Found look_up(LayerId layer, std::int64_t group,
                                           const Selection& chosen);
  void done(std::int64_t group);

  // Whether later groups' blocks are fetched while one is attended (KvPrefetcher::set_ahead).
  void set_prefetch(bool prefetch) { prefetcher_.set_ahead(prefetch); }

  // Whether read() may wait for blocks that are on the host.
  [[nodiscard]] bool staging() const { return groups_.staging(); }
  // What was read of the host since the start; waits for the device where it counts.
  struct BytesRead {
    std::uint64_t blocks = 0;             // of blocks brought whole
    std::uint64_t tokens = 0;             // of chosen tokens brought
    std::uint64_t chosen = 0;             // of tokens that were on the host and chosen
    std::uint64_t cached = 0;             // of these, in the cache already
    std::uint64_t inputs = 0;             // of cached hidden states brought
    std::uint64_t uncounted = 0;          // of all this, what the link's own numbers lack
    std::uint64_t recomputed_tokens = 0;  // that were looked up, in one layer each
  };
  [[nodiscard]] BytesRead bytes_read() const;

 private:
  // What one (layer, group) reads; units are numbered layer * groups + group.
  struct Unit {
    std::vector<Ticket> tickets;
    std::vector<KvRecompute> recomputes;
    std::vector<std::vector<PageId>> tables;  // page tables of the group's entries
    std::vector<std::int32_t> staged;         // ResolveCall::staged
    std::int64_t spare_page = 0;              // the first page for chosen tokens
    std::int64_t spare_pages = 0;
    std::int64_t prefetched_ranges = 0;  // HostReads::prefetched_ranges
    TokenLookup::Found found;            // of what was chosen ahead of the layer
  };

  void make_groups();
  // By block of what the rows attend: where its scales are.
  void make_scale_tables();
  [[nodiscard]] bool reads_transposed_k() const {
    return attention_ != nullptr && store_->transposed_k().places() > 0 &&
           attention_->method().reads_transposed_k();
  }
  void fill_page_tables(LayerId layer);
  // Fills segments_ and segment_sequences_.
  void make_segments(LayerId layer, std::int64_t group, bool looks_up);
  // `unit`: whose tables hold the pages; null: page_tables_ do.
  void make_segments(LayerId layer, const SequenceGroup& group, const Unit* unit, bool looks_up);
  // Whether all that the layer reads is on the device.
  [[nodiscard]] bool on_device(LayerId layer) const {
    return !staging() || !store_->memory().shape().sets.on_host(layer);
  }
  // Of an entry in a layer's set, in page_tables_ and scale_tables_.
  [[nodiscard]] std::size_t table_of(LayerId layer, std::size_t entry) const {
    const auto set = static_cast<std::size_t>(store_->memory().shape().sets.of(layer).set);
    return set * rows_.size() + entry;
  }
  // Stages the units up to `reading`, and then as many as there is room for.
  void stage_to(std::int64_t reading);
  // How many units from the one at hand on may be staged when this one is.
  [[nodiscard]] std::int64_t most_staged(std::int64_t number) const;
  void stage(std::int64_t number, std::int64_t first_page);
  // The unit's tables, before anything is staged there.
  void fill_tables(Unit& unit, LayerId layer, const SequenceGroup& group);
  // Puts what the entry reads as whole blocks into its table and reads_.
  void read_blocks(std::size_t entry, LayerId layer, bool looked_up, std::vector<PageId>& table);
  // Fills unit.staged from its tables.
  void note_staged(Unit& unit, const SequenceGroup& group) const;
  [[nodiscard]] TokenLookup::Found look_up(Unit& unit, std::int64_t number,
                                           const Selection& chosen);
  [[nodiscard]] Unit& unit_of(std::int64_t number) {
    return units_[static_cast<std::size_t>(number) % units_.size()];
  }
  [[nodiscard]] std::int64_t block_tokens() const { return store_->memory().shape().block_tokens; }

  KvStore* store_ = nullptr;
  std::span<const BatchSegment> rows_;
  std::span<const std::int64_t> windows_;
  AttentionRunner* attention_ = nullptr;
  Stream* stream_ = nullptr;
  std::vector<bool> on_host_;  // by entry of rows_
  SequenceGroups::Entries entries_;
  SequenceGroups groups_;
  TokenLookup lookup_;
  SegmentTables lookup_tables_;               // of the step, a row for each entry
  std::vector<const SegmentTables*> tables_;  // of the step's segments, by set of layers

  static constexpr std::size_t kMostStaged = 64;  // units at a time
  std::array<Unit, kMostStaged> units_;
  KvPrefetcher prefetcher_;
  HostReads reads_;  // of the unit at hand

  NewTokenSlots new_tokens_;
  std::vector<AttentionSegment> segments_;
  std::vector<SequenceId> segment_sequences_;

  std::vector<std::vector<PageId>> page_tables_;   // table_of(), where none is staged
  std::vector<LayerId> page_tables_layers_;        // that they are of, by set; invalid: none yet
  std::vector<std::vector<PageId>> scale_tables_;  // table_of()
  ColumnPlaces columns_;                           // where reads_transposed_k()
};

}  // namespace triphase
