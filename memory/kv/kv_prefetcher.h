#pragma once

// Which staging pages a step's units read their host blocks from, and when they are filled. A unit
// is a group of sequences in one layer; units are numbered layer * groups + group, in the order in
// which they are read. Pages are handed out as many units ahead as there is room.
//
// While a step's last layer computes, prefetch() loads blocks that the next step's first units will
// read: those of sequences that go on decoding and read whole blocks. Each unit gets a range of
// pages for all blocks that it is expected to read. Some are not certain by then: blocks that are
// still being offloaded, and blocks that a policy may discard. The next step loads them to the rest
// of the range. Bookkeeping, except for the transfers that prefetch() queues. Not thread safe.

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
    // The groups of the rows, and the entries they were made from. Used until the step ends.
    SequenceGroups* groups = nullptr;
    const SequenceGroups::Entries* entries = nullptr;
    // Whether every row reads whole blocks on the device.
    bool reads_whole_blocks = false;
  };

  // Whether blocks are loaded before the unit that reads them is reached (default). Some baselines
  // are meant to lack this.
  void set_ahead(bool ahead) { ahead_ = ahead; }
  [[nodiscard]] bool ahead() const { return ahead_; }

  // Finds what was prefetched for this step, and forgets what it does not read. Spans and pointers
  // of `step` must stay until the step ends.
  void begin_step(KvStore& store, const Step& step);

  // How many of the step's units have pages.
  [[nodiscard]] std::int64_t placed() const { return placed_; }
  // The first page (of KvMemory) for the next unit, while unit `reading` is being read. Nothing:
  // there is no room, or no unit may be loaded. There is always room for the unit being read.
  [[nodiscard]] std::optional<std::int64_t> place_next(std::int64_t reading);
  // Units before `reading` have been read: their pages are free.
  void give_back_before(std::int64_t reading);

  // Loads blocks for the next step, once the last layer is reached and all units have pages.
  // Returns how many blocks of one layer it loads.
  std::int64_t prefetch(std::int64_t reading);

 private:
  // A unit's range of staging pages in the next step.
  struct Range {
    std::int64_t first_page = 0;  // of the ring
    std::int64_t pages = 0;
    std::int64_t filled = 0;  // pages that were prefetched
  };
  struct Ranges {
    std::vector<Range> of_units;  // by unit, in the order in which pages were taken
    std::int64_t groups = 0;      // expected in the step
  };

  // Whether this step reads prefetched blocks. Sets how long each range is held.
  [[nodiscard]] bool find_prefetched();
  // Frees the prefetched ranges: their units have been read, or others need the room.
  void end_prefetched();
  // The range that the step before took for this unit; null: none.
  [[nodiscard]] const Range* range_of(std::int64_t unit) const;
  // Takes pages of the ring for the unit's blocks that were not prefetched; returns the first one.
  [[nodiscard]] std::optional<std::int64_t> take_pages(std::int64_t unit);

  // The next step's rows and groups.
  void foresee();
  // Whether the layer's units may take `pages` more pages.
  [[nodiscard]] bool may_take(LayerId layer, std::int64_t pages) const;
  // Fills sources_ with the blocks of the unit that can be loaded now.
  void find_sources(LayerId layer, const SequenceGroup& group);
  // Loads them to the first pages of a range.
  void load_sources(LayerId layer, std::int64_t first_page);
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
