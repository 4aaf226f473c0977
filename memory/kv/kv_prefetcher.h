#pragma once

// Which staging pages a step's units read their host blocks from, and when they are filled. A unit
// is a group of sequences in one layer; units are numbered layer * groups + group, in the order in
// which they are read. Pages are handed out as many units ahead as there is room.
//
// While a step's last layer computes, prefetch() brings blocks that the next step's first units
// will read: those of sequences that go on decoding and read whole blocks. Each unit gets a range
// of pages for all that it is expected to read. What is not certain by then (blocks on their way to
// the host, blocks that a policy may discard) comes to the rest of the range in the next step.
// Bookkeeping, but for the transfers that prefetch() queues. Not thread safe.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "memory/kv/batch_segment.h"
#include "memory/kv/kv_store.h"
#include "memory/kv/sequence_groups.h"
#include "memory/kv/staging_ring.h"

namespace triphase {

class KvPrefetcher {
 public:
  struct Step {
    std::span<const BatchSegment> rows;
    std::span<const std::int64_t> windows;  // by layer: the sliding window in tokens, 0 for none
    // The groups of the rows, and what they were made of. Read and marked until the step ends.
    SequenceGroups* groups = nullptr;
    const SequenceGroups::Entries* entries = nullptr;
    // Whether every row reads whole blocks on the device.
    bool reads_whole_blocks = false;
  };

  // Whether blocks are brought ahead of the unit at hand (default). Some baselines have the
  // handicap that they are not.
  void set_ahead(bool ahead) { ahead_ = ahead; }
  [[nodiscard]] bool ahead() const { return ahead_; }

  // Finds what was prefetched for this step, and forgets what it does not read. Spans and pointers
  // of `step` must stay until the step ends.
  void begin_step(KvStore& store, const Step& step);

  // The step's units, and how many of them have pages.
  [[nodiscard]] std::int64_t units() const { return units_; }
  [[nodiscard]] std::int64_t placed() const { return placed_; }
  // The first page (of KvStore) for the next unit, while unit `reading` is at hand; nothing: there
  // is no room, or no unit that may be brought. There is always room for the unit at hand.
  [[nodiscard]] std::optional<std::int64_t> place_next(std::int64_t reading);
  // Units before `reading` have been read: their pages are free.
  void give_back_before(std::int64_t reading);

  // Brings what the next step reads, once the last layer is at hand and all units have pages.
  // Returns the blocks of one layer that it brought.
  std::int64_t prefetch(std::int64_t reading);

 private:
  // A unit's range of staging pages in the next step.
  struct Range {
    std::int64_t first_page = 0;  // of the ring
    std::int64_t pages = 0;
    std::int64_t filled = 0;  // of them, before the step
  };
  struct Ranges {
    std::vector<Range> of_units;  // in the order of the ring
    std::int64_t groups = 0;      // that the step was expected to have
  };

  // Whether prefetched blocks are read in this step; says how long each range is held.
  [[nodiscard]] bool find_prefetched();
  // The units that read prefetched blocks are past, or need the room.
  void end_prefetched();
  // The range that was taken for this unit before the step; null: none.
  [[nodiscard]] const Range* range_of(std::int64_t unit) const;
  // The first page of the ring for what the unit reads that was not prefetched.
  [[nodiscard]] std::optional<std::int64_t> take_pages(std::int64_t unit);

  // The next step's rows and groups.
  void foresee();
  // Whether a unit of the layer may take so many pages more.
  [[nodiscard]] bool may_take(LayerId layer, std::int64_t pages) const;
  // Fills sources_ with the blocks of the unit that can be brought now.
  void find_sources(LayerId layer, const SequenceGroup& group);
  // They go to the first pages of a range.
  void bring_sources(LayerId layer, std::int64_t first_page);
  [[nodiscard]] bool is_certain(const BatchSegment& rows, std::int64_t block) const;

  KvStore* store_ = nullptr;
  bool ahead_ = true;
  StagingRing ring_;

  // This step.
  Step step_;
  std::int64_t units_ = 0;
  std::int64_t placed_ = 0;
  Ranges ranges_;
  std::vector<std::int64_t> fresh_;         // by unit: blocks that were not prefetched
  std::int64_t last_prefetched_unit_ = -1;  // that reads a prefetched block; -1: none is left

  // The next one.
  bool foreseen_ = false;
  bool done_ = false;       // there is nothing more to prefetch
  bool alone_ = true;       // no other request is known to decode or prefill in that step
  std::int64_t taken_ = 0;  // pages of the ring
  std::vector<BatchSegment> next_rows_;
  SequenceGroups::Entries next_entries_;
  SequenceGroups next_groups_;
  Ranges next_ranges_;
  std::vector<TokenRun> runs_;
  std::vector<PrefetchedBlocks::Source> sources_;
};

}  // namespace triphase
