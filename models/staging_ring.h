#pragma once

// Staging pages handed out in ranges and given back in the same order, so that several groups'
// blocks can be on their way while one is read. PURE bookkeeping.

#include <cstdint>
#include <deque>
#include <optional>

namespace triphase {

class StagingRing {
 public:
  // Of pages 0 to pages - 1; all are free.
  void reset(std::int64_t pages);

  // The first of `count` consecutive pages; nothing: so many are not free side by side.
  [[nodiscard]] std::optional<std::int64_t> take(std::int64_t count);
  // The range that was taken first of those that are still held.
  void give_back_oldest();

  [[nodiscard]] std::int64_t held() const { return static_cast<std::int64_t>(ranges_.size()); }

 private:
  struct Range {
    std::int64_t begin = 0;
    std::int64_t count = 0;
  };

  std::int64_t pages_ = 0;
  std::deque<Range> ranges_;  // those without pages too
};

}  // namespace triphase
