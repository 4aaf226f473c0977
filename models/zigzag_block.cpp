#include "models/zigzag_block.h"

namespace triphase {

void ZigzagBlock::begin(std::span<const BatchSegment> segments) {
  batches_.clear();
  std::int64_t sequences = 0;
  for (const BatchSegment& segment : segments) {
    if (batches_.empty() || (sequences_ > 0 && sequences == sequences_)) {
      batches_.push_back({segment.first_row, 0});
      sequences = 0;
    }
    batches_.back().count += segment.count;
    ++sequences;
  }
}

}  // namespace triphase
