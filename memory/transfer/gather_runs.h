#pragma once

// Which pieces of host records a transfer copies when only some tokens of a block are wanted: one
// piece per stretch of neighbours, or one across the gaps where a piece more would cost the link
// more than the bytes of the gap. PURE.

#include <cstdint>
#include <span>
#include <vector>

#include "memory/transfer/link.h"

namespace triphase {

// The wanted tokens of one block in one layer.
struct WantedTokens {
  std::int64_t slot = 0;    // of the block's first token on the device
  std::int64_t record = 0;  // of the same on the host
  // [page_tokens][parts], 0 or 1; parts is 1 (all heads) or kv_heads.
  std::span<const std::uint8_t> cells;
  // Empty: tokens keep their offsets. Else by cell where it goes on the device, -1: there.
  std::span<const std::int32_t> slots;
};

// Adds runs that cover the wanted cells. Gaps of at most `gap_bytes` are copied along.
void gather_runs(const KvGeometry& geometry, const WantedTokens& wanted, std::int64_t gap_bytes,
                 std::vector<TokenRun>& runs);

}  // namespace triphase
