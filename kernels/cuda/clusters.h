#pragma once

// Key clusters of a fixed context (Squeezed Attention): offline K-means by rows (sequence x KV
// head) and, online, from chosen clusters to the tokens in them. Deterministic: sums run in token
// order, ties go to the smallest cluster. Device memory.

#include <cstdint>

#include "kernels/cuda/stream_handle.h"

namespace triphase::cuda {

struct Points {
  const float* values = nullptr;  // [row][count][dim]
  std::int64_t rows = 0;
  std::int64_t count = 0;
  std::int64_t dim = 0;
};

// normalized = values / |value| (L2); zero vectors stay zero.
void normalize_points(const Points& points, float* normalized, StreamHandle stream);

// labels [row][count]: the nearest centroid (Euclidean). centroids [row][clusters][dim].
void kmeans_assign(const Points& points, const float* centroids, std::int64_t clusters,
                   std::int32_t* labels, StreamHandle stream);

// centroids [row][clusters][dim]: means of their members; members [row][clusters]: how many. An
// empty cluster becomes a zero vector.
void kmeans_update(const Points& points, const std::int32_t* labels, std::int64_t clusters,
                   float* centroids, std::int32_t* members, StreamHandle stream);

struct ClusterTokens {
  const std::int32_t* begins = nullptr;  // [row][max_clusters + 1], into tokens of the row
  const std::int32_t* tokens = nullptr;  // [row][max_tokens]
  std::int64_t rows = 0;
  std::int64_t max_clusters = 0;
  std::int64_t max_tokens = 0;
};

// Tokens of the chosen clusters, ascending: chosen [row][chosen_stride] of which chosen_counts
// [row] count; indices [row][max_tokens], counts [row].
void expand_clusters(const ClusterTokens& clusters, const std::int32_t* chosen,
                     std::int64_t chosen_stride, const std::int32_t* chosen_counts,
                     std::int32_t* indices, std::int32_t* counts, StreamHandle stream);

// Quest: tokens of the chosen sub-pages (ascending) of `tokens_per_page` tokens, cut at the row's
// length: lengths [row / rows_per_length]. indices [row][capacity] hold any row's tokens.
void expand_pages(const std::int32_t* chosen, std::int64_t chosen_stride,
                  const std::int32_t* chosen_counts, std::int64_t rows,
                  std::int64_t tokens_per_page, const std::int32_t* lengths,
                  std::int64_t rows_per_length, std::int32_t* indices, std::int64_t capacity,
                  std::int32_t* counts, StreamHandle stream);

}  // namespace triphase::cuda
