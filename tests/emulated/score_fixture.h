#pragma once

// What the scoring tests share: a paged cache as the kernels see it, and SparQ's definition in
// float64.

#include <algorithm>
#include <numeric>

#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/score_rows.h"
#include "tests/emulated/emulated_test.h"

namespace triphase::cuda {

inline std::int64_t keys_pages(const PagedCache& cache) {
  return static_cast<std::int64_t>(cache.lengths.size()) * cache.max_pages + 1;
}

inline ScoreKeys keys_of(const PagedCache& cache) {
  ScoreKeys keys;
  keys.keys = cache.k_data();
  if (!cache.channels.empty()) {
    keys.channels = {.data = const_cast<void*>(cache.channels[0].data()),
                     .pages = keys_pages(cache)};
  }
  keys.dtype = cache.dtype;
  if (cache.dtype == DType::kInt8) {
    keys.scales = cache.scales.data();
    keys.scale_pages = cache.scale_pages.data();
    keys.partial_keys = cache.partial_k[0].data();
    keys.partial_pages = cache.partial_pages.data();
  }
  keys.pages = cache.pages.data();
  keys.max_pages = cache.max_pages;
  keys.lengths = cache.lengths.data();
  keys.sequences = static_cast<std::int64_t>(cache.lengths.size());
  keys.max_length = cache.max_length;
  keys.page_tokens = cache.page_tokens;
  keys.kv_heads = cache.kv_heads;
  keys.head_dim = cache.head_dim;
  return keys;
}

// Softmax probabilities in float64 of one query head over the chosen channels.
inline std::vector<double> probabilities(const PagedCache& cache, std::int64_t b, std::int64_t kv,
                                         const float* q, const std::vector<std::int32_t>& channels,
                                         double factor) {
  std::vector<double> p;
  double top = -INFINITY;
  for (std::int64_t t = 0; t < cache.lengths[static_cast<std::size_t>(b)]; ++t) {
    double dot = 0.0;
    for (const std::int32_t c : channels) dot += q[c] * cache.value(false, b, kv, t, c);
    p.push_back(dot * factor);
    top = std::max(top, p.back());
  }
  double sum = 0.0;
  for (double& value : p) sum += value = std::exp(value - top);
  for (double& value : p) value /= sum;
  return p;
}

inline std::vector<std::int32_t> best_channels(const float* q, std::int64_t group, std::int64_t dim,
                                               std::int64_t rank) {
  std::vector<float> weight(static_cast<std::size_t>(dim));
  for (std::int64_t c = 0; c < dim; ++c) {
    for (std::int64_t g = 0; g < group; ++g)
      weight[static_cast<std::size_t>(c)] += std::abs(q[g * dim + c]);
  }
  std::vector<std::int32_t> order(static_cast<std::size_t>(dim));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) {
    return weight[static_cast<std::size_t>(a)] > weight[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(rank));
  std::ranges::sort(order);
  return order;
}

// SparQ's scores of one row, summed over its group, and each query head's probabilities.
struct SparqRow {
  std::vector<double> scores;
  std::vector<std::vector<double>> probabilities;  // [g][token]
};
inline SparqRow sparq_row(const PagedCache& cache, std::int64_t b, std::int64_t kv, const float* q,
                          std::int64_t group, std::int64_t rank) {
  const std::int64_t dim = cache.head_dim;
  const std::vector<std::int32_t> chosen = best_channels(q, group, dim, rank);
  SparqRow row;
  row.scores.assign(static_cast<std::size_t>(cache.lengths[static_cast<std::size_t>(b)]), 0.0);
  for (std::int64_t g = 0; g < group; ++g) {
    double part = 0.0;
    double all = 0.0;
    for (std::int64_t c = 0; c < dim; ++c) all += std::abs(q[g * dim + c]);
    for (const std::int32_t c : chosen) part += std::abs(q[g * dim + c]);
    const double tau = std::sqrt(static_cast<double>(dim) * part / all);
    row.probabilities.push_back(probabilities(cache, b, kv, q + g * dim, chosen, 1.0 / tau));
    for (std::size_t t = 0; t < row.scores.size(); ++t) {
      row.scores[t] += row.probabilities.back()[t];
    }
  }
  return row;
}

// Memory of the kernels that score rows.
struct Scored {
  std::vector<float> logits, partials, scores, totals;
  ScoreLogits view;
};

inline Scored make_scored(std::int64_t sequences, std::int64_t heads, std::int64_t max_length,
                          std::int64_t kv_heads) {
  const std::int64_t stride = max_length + 2;
  Scored scored{poisoned(sequences * heads * stride),
                poisoned(sequences * heads * ((stride + kScoreTile - 1) / kScoreTile) * 2),
                poisoned(sequences * kv_heads * stride),
                poisoned(sequences * heads * 2),
                {}};
  scored.view = {scored.logits.data(), scored.partials.data(), stride};
  return scored;
}

}  // namespace triphase::cuda
