#pragma once

// A step's block tables in host memory, for the resolver that looks chosen tokens up on the device
// (kernels/kv_resolver.h). Kept between steps to reuse its memory.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kv_resolver.h"
#include "memory/kv/batch_segment.h"
#include "memory/kv/kv_store.h"

namespace triphase {

class StepBlockTables {
 public:
  // A table row for each of `rows`, whose places exist. The result is valid until the next call.
  [[nodiscard]] BlockTables make(const KvStore& store, std::span<const BatchSegment> rows);

 private:
  std::vector<std::int32_t> pages_, host_blocks_, scale_pages_, lengths_, slots_;
};

}  // namespace triphase
