#pragma once

// Squeezed Attention: from scores of a fixed context's key clusters to the tokens in them. Quest:
// from pages to their tokens. Device memory.

#include <cstdint>

#include "kernels/cuda/stream_handle.h"
#include "kernels/sparse_ops.h"

namespace triphase::cuda {

// Fine clusters under coarse ones. Rows are those of the scores.
struct ClusterParents {
  const float* coarse_scores = nullptr;   // [row][coarse]
  std::int64_t coarse = 0;                // per KV head
  const std::int32_t* parents = nullptr;  // [row % kv_heads][fine]: each one's coarse cluster
  std::int64_t fine = 0;
  double threshold = 0;
  std::int64_t kv_heads = 0;
  std::int64_t rows = 0;
};

// alive [row][fine]: 1 where the coarse cluster scores at least the threshold, else 0. Adds the
// coarse clusters and those that are alive to counts->centroids, unless null.
void find_alive_clusters(const ClusterParents& clusters, std::uint8_t* alive, ClusterCounts* counts,
                         StreamHandle stream);

// What rows choose among: tokens of clusters, and those behind them.
struct ClusterTokens {
  const float* scores = nullptr;         // [row][clusters]
  const std::uint8_t* alive = nullptr;   // [row][clusters]; null: all
  std::int64_t clusters = 0;             // per KV head
  double threshold = 0;                  // a cluster of at least this score is chosen
  const std::int32_t* labels = nullptr;  // [row % kv_heads][tokens]: each token's cluster
  std::int64_t tokens = 0;
  const std::int32_t* contexts = nullptr;  // [row / kv_heads]: tokens, the current one included
  std::int64_t kv_heads = 0;
  std::int64_t rows = 0;
  // Queries of a prompt that choose together, the last tokens of the context; 0: of a decoded row.
  std::int64_t queries = 0;
};

// indices [row][capacity], counts [row]: ascending, of the tokens before the queries and before
// clusters.tokens those of chosen clusters, and every token from there on. No context exceeds
// `capacity`. Adds the tokens to totals->tokens and, unless `alive` says which, the clusters to
// totals->centroids; or what a prompt's queries attend to totals->prompt_tokens. `totals` may be
// null.
void choose_clusters(const ClusterTokens& clusters, std::int32_t* indices, std::int64_t capacity,
                     std::int32_t* counts, ClusterCounts* totals, StreamHandle stream);

// Quest: tokens of the chosen sub-pages (ascending) of `tokens_per_page` tokens, cut at the row's
// length: lengths [row / rows_per_length]. indices [row][capacity] hold any row's tokens.
void expand_pages(const std::int32_t* chosen, std::int64_t chosen_stride,
                  const std::int32_t* chosen_counts, std::int64_t rows,
                  std::int64_t tokens_per_page, const std::int32_t* lengths,
                  std::int64_t rows_per_length, std::int32_t* indices, std::int64_t capacity,
                  std::int32_t* counts, StreamHandle stream);

}  // namespace triphase::cuda
