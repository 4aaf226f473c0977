#include "memory/transfer/gather_runs.h"

#include <algorithm>

#include "runtime/base/error.h"

namespace triphase {
namespace {

// Cells [begin, end) in the host's order, which may start and end inside a token's heads.
void add_stretch(const KvGeometry& geometry, const WantedTokens& wanted, std::int64_t parts,
                 std::int64_t begin, std::int64_t end, std::vector<TokenRun>& runs) {
  const auto heads = static_cast<std::int32_t>(geometry.kv_heads / parts);
  while (begin < end) {
    const std::int64_t token = begin / parts;
    const std::int64_t part = begin % parts;
    TokenRun run{.slot = wanted.slot + token, .record = wanted.record + token, .count = 1};
    std::int64_t cells = parts;
    if (part == 0 && end - begin >= parts) {
      run.count = static_cast<std::int32_t>((end - begin) / parts);
      run.head_count = static_cast<std::int32_t>(geometry.kv_heads);
      cells = run.count * parts;
    } else {
      cells = std::min(parts - part, end - begin);
      run.head_begin = static_cast<std::int32_t>(part) * heads;
      run.head_count = static_cast<std::int32_t>(cells) * heads;
    }
    runs.push_back(run);
    begin += cells;
  }
}

}  // namespace

void gather_runs(const KvGeometry& geometry, const WantedTokens& wanted, std::int64_t gap_bytes,
                 std::vector<TokenRun>& runs) {
  const auto cells = static_cast<std::int64_t>(wanted.cells.size());
  const std::int64_t parts = cells / geometry.page_tokens;
  TRIPHASE_CHECK(
      parts * geometry.page_tokens == cells && parts > 0 && geometry.kv_heads % parts == 0,
      "wanted tokens of another block length");
  const std::int64_t longest_gap = gap_bytes / (geometry.record_bytes() / parts);
  std::int64_t begin = -1;
  std::int64_t end = 0;
  for (std::int64_t cell = 0; cell < cells; ++cell) {
    if (wanted.cells[static_cast<std::size_t>(cell)] == 0) continue;
    if (begin >= 0 && cell - end > longest_gap) {
      add_stretch(geometry, wanted, parts, begin, end, runs);
      begin = cell;
    }
    if (begin < 0) begin = cell;
    end = cell + 1;
  }
  if (begin >= 0) add_stretch(geometry, wanted, parts, begin, end, runs);
}

}  // namespace triphase
