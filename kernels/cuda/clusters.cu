#include <string>

#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/clusters.h"
#include "kernels/cuda/launch_check.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 128;

// What atomic_add takes.
__device__ inline void add_to(std::uint64_t& total, std::uint64_t value) {
  (void)atomic_add(reinterpret_cast<unsigned long long*>(&total),
                   static_cast<unsigned long long>(value));
}

__global__ void __launch_bounds__(kThreads)
    find_alive_clusters_kernel(ClusterParents clusters, std::uint8_t* alive,
                               ClusterCounts* counts) {
  TRIPHASE_SHARED(unsigned, scratch, kBlockReduceWords);
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const float* scores = clusters.coarse_scores + row * clusters.coarse;
  const std::int32_t* parents = clusters.parents + row % clusters.kv_heads * clusters.fine;
  unsigned own = 0;
  for (int i = static_cast<int>(threadIdx.x); i < clusters.fine; i += kThreads) {
    device_check(parents[i] >= 0 && parents[i] < clusters.coarse);
    const bool survives = static_cast<double>(scores[parents[i]]) >= clusters.threshold;
    alive[row * clusters.fine + i] = survives ? 1 : 0;
    own += survives ? 1U : 0U;
  }
  const unsigned survivors =
      block_reduce(own, scratch, 0U, [](unsigned a, unsigned b) { return a + b; });
  if (threadIdx.x == 0 && counts != nullptr) {
    add_to(counts->centroids, static_cast<std::uint64_t>(clusters.coarse) + survivors);
  }
}

constexpr int kChooseThreads = 512;
constexpr int kTokensEach = 8;  // that follow each other, of a thread at a time

__global__ void __launch_bounds__(kChooseThreads)
    choose_clusters_kernel(ClusterTokens clusters, std::int32_t* indices, std::int64_t capacity,
                           std::int32_t* counts, ClusterCounts* totals) {
  TRIPHASE_SHARED(unsigned, scratch, kBlockReduceWords);
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int context = clusters.contexts[row / clusters.kv_heads];
  const int queries = larger(1, static_cast<int>(clusters.queries));
  const int clustered = smaller(static_cast<int>(clusters.tokens), context - queries);
  device_check(context <= capacity);
  const std::int32_t* labels = clusters.labels + row % clusters.kv_heads * clusters.tokens;
  const float* scores = clusters.scores + row * clusters.clusters;
  const std::uint8_t* alive =
      clusters.alive == nullptr ? nullptr : clusters.alive + row * clusters.clusters;
  std::int32_t* out = indices + row * capacity;
  int before = 0;
  for (int begin = 0; begin < clustered; begin += kChooseThreads * kTokensEach) {
    const int first = begin + thread * kTokensEach;
    unsigned chosen = 0;  // a bit per token
    for (int i = 0; i < kTokensEach && first + i < clustered; ++i) {
      const int cluster = labels[first + i];
      device_check(cluster >= 0 && cluster < clusters.clusters);
      const bool below = static_cast<double>(scores[cluster]) < clusters.threshold;
      if (!below && (alive == nullptr || alive[cluster] != 0)) chosen |= 1U << i;
    }
    unsigned total = 0;
    int place = before + static_cast<int>(
                             block_scan(static_cast<unsigned>(count_bits(chosen)), scratch, total));
    for (; chosen != 0U; chosen &= chosen - 1U) out[place++] = first + first_bit(chosen);
    before += static_cast<int>(total);
  }
  for (int token = clustered + thread; token < context; token += kChooseThreads) {
    out[before + token - clustered] = token;
  }
  if (thread != 0) return;
  const int count = before + context - clustered;
  counts[row] = count;
  if (totals == nullptr) return;
  if (clusters.queries > 0) {
    // Each query sees one token more than the one before it.
    const auto seen = static_cast<std::uint64_t>(queries) * static_cast<std::uint64_t>(count);
    const auto unseen = static_cast<std::uint64_t>(queries) * (queries - 1) / 2;
    add_to(totals->prompt_tokens, seen - unseen);
    return;
  }
  add_to(totals->tokens, static_cast<std::uint64_t>(count));
  if (alive == nullptr) add_to(totals->centroids, static_cast<std::uint64_t>(clusters.clusters));
}

__global__ void __launch_bounds__(kThreads)
    expand_pages_kernel(const std::int32_t* chosen, std::int64_t chosen_stride,
                        const std::int32_t* chosen_counts, int tokens_per_page,
                        const std::int32_t* lengths, std::int64_t rows_per_length,
                        std::int32_t* indices, std::int64_t capacity, std::int32_t* counts) {
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const int length = lengths[row / rows_per_length];
  const int pages = chosen_counts[row];
  const std::int32_t* own = chosen + row * chosen_stride;
  // Only the row's last sub-page can be shorter, and it is the last of the chosen ones.
  for (int i = static_cast<int>(threadIdx.x); i < pages * tokens_per_page; i += kThreads) {
    const int token = own[i / tokens_per_page] * tokens_per_page + i % tokens_per_page;
    if (token >= length) continue;
    device_check(i < capacity);
    indices[row * capacity + i] = token;
  }
  if (threadIdx.x == 0) {
    int count = pages * tokens_per_page;
    if (pages > 0) {
      count -= larger(0, (own[pages - 1] + 1) * tokens_per_page - length);
    }
    counts[row] = count;
  }
}

}  // namespace

void find_alive_clusters(const ClusterParents& clusters, std::uint8_t* alive, ClusterCounts* counts,
                         StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"rows", clusters.rows},
                       {"kv_heads", clusters.kv_heads},
                       {"coarse", clusters.coarse},
                       {"fine", clusters.fine}});
  };
  require(clusters.coarse_scores != nullptr && clusters.parents != nullptr && alive != nullptr,
          "find_alive_clusters", "null pointer", shape);
  require(clusters.kv_heads > 0 && clusters.coarse > 0 && clusters.fine > 0, "find_alive_clusters",
          "no clusters", shape);
  if (clusters.rows == 0) return;
  TRIPHASE_LAUNCH((find_alive_clusters_kernel), static_cast<unsigned>(clusters.rows), kThreads, 0,
                  stream, clusters, alive, counts);
  check_launched("find_alive_clusters", shape);
}

void choose_clusters(const ClusterTokens& clusters, std::int32_t* indices, std::int64_t capacity,
                     std::int32_t* counts, ClusterCounts* totals, StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"rows", clusters.rows},
                       {"kv_heads", clusters.kv_heads},
                       {"clusters", clusters.clusters},
                       {"tokens", clusters.tokens},
                       {"capacity", capacity}});
  };
  require(clusters.scores != nullptr && clusters.labels != nullptr &&
              clusters.contexts != nullptr && indices != nullptr && counts != nullptr,
          "choose_clusters", "null pointer", shape);
  require(clusters.kv_heads > 0 && clusters.clusters > 0 && clusters.tokens >= 0 && capacity > 0,
          "choose_clusters", "no clusters, or no capacity", shape);
  if (clusters.rows == 0) return;
  TRIPHASE_LAUNCH((choose_clusters_kernel), static_cast<unsigned>(clusters.rows), kChooseThreads, 0,
                  stream, clusters, indices, capacity, counts, totals);
  check_launched("choose_clusters", shape);
}

void expand_pages(const std::int32_t* chosen, std::int64_t chosen_stride,
                  const std::int32_t* chosen_counts, std::int64_t rows,
                  std::int64_t tokens_per_page, const std::int32_t* lengths,
                  std::int64_t rows_per_length, std::int32_t* indices, std::int64_t capacity,
                  std::int32_t* counts, StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"rows", rows},
                       {"chosen_stride", chosen_stride},
                       {"tokens_per_page", tokens_per_page},
                       {"rows_per_length", rows_per_length},
                       {"capacity", capacity}});
  };
  require(chosen != nullptr && chosen_counts != nullptr && lengths != nullptr &&
              indices != nullptr && counts != nullptr,
          "expand_pages", "null pointer", shape);
  require(rows_per_length > 0 && tokens_per_page > 0 && capacity > 0, "expand_pages",
          "no rows for a length, pages without tokens, or no capacity", shape);
  if (rows == 0) return;
  TRIPHASE_LAUNCH((expand_pages_kernel), static_cast<unsigned>(rows), kThreads, 0, stream, chosen,
                  chosen_stride, chosen_counts, static_cast<int>(tokens_per_page), lengths,
                  rows_per_length, indices, capacity, counts);
  check_launched("expand_pages", shape);
}

}  // namespace triphase::cuda
