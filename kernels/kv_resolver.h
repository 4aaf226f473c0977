#pragma once

// Where the tokens that attention methods choose lie: in a page of the device, in a hot row (a slot
// of the token cache), or on the host. Looked up on the device, so that the host neither reads the
// choice nor waits for it. What is on the host gets a hot row, in place of the token that was
// chosen longest ago, or a spare slot that serves one choice alone; so does a token whose K and V
// are projected from hidden states on the host. Memory: kernels/sizing. One thread.

#include <cstdint>
#include <span>

#include "base/ids.h"
#include "kernels/kv_records.h"
#include "kernels/ops.h"

namespace triphase {

// A step's block tables, in host memory, until the next step; `row_blocks` entries for each row.
struct BlockTables {
  std::int64_t rows = 0;
  std::int64_t row_blocks = 0;
  std::span<const std::int32_t> pages;  // in layer 0; -1: not on the device
  // -1: not on the host. Blocks whose hidden states are saved, and whose K and V are not, come
  // behind those of K and V: input block i is ResolverShape::host_blocks + i.
  std::span<const std::int32_t> host_blocks;
  std::span<const std::int32_t> scale_pages;  // INT8: the same in every layer
  std::span<const std::int32_t> lengths;      // by row: tokens of its context
  std::span<const std::int32_t> slots;        // where new tokens go in layer 0; not INT8
};

struct ResolveCall {
  LayerId layer;
  std::int64_t first_row = 0;  // of the tables: that of the choice's first row, the others follow
  Selection lists;
  // Blocks on the host that came as a whole for this call: their pages, [row of the choice]
  // [row_blocks], -1 for others; in host memory. Empty: there are none.
  std::span<const std::int32_t> staged;
  std::int64_t first_spare_slot = 0;
  std::int64_t spare_slots = 0;  // as many as all rows together may choose on the host
  // Where the results go: they stay until the same unit is used again.
  std::int64_t unit = 0;
};

// Summed over all calls. A token counts once for each list that chose it.
struct ResolveCounts {
  std::int64_t chosen = 0;      // chosen tokens on the host
  std::int64_t cached = 0;      // found in hot rows: the link brings nothing
  std::int64_t brought = 0;     // K and V brought, once for each token
  std::int64_t recomputed = 0;  // hidden states brought, once for each token
};

class KvResolver {
 public:
  virtual ~KvResolver() = default;

  // Units whose results can exist side by side.
  [[nodiscard]] virtual std::int64_t units() const = 0;

  // A step begins: its tables, on the device until the next one begins; empty on the CPU, whose
  // operations read the host's. `changed`: host blocks whose content is another than in the step
  // before.
  virtual SegmentTables begin_step(const BlockTables& tables, std::span<const std::int32_t> changed,
                                   Stream& stream) = 0;

  struct Resolved {
    Selection lists;        // those of the call, with slots
    MissingTokens missing;  // to be brought before the lists are attended
    // Missing tokens whose hidden states are brought and projected; empty without input blocks.
    RecomputedTokens recomputed;
  };
  // `stream`: of compute where blocks came as a whole, else any whose work follows that of the
  // calls before.
  [[nodiscard]] virtual Resolved resolve(const ResolveCall& call, Stream& stream) = 0;

  // Waits for the stream.
  [[nodiscard]] virtual ResolveCounts counts(Stream& stream) = 0;
};

}  // namespace triphase
