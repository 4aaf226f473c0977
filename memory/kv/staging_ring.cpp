#include "memory/kv/staging_ring.h"

#include <algorithm>

namespace triphase {

void StagingRing::reset(std::int64_t pages) {
  pages_ = pages;
  ranges_.clear();
}

std::optional<std::int64_t> StagingRing::take(std::int64_t count, std::int64_t reader) {
  const auto used = [](const Range& range) { return range.count > 0; };
  const auto oldest = std::ranges::find_if(ranges_, used);
  if (oldest == ranges_.end() || count == 0) {
    if (count > pages_) return std::nullopt;
    ranges_.push_back({0, count, reader});
    return 0;
  }
  const auto newest = std::find_if(ranges_.rbegin(), ranges_.rend(), used);
  const std::int64_t end = newest->begin + newest->count;
  const bool wrapped = newest->begin < oldest->begin;
  std::int64_t begin = end;
  if (!wrapped && end + count > pages_) begin = 0;
  const std::int64_t limit = wrapped || begin == 0 ? oldest->begin : pages_;
  if (begin + count > limit) return std::nullopt;
  ranges_.push_back({begin, count, reader});
  return begin;
}

void StagingRing::give_back_before(std::int64_t reader) {
  while (!ranges_.empty() && ranges_.front().reader < reader) ranges_.pop_front();
}

}  // namespace triphase
