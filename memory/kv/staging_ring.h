#pragma once

// Staging pages that are handed out in ranges and given back in the same order, so that blocks of
// several units can be loaded while one is read. Units are numbered in the order in which they are
// read. PURE bookkeeping.

#include <cstdint>
#include <deque>
#include <optional>

namespace triphase {

class StagingRing {
 public:
  // The ring has pages 0 to pages - 1, and all are free.
  void reset(std::int64_t pages);

  // Takes `count` consecutive pages and returns the first. Unit `reader` is the last to read them.
  // Nothing: the ring has no such free range.
  [[nodiscard]] std::optional<std::int64_t> take(std::int64_t count, std::int64_t reader);
  // Units before `reader` have been read: their ranges are free, up to the oldest range that is
  // still needed.
  void give_back_before(std::int64_t reader);
  // Sets the last reader of a range once it is known. `older`: how many ranges that are still held
  // were taken before it.
  void set_reader(std::int64_t older, std::int64_t reader) { ranges_[older].reader = reader; }

 private:
  struct Range {
    std::int64_t begin = 0;
    std::int64_t count = 0;
    std::int64_t reader = 0;
  };

  std::int64_t pages_ = 0;
  std::deque<Range> ranges_;  // ranges without pages included
};

}  // namespace triphase
