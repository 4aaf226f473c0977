#pragma once

// How many tokens a KV block has where nobody chooses.

#include <cstdint>

#include "base/dtype.h"

namespace triphase {

// Each INT8 block has its own scales, so INT8 blocks are longer (docs/performance.md). They shape
// the values that are attended: policies and plans must not differ in them.
constexpr std::int64_t default_block_tokens(DType kv_dtype) {
  return kv_dtype == DType::kInt8 ? 64 : 32;
}

}  // namespace triphase
