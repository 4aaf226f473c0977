#pragma once

// How many tokens a KV block has where nobody chooses, and how many blocks hold some tokens.

#include <cstdint>

#include "base/dtype.h"

namespace triphase {

// Each INT8 block has its own scales, so INT8 blocks are longer (docs/gpu-performance.md). They
// shape the values that are attended: policies and plans must not differ in them.
constexpr std::int64_t default_block_tokens(DType kv_dtype) {
  return kv_dtype == DType::kInt8 ? 64 : 32;
}

constexpr std::int64_t blocks_for(std::int64_t tokens, std::int64_t block_tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

}  // namespace triphase
