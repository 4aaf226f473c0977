#pragma once

// The arithmetic behind CpuSparseOps, one source file per group. CpuSparseOps checks the arguments.

#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/sizing/sparse_workspace.h"
#include "kernels/sparse_ops.h"

namespace triphase::cpu {

// SparseOps::choose_by_channels of one row; shape.max_context is the segment's context.
struct ChannelCall {
  ConstMatrix q;
  std::int64_t heads = 0;
  const KvLayerView& cache;
  const AttentionSegment& keys;
  float scale = 1.0F;
  const ChannelChoice& choice;
  std::int32_t* tokens = nullptr;  // lists of choice.tokens
  std::int64_t capacity = 0;       // from one list to the next
  float* alpha = nullptr;          // null: nobody asks
};
void choose_by_channels(ThreadPool& pool, const ChannelCall& call, const AttentionShape& shape,
                        Workspace workspace);

// See SparseOps::bound_pages, of one row; and the scores of choose_by_pages, [kv_head][pages].
void bound_pages(ThreadPool& pool, const KvLayerView& cache, const AttentionSegment& keys,
                 const PageBounds& bounds, std::int64_t page_tokens);
void score_pages(ThreadPool& pool, ConstMatrix q, std::int64_t row, std::int64_t heads,
                 std::int64_t kv_heads, const float* bounds, std::int64_t pages, float* scores);
// See SparseOps.
void score_centroids(ThreadPool& pool, ConstMatrix q, std::int64_t row, std::int64_t heads,
                     std::int64_t kv_heads, const Centroids& centroids, float scale, float* scores);

// SparseOps::choose_by_clusters of one row at a time; keeps its buffers.
class ClusterChooser {
 public:
  // Writes the row's lists to `tokens`, `capacity` apart, and how long they are to `counts`.
  void choose(ThreadPool& pool, ConstMatrix q, std::int64_t heads, std::int64_t kv_heads,
              const AttentionSegment& row, const KeyClusters& clusters, float scale,
              std::int32_t* tokens, std::int64_t capacity, std::int32_t* counts);
  // How many centroids the last row scored.
  [[nodiscard]] std::int64_t centroids() const { return centroids_; }

 private:
  // The mean score of every centroid over the row's queries, [kv_head][count].
  void score(ThreadPool& pool, ConstMatrix q, std::int64_t heads, std::int64_t kv_heads,
             const AttentionSegment& row, const Centroids& level, float scale,
             std::vector<float>& to);

  std::vector<float> scores_;
  std::vector<float> coarse_scores_;
  std::vector<double> sums_;
  std::vector<std::uint8_t> alive_;   // [kv_head][fine cluster]
  std::vector<std::uint8_t> chosen_;  // as alive_
  std::int64_t centroids_ = 0;
};

// See SparseOps::score_keys, of the query at keys.query_begin, and SparseOps::accumulate_columns;
// shape.max_context is the segment's context.
struct KeyScores {
  ConstMatrix q;
  std::int64_t heads = 0;
  const KvLayerView& cache;
  const AttentionSegment& keys;
  ScoreScale scale;
  float* to = nullptr;  // probabilities by head, or sums by KV head
  std::int64_t stride = 0;
};
void score_keys(ThreadPool& pool, const KeyScores& scores, const AttentionShape& shape,
                Workspace workspace);
void accumulate_columns(ThreadPool& pool, const KeyScores& scores, const AttentionShape& shape,
                        Workspace workspace);

// Writes the indices of the `count` <= size highest scores to `to`, ascending; of equal scores the
// smaller index wins and NaN comes last. scratch: select_top_words(size) numbers.
void select_top(const float* scores, std::int64_t size, std::int64_t count, std::int32_t* scratch,
                std::int32_t* to);

// Weights of tokens [first, end) of a selection's list, summed over its query heads in their order,
// of `heads` in all. `entry`: row * lists + list.
void sum_token_weights(const Selection& attended, std::int64_t heads, std::int64_t entry,
                       std::int64_t first, std::int64_t end, float* to);

// Of SparseOps::add_weights: `weights` enter as those of the step's tokens from the first-th on,
// or, without tokens, of positions from there on.
void enter_weights(const WeightWindow& window, const WindowStep& step, std::int64_t first,
                   std::span<const float> weights, const std::int32_t* tokens);
// What expires leaves.
void expire_weights(const WeightWindow& window, const WindowStep& step, std::int64_t context);
// One row of SparseOps::choose_recent_and_heaviest; scratch: window_choice_words(context) numbers.
[[nodiscard]] std::int64_t window_choice_words(std::int64_t context);
void choose_recent_and_heaviest(const WindowChoice& row, float* scratch, std::int32_t* to);

// One list of SparseOps::keep_heaviest; writes tokens_left(row) tokens to `to`. scratch:
// keep_heaviest_words(row.count + row.added) numbers.
[[nodiscard]] std::int64_t keep_heaviest_words(std::int64_t tokens);
void keep_heaviest(const KeptRow& row, std::int64_t list, std::int32_t* scratch, std::int32_t* to);

// See SparseOps::transpose_keys.
void transpose_keys(ThreadPool& pool, const KvLayerView& cache, const AttentionSegment& keys);

}  // namespace triphase::cpu
