#pragma once

// FlexGen's zig-zag block inside one step: a layer's rows go through its products one GPU batch
// after another, so that the layer's weights are brought once for all batches. The numbers are
// those of one batch, bit for bit. Not thread safe.

#include <cstdint>
#include <span>
#include <vector>

#include "models/forward_batch.h"

namespace triphase {

class ZigzagBlock {
 public:
  // Rows of a step.
  struct Rows {
    std::int64_t first = 0;
    std::int64_t count = 0;
  };

  // Sequences of a batch; 0 (default): all go together.
  void set_batch(std::int64_t sequences) { sequences_ = sequences; }

  // Divides a step.
  void begin(std::span<const BatchSegment> segments);
  [[nodiscard]] std::span<const Rows> batches() const { return batches_; }

 private:
  std::int64_t sequences_ = 0;
  std::vector<Rows> batches_;
};

}  // namespace triphase
