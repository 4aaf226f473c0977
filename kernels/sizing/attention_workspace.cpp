#include "kernels/sizing/attention_workspace.h"

#include <algorithm>

#include "base/error.h"
#include "base/rounding.h"

namespace triphase {
namespace {

// Rows that one converted K and V tile serves; more rows would not fit beside it in L2.
constexpr std::int64_t kTargetRows = 128;
// Where threads would wait for each other, or partial results take memory by the row.
constexpr std::int64_t kFewRows = 32;
// Widest vector of any target, in F32; every region starts on its boundary.
constexpr std::int64_t kVector = 16;

}  // namespace

AttentionLayout attention_layout(const AttentionShape& shape) {
  TRIPHASE_CHECK(shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0,
                 "heads must be a multiple of kv_heads");
  const std::int64_t group = shape.heads / shape.kv_heads;
  AttentionLayout layout;
  layout.block_queries = std::max<std::int64_t>(1, kTargetRows / group);
  layout.block_rows = layout.block_queries * group;
  layout.few_queries = std::max<std::int64_t>(1, kFewRows / group);
  layout.few_rows = layout.few_queries * group;
  layout.padded_dim = round_up(shape.head_dim, kVector);
  layout.splits = ceil_div(shape.max_context, kAttentionSplit);
  layout.table_bytes = round_up(shape.max_query_rows * 16, 64);
  // q, q times a block's scales, o, the merged o and a block's unscaled o; m, l and their merged
  // forms, a block's constants; scores, and those of one block; one tile of K and one of V.
  const std::int64_t rows = layout.block_rows;
  const std::int64_t row_values = round_up(rows, kVector);
  layout.thread_floats = 5 * rows * layout.padded_dim + 5 * row_values + 2 * rows * kAttentionTile +
                         2 * kAttentionTile * layout.padded_dim;
  layout.partial_floats =
      layout.few_rows * layout.padded_dim + 2 * round_up(layout.few_rows, kVector);
  // With more tasks than this the threads are busy anyway.
  layout.max_split_tasks = shape.threads > 1 ? 4 * shape.threads - 1 : 0;
  // Tasks of one call hold at most `heads` blocks per query row.
  layout.partials =
      std::min(layout.max_split_tasks, shape.max_query_rows * shape.heads) * layout.splits;
  return layout;
}

std::uint64_t attention_workspace_bytes(const AttentionShape& shape) {
  const AttentionLayout layout = attention_layout(shape);
  return static_cast<std::uint64_t>(
      layout.table_bytes +
      static_cast<std::int64_t>(sizeof(float)) *
          (shape.threads * layout.thread_floats + layout.partials * layout.partial_floats));
}

}  // namespace triphase
