#pragma once

// The KV tables of one decoder step: where each layer's new tokens go, which partial blocks close,
// and what each query attends, with the blocks that are on the host brought into staging pages just
// before they are read. Of a decoded row that attends chosen tokens only these are brought, where a
// KvResolver looks them up: ahead, where its method knows them before the query exists, else once
// it has chosen; blocks that the method must see before it chooses come as a whole.
// Layer by layer the caller does
//
//   append at slots(layer); close closes();
//   for each group: choose for segments(layer, group); where looks_up() and not looked_up(),
//                   look_up(layer, group, choice); attend the segments, then done(layer, group)
//
// A group is some of the sequences, so many that the staging pages hold several groups at once (all
// sequences, where nothing is on the host). While one group is attended, and while a layer computes
// what is not attention, the blocks of as many groups as the other staging pages hold are on their
// way, those of later layers too; and under dense attention, at a step's end, those of the next
// step's first layers, as far as it is sure to read them (next_step.h). Kept between steps to reuse
// its memory; not thread safe.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kv_resolver.h"
#include "kernels/ops.h"
#include "memory/kv/kv_store.h"
#include "models/attention_runner.h"
#include "models/column_places.h"
#include "models/forward_batch.h"
#include "models/host_reads.h"
#include "models/next_step.h"
#include "models/partial_blocks.h"
#include "models/sequence_groups.h"
#include "models/staging_ring.h"
#include "models/step_block_tables.h"

namespace triphase {

class KvStep {
 public:
  // Begins a step. The rows' places exist (KvBook::append). windows: by layer, the sliding
  // window in tokens, 0 for none. `attention`: who chooses the tokens of decoded rows; null: all
  // are attended. Spans and `attention` must stay until the step ends. `stream`: of compute.
  void begin(KvStore& store, std::span<const BatchSegment> rows,
             std::span<const std::int64_t> windows, AttentionRunner* attention, Stream& stream);
  // Before the first layer, with nothing queued yet that takes arrays of the host: segments of a
  // group in a layer, of which what the device looks up is known; none if the host does.
  [[nodiscard]] std::span<const AttentionSegment> announced_segments(LayerId layer,
                                                                     std::int64_t index);
  // Brings what the first layers read; after begin().
  void begin_staging() {
    if (staging() && prefetch_) stage_to(0);
  }

  // From now on chosen tokens on the host are looked up by it; without one the blocks of rows that
  // choose are brought as a whole. It must outlive the steps.
  void set_resolver(KvResolver* resolver) { resolver_ = resolver; }

  // Where the rows' K and V of this layer go; call once per layer, layers in order.
  [[nodiscard]] KvSlots slots(LayerId layer);
  // INT8: the blocks that are full with this step's tokens; after slots() of the layer.
  [[nodiscard]] KvCloses closes(LayerId layer) const {
    return {partial_blocks_.closes(), slot_tables_, layer.value};
  }
  [[nodiscard]] KvLayerView view(LayerId layer) const;

  // Whether the segments of layer 0 say where those of every layer lie: one group, all of it on the
  // device. Then tables made of them serve all layers once they are set; until the step ends.
  [[nodiscard]] bool same_in_every_layer() const { return groups() == 1 && !staging(); }
  void set_tables(const SegmentTables* tables) { tables_ = slot_tables_ = tables; }
  // Whether the places of new tokens differ from layer to layer by the layer alone, and no tables
  // say so yet; then tables made of those of layer 0 serve all layers once they are set.
  [[nodiscard]] bool wants_slot_tables() const {
    return slot_tables_ == nullptr &&
           (!store_->shape().quantized() || partial_blocks_.taken_for_step());
  }
  void set_slot_tables(const SegmentTables* tables);
  // INT8, where each sequence has one new token: pages of the open pool by layer and row, taken now
  // for the whole step; empty in other steps. Before the first slots().
  [[nodiscard]] std::span<const PageId> take_partial_pages() {
    if (!store_->shape().quantized()) return {};
    return partial_blocks_.take_for_step(static_cast<std::int64_t>(windows_.size()));
  }

  // Whether the rows of an entry are attended on the host (host_attention.h): then they are in no
  // segment, and nothing is brought for them.
  [[nodiscard]] bool on_host(std::size_t entry) const { return on_host_[entry]; }

  [[nodiscard]] std::int64_t groups() const { return groups_.count(); }
  // Waits for the group's staged blocks; throws what made their transfer fail.
  [[nodiscard]] std::span<const AttentionSegment> segments(LayerId layer, std::int64_t group);
  // Whether the tokens chosen for the segments last returned are looked up.
  [[nodiscard]] bool looks_up() const { return looks_up_; }
  // That choice, where it has been made and looked up already; else look_up() must follow choosing.
  [[nodiscard]] const Selection* looked_up() const { return looked_up_; }
  // Looks up what was chosen for the rows of the segments last returned, and brings what is
  // missing: what compute is given from now on finds it at the slots of the result.
  [[nodiscard]] Selection look_up(LayerId layer, std::int64_t group, const Selection& chosen);
  // What the last segments() or look_up() brought by its layer inputs, whose K and V must be
  // projected before anybody reads them: blocks, in their staging pages, and tokens that were
  // looked up.
  [[nodiscard]] std::span<const KvRecompute> recomputes() const { return recomputes_; }
  [[nodiscard]] const RecomputedTokens& listed_recomputes() const { return listed_recomputes_; }
  // The sequence of each of the segments last returned.
  [[nodiscard]] std::span<const SequenceId> segment_sequences() const { return segment_sequences_; }
  void done(LayerId layer, std::int64_t group);

  // Whether later groups' blocks are fetched while one is attended (default), or only when they are
  // needed (a handicap that some baselines have).
  void set_prefetch(bool prefetch) { prefetch_ = prefetch; }

  // Whether segments() of this step may wait for blocks that are on the host.
  [[nodiscard]] bool staging() const { return groups_.staging(); }
  // Blocks of one layer fetched so far for the step after this one.
  [[nodiscard]] std::int64_t fetched_for_next_step() const { return early_for_next_; }
  // What was read of the host since the start; waits for the device where it counts.
  struct BytesRead {
    std::uint64_t blocks = 0;             // of blocks brought whole
    std::uint64_t tokens = 0;             // of chosen tokens brought
    std::uint64_t chosen = 0;             // of tokens that were on the host and chosen
    std::uint64_t cached = 0;             // of these, in the cache already
    std::uint64_t inputs = 0;             // of layer inputs brought
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
    std::int64_t early_ranges = 0;       // HostReads::early_ranges
    Selection looked_up;                 // chosen ahead of the layer,
    RecomputedTokens listed_recomputes;  // and what of it must be projected
  };

  void find_host_entries();
  void find_choosing_entries();
  // Most tokens that a group's rows choose of blocks that nobody stores.
  [[nodiscard]] std::int64_t most_recomputed(const SequenceGroup& group,
                                             const Selection& chosen) const;
  // Staging pages for what such a row reads in a layer.
  [[nodiscard]] std::int64_t chosen_pages(std::size_t entry);
  // Fills needed_ with the blocks on the host that come as a whole in a layer, ascending: those
  // that such a row's method looks into before it chooses, and recomputable ones whose tokens
  // cannot be listed.
  void find_needed(std::size_t entry, LayerId layer);
  [[nodiscard]] bool lists_recomputes(const BatchSegment& rows) const {
    // Tokens are recomputed whole, by the angles of key 0.
    return rows.rope_key == 0 && attention_->method().lists() == 1;
  }
  [[nodiscard]] bool is_away(std::size_t entry, std::int64_t block) const {
    return !store_->book().block(rows_[entry].sequence, block).on_device();
  }
  [[nodiscard]] bool looks_up(const SequenceGroup& group, LayerId layer) const {
    return group.chooses && group.pages > 0 && chooses_in(layer);
  }
  [[nodiscard]] bool chooses_in(LayerId layer) const {
    return attention_->method().timing(layer.value) != AttentionMethod::Timing::kDense;
  }
  [[nodiscard]] bool chooses_ahead(LayerId layer) const {
    return attention_->method().timing(layer.value) == AttentionMethod::Timing::kEarly;
  }
  void make_groups();
  // The resolver's tables of the step.
  void send_block_tables(Stream& stream);
  [[nodiscard]] Selection resolve(Unit& unit, std::int64_t number, const Selection& chosen);
  // By block of what the rows attend: their pages, none where they are on the host.
  void make_scale_tables();
  [[nodiscard]] bool reads_transposed_k() const {
    return attention_ != nullptr && store_->transposed_k().places() > 0 &&
           attention_->method().reads_transposed_k();
  }
  // Fills segments_ and what belongs to them.
  void make_segments(LayerId layer, std::int64_t group);
  // Finds what was brought for this step before it began, and says how long it is held.
  void meet_early();
  // The units that read it are past, or it takes the room of what they read besides.
  void end_early();
  // The first of the staging pages for what the unit reads that was not brought early, if there is
  // room.
  [[nodiscard]] std::optional<std::int64_t> take_pages(std::int64_t number);
  // The range of pages that was taken for this unit before the step; null: none.
  [[nodiscard]] const NextStep::Range* meant_for(std::int64_t number) const;
  void fetch_for_next_step(std::int64_t number);
  // Stages the units up to `number`, and then as many as there are pages for.
  void stage_to(std::int64_t number);
  void stage(std::int64_t number, std::int64_t first_page);
  // The unit's tables, before anything is staged there.
  void fill_tables(Unit& unit, LayerId layer, const SequenceGroup& group);
  // Puts what the entry reads as whole blocks into its table and reads_.
  void read_blocks(std::size_t entry, LayerId layer, bool looked_up, std::vector<PageId>& table);
  // Fills unit.staged from its tables.
  void note_staged(Unit& unit, const SequenceGroup& group) const;
  // The first of the blocks that the rows read when they read whole blocks.
  [[nodiscard]] std::int64_t first_needed_block(const BatchSegment& rows, std::int64_t layer) const;
  // Of the blocks that a decoded row's late method looks into before it chooses, the first; 0:
  // all, or another row.
  [[nodiscard]] std::int64_t first_block_to_choose(std::size_t entry, LayerId layer) const;
  [[nodiscard]] Unit& unit_of(std::int64_t number) {
    return units_[static_cast<std::size_t>(number) % units_.size()];
  }
  [[nodiscard]] std::int64_t unit_count() const {
    return static_cast<std::int64_t>(windows_.size()) * groups();
  }
  [[nodiscard]] std::int64_t block_tokens() const { return store_->shape().block_tokens; }

  KvStore* store_ = nullptr;
  std::span<const BatchSegment> rows_;
  std::span<const std::int64_t> windows_;
  AttentionRunner* attention_ = nullptr;
  std::span<const KvRecompute> recomputes_;
  RecomputedTokens listed_recomputes_;
  std::vector<bool> on_host_;   // by entry of rows_
  std::vector<bool> choosing_;  // by entry of rows_: its tokens are looked up
  KvResolver* resolver_ = nullptr;
  Stream* stream_ = nullptr;
  SegmentTables block_tables_;   // of the step, a row for each entry
  std::int64_t row_blocks_ = 0;  // of such a row
  bool looks_up_ = false;
  const Selection* looked_up_ = nullptr;
  SequenceGroups::Entries entries_;
  SequenceGroups groups_;
  const SegmentTables* tables_ = nullptr;       // of the step
  const SegmentTables* slot_tables_ = nullptr;  // those that say where new tokens go
  bool prefetch_ = true;

  static constexpr std::size_t kMostStaged = 64;  // units at a time
  std::array<Unit, kMostStaged> units_;
  StagingRing ring_;
  std::int64_t staged_ = 0;  // units before this one have been staged in this step
  NextStep next_;
  NextStep::Fetched fetched_;          // for this step, before it began
  std::vector<std::int64_t> fresh_;    // by unit that it concerns: blocks that were not
  std::int64_t last_early_unit_ = -1;  // that reads any of it; -1: nothing is left of it
  std::int64_t early_for_next_ = 0;    // blocks brought for the next step
  HostReads reads_;                    // of the unit at hand

  std::vector<PageId> slot_pages_;
  std::vector<std::int32_t> slot_offsets_;
  PartialBlocks partial_blocks_;  // INT8
  std::vector<AttentionSegment> segments_;
  std::vector<SequenceId> segment_sequences_;

  StepBlockTables step_block_tables_;
  std::vector<std::int64_t> needed_;

  std::vector<std::vector<PageId>> page_tables_;   // by entry of rows_, where none is staged
  std::vector<std::vector<PageId>> scale_tables_;  // by entry of rows_
  ColumnPlaces columns_;                           // where reads_transposed_k()
};

}  // namespace triphase
