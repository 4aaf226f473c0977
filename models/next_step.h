#pragma once

// What the step to come will surely read of the host, fetched while the present one ends: K and V
// of full blocks of the sequences that go on decoding, from the first layer on, as many units as
// the staging ring has room for. Each unit takes a range of the ring for all that its group is
// expected to read there; what is not certain yet (blocks that are still on their way to the host,
// blocks that a policy may discard) comes to the rest of the range once the step has begun. Dense
// attention only. Not thread safe.

#include <cstdint>
#include <span>
#include <vector>

#include "memory/kv/kv_store.h"
#include "models/forward_batch.h"
#include "models/sequence_groups.h"
#include "models/staging_ring.h"

namespace triphase {

class NextStep {
 public:
  // A unit's range of staging pages.
  struct Range {
    std::int64_t first_page = 0;  // of the ring
    std::int64_t pages = 0;
    std::int64_t early = 0;  // of them, filled early
  };

  // A step begins whose rows are these; forgets what was fetched. windows: as of KvStep::begin.
  void begin(KvStore& store, std::span<const BatchSegment> rows,
             std::span<const std::int64_t> windows);
  // Fetches as much as the ring has room for, in pages that are given back with the units from
  // `first_unit` on; returns the blocks brought. To be called while the last layer computes.
  std::int64_t fetch(StagingRing& ring, std::int64_t first_unit);

  // What was fetched, by unit of the step to come, in the order of the ring.
  struct Fetched {
    std::vector<Range> ranges;
    std::int64_t groups = 0;  // that the step was expected to have
  };
  [[nodiscard]] const Fetched& fetched() const { return fetched_; }

 private:
  void foresee();
  // Whether a unit of the layer may take so many pages more.
  [[nodiscard]] bool may_take(LayerId layer, std::int64_t pages) const;
  // Fills sources_ with the blocks of the unit that can be fetched now.
  void look_at(LayerId layer, const SequenceGroup& group);
  // They go to the first pages of a range.
  void bring(LayerId layer, std::int64_t first_page);
  [[nodiscard]] bool is_certain(const BatchSegment& rows, std::int64_t block) const;

  KvStore* store_ = nullptr;
  std::span<const BatchSegment> now_;
  std::span<const std::int64_t> windows_;
  bool foreseen_ = false;
  bool done_ = false;       // there is nothing more to fetch
  bool alone_ = true;       // no other line is known to decode or prefill in that step
  std::int64_t taken_ = 0;  // pages of the ring
  std::vector<BatchSegment> rows_;
  SequenceGroups::Entries entries_;
  SequenceGroups groups_;
  Fetched fetched_;
  std::vector<TokenRun> runs_;
  std::vector<EarlyBlocks::Source> sources_;
};

}  // namespace triphase
