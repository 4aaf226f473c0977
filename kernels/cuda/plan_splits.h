#pragma once

// Divides the tokens of ragged rows among the warps of an attention kernel, on the device, so that
// no layer waits for the host to learn how many tokens a sparse method chose.
//
// A row is (sequence, KV head), index sequence * kv_heads + head. Its tokens are cut into units of
// `unit_tokens`. The units of all rows, one row after the other, are dealt to `parts` parts of
// equal cost; a row costs its units plus `row_overhead` (starting and finishing a row costs time
// too). A part therefore covers the end of one row, some whole rows, and the beginning of another.
// What part p computes of row r is partial result p + r: the sum grows along the walk, so it is
// unique and below parts + rows.
//
// Rows may have a window: their last tokens alone, from the unit on in which these begin.
//
// Fixed mode gives every unit a part of its own: where a row is cut then depends on its own length
// alone (deterministic runs), at the price of one partial result per unit.

#include <cstddef>
#include <cstdint>

#include "kernels/both_sides.h"
#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

// The first token that a row of `count` tokens with a window has; window 0: none.
[[nodiscard]] TRIPHASE_BOTH constexpr int window_begin(int count, int window) {
  return window > 0 && window < count ? count - window : 0;
}

// Walks from (row_begin, unit_begin) up to, not including, (row_end, unit_end). A row's unit 0 is
// that of its window_begin().
struct SplitPart {
  std::int32_t row_begin;
  std::int32_t unit_begin;
  std::int32_t row_end;
  std::int32_t unit_end;
};

// The parts that hold partial results of a row: first, first + 1, ...
struct RowParts {
  std::int32_t first;
  std::int32_t count;
};

struct SplitPlan {
  const SplitPart* parts = nullptr;     // device, [part_count]
  const RowParts* row_parts = nullptr;  // device, [rows]
  int part_count = 0;
  int rows = 0;
  int unit_tokens = 0;
};

enum class SplitMode : std::uint8_t { kBalanced, kFixed };

struct PlanSplitsArgs {
  const std::int32_t* counts = nullptr;  // device: tokens of row r are counts[r / rows_per_count]
  int rows = 0;
  int rows_per_count = 1;  // kv_heads when all heads of a sequence see the same number of tokens
  int unit_tokens = 0;
  int window = 0;        // > 0: rows have their last so many tokens alone
  int row_overhead = 0;  // in units; balanced mode only
  int part_count = 0;    // fixed mode: at least the number of units of all rows
  SplitMode mode = SplitMode::kBalanced;
};

// Lays the plan into `workspace` (split_plan_bytes(rows, part_count) bytes, 16-byte aligned, on the
// device) and queues its computation. Counts must not be negative.
[[nodiscard]] SplitPlan plan_splits(const PlanSplitsArgs& args, void* workspace,
                                    std::size_t workspace_bytes, StreamHandle stream);

}  // namespace triphase::cuda
