#pragma once

// Scratch of Ops::attention as a pure function of shapes: the planner budgets with it before
// anything is allocated and the kernel lays its scratch out by it, so that plan and run cannot
// disagree. Also the cuts of the work, which decide every result's bits. No state; thread safe.

#include <cstdint>

namespace triphase {

// Tokens per step of the online softmax, and per independent partial result (m, l, o). Both are
// cut at absolute positions.
inline constexpr std::int64_t kAttentionTile = 64;
inline constexpr std::int64_t kAttentionSplit = 512;

struct AttentionShape {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // divides heads
  std::int64_t head_dim = 0;
  std::int64_t max_query_rows = 0;  // rows of q in one call, all segments together
  std::int64_t max_context = 0;     // tokens of the longest segment, its queries included
  int threads = 1;
};

// How a call cuts its work and its scratch; counts are elements of F32 unless named otherwise.
struct AttentionLayout {
  std::int64_t block_queries = 0;  // queries of one task, where there are many tasks
  std::int64_t block_rows = 0;     // times the query heads of a KV head: rows of one task
  std::int64_t few_queries = 0;    // the same where tasks are few, and partial results are kept
  std::int64_t few_rows = 0;
  std::int64_t padded_dim = 0;       // head_dim rounded up to whole vectors
  std::int64_t splits = 0;           // of the longest context
  std::int64_t table_bytes = 0;      // where each segment's tasks begin
  std::int64_t thread_floats = 0;    // scratch of one thread
  std::int64_t partial_floats = 0;   // one task's result of one split
  std::int64_t max_split_tasks = 0;  // calls with at most this many tasks run splits in parallel
  std::int64_t partials = 0;         // partial results such a call keeps
};
[[nodiscard]] AttentionLayout attention_layout(const AttentionShape& shape);

// Bytes for any call whose rows and contexts stay within `shape`. Grows with all but the counts
// of heads. Throws an
// internal error when heads is not a positive multiple of kv_heads.
[[nodiscard]] std::uint64_t attention_workspace_bytes(const AttentionShape& shape);

}  // namespace triphase
