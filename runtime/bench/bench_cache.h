#pragma once

// Random KV for benchmarks of attention, INT8 as the engine keeps it: codes, scales, and the
// queries' own blocks in 16 bits.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "runtime/bench/measure.h"

namespace triphase::bench {

struct BenchCacheShape {
  DType dtype = DType::kF16;
  std::int64_t page_tokens = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t pages = 0;          // of a layer
  std::int64_t partial_pages = 0;  // INT8: of all layers together
  std::int64_t layers = 1;

  [[nodiscard]] bool quantized() const { return dtype == DType::kInt8; }
  [[nodiscard]] std::int64_t page_elements() const { return page_tokens * kv_heads * head_dim; }
  // K and V of a layer.
  [[nodiscard]] std::int64_t layer_bytes() const;
};

class BenchCache {
 public:
  BenchCache(BenchMemory& memory, const BenchCacheShape& shape);

  [[nodiscard]] KvLayerView layer(std::int64_t index) const;
  // What a view of layer 0 points to, on the host; valid as long as this object.
  [[nodiscard]] KvLayerView on_host(BenchMemory& memory);

 private:
  BenchCacheShape shape_;
  Buffer k_, v_, scales_, partial_k_, partial_v_;
  std::vector<std::byte> host_[5];
};

// Queries [first, context) of a sequence whose pages are `pages`, from row `row` of q on: one
// segment, with INT8 one for each block, whose partial pages count from `partial_page` on.
void add_segments(std::vector<AttentionSegment>& segments, const BenchCacheShape& shape,
                  std::span<const PageId> pages, std::int64_t first, std::int64_t context,
                  std::int64_t row, std::int64_t partial_page);

}  // namespace triphase::bench
