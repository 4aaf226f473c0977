#pragma once

// Device memory that the backends' operations hold for themselves, beside the workspaces that their
// callers give them: what the planner counts and Backend::reserve() allocates. Pure.

#include <cstdint>

#include "base/dtype.h"
#include "kernels/sizing/attention_workspace.h"
#include "kernels/sizing/compute_machine.h"

namespace triphase {

// The largest calls to come. Grows with every size.
struct OpsShape {
  AttentionShape attention;          // of Ops::attention; threads do not matter
  std::int64_t max_sequences = 0;    // its segments
  std::int64_t layers = 1;           // that a step's tables serve
  bool windows = false;              // some of them attend a window
  std::int64_t max_list_tokens = 0;  // longest list of a selection; 0: no selections
  std::int64_t sequence_lists = 0;   // of a selection, in all layers that it is for
  // Clusters that SparseOps::choose_by_clusters scores per KV head; 0: none, or one level alone.
  std::int64_t fine_clusters = 0;
  std::int64_t coarse_clusters = 0;
  // Queries of a prompt that choose together, and the tokens they choose from; 0: none do.
  std::int64_t prompt_unit_rows = 0;
  std::int64_t clustered_tokens = 0;
  std::int64_t widest_input = 0;      // columns of the widest x of Ops::linear
  std::int64_t max_sampled_rows = 0;  // of Ops::sample
  DType kv_dtype = DType::kF16;
  DType partial_dtype = DType::kF16;  // INT8 only
  std::int64_t page_tokens = 32;
};

// Tokens that lists have room for where the longest has so many: whole steps, so that a launch's
// arguments stay the same while contexts grow.
[[nodiscard]] constexpr std::int64_t list_capacity(std::int64_t tokens) {
  constexpr std::int64_t kUnit = 32;
  return (tokens + kUnit - 1) / kUnit * kUnit;
}

// The same for memory that grows with the lists, seldom.
[[nodiscard]] constexpr std::int64_t roomy_list_capacity(std::int64_t tokens) {
  return list_capacity(list_capacity(tokens) + 1);
}

// Numbers of AttendedScores, softmax first, for so many rows of lists of such a capacity.
[[nodiscard]] constexpr std::int64_t attended_floats(std::int64_t rows, std::int64_t heads,
                                                     std::int64_t capacity) {
  return rows * heads * (2 + capacity);
}

// 0 where calls work in their callers' workspaces alone (the CPU).
[[nodiscard]] std::uint64_t ops_reserved_bytes(const ComputeMachine& machine,
                                               const OpsShape& shape);

}  // namespace triphase
