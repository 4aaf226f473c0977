#include <cmath>
#include <string>

#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/clusters.h"
#include "kernels/cuda/launch_check.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kPointTile = 32;     // points of a block of kmeans_assign
constexpr int kCentroidTile = 32;  // one per lane
constexpr int kMaxDim = 256;

__global__ void __launch_bounds__(kThreads)
    normalize_points_kernel(Points points, float* normalized) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp_id();
  if (at >= points.rows * points.count) return;
  const float* from = points.values + at * points.dim;
  float squares = 0.0F;
  for (int c = lane_id(); c < points.dim; c += kWarpSize) {
    squares = fma_rn(from[c], from[c], squares);
  }
  const float length = sqrtf(warp_sum(squares));
  for (int c = lane_id(); c < points.dim; c += kWarpSize) {
    normalized[at * points.dim + c] = length > 0.0F ? from[c] / length : 0.0F;
  }
}

std::size_t assign_shared_bytes(std::int64_t dim) {
  return sizeof(float) * static_cast<std::size_t>((kPointTile + kCentroidTile) * (dim + 1));
}

// Nearest by the largest x.c - |c|^2 / 2. A warp takes points in turn, a lane one centroid of the
// tile.
__global__ void __launch_bounds__(kThreads)
    kmeans_assign_kernel(Points points, const float* centroids, int clusters,
                         std::int32_t* labels) {
  TRIPHASE_DYNAMIC_SHARED(bytes);
  TRIPHASE_SHARED(float, best_value, kPointTile);
  TRIPHASE_SHARED(int, best_label, kPointTile);
  const int dim = static_cast<int>(points.dim);
  const int stride = dim + 1;
  auto* x = reinterpret_cast<float*>(bytes);
  float* tile = x + kPointTile * stride;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kPointTile;
  const std::int64_t row = blockIdx.y;
  const float* row_centroids = centroids + row * clusters * dim;
  for (int i = thread; i < kPointTile * dim; i += kThreads) {
    const std::int64_t point = first + i / dim;
    x[i / dim * stride + i % dim] =
        point < points.count ? points.values[(row * points.count + point) * dim + i % dim] : 0.0F;
  }
  if (thread < kPointTile) {
    best_value[thread] = -INFINITY;
    best_label[thread] = 0;
  }
  for (int begin = 0; begin < clusters; begin += kCentroidTile) {
    __syncthreads();
    for (int i = thread; i < kCentroidTile * dim; i += kThreads) {
      const int cluster = begin + i / dim;
      tile[i / dim * stride + i % dim] =
          cluster < clusters ? row_centroids[static_cast<std::int64_t>(cluster) * dim + i % dim]
                             : 0.0F;
    }
    __syncthreads();
    const float* own = tile + lane_id() * stride;
    float half_norm = 0.0F;
    for (int c = 0; c < dim; ++c) half_norm = fma_rn(0.5F * own[c], own[c], half_norm);
    for (int point = warp_id(); point < kPointTile; point += kWarps) {
      float value = 0.0F;
      for (int c = 0; c < dim; ++c) value = fma_rn(x[point * stride + c], own[c], value);
      value = begin + lane_id() < clusters ? value - half_norm : -INFINITY;
      const float top = warp_max(value);
      const unsigned winners = ballot(value == top);
      if (lane_id() == 0 && top > best_value[point]) {
        best_value[point] = top;
        best_label[point] = begin + first_bit(winners);
      }
      sync_warp();
    }
  }
  __syncthreads();
  if (thread < kPointTile && first + thread < points.count) {
    labels[row * points.count + first + thread] = best_label[thread];
  }
}

// One block per cluster: it looks through all labels in order and adds its members' vectors, a
// channel per thread. Reads every label once per cluster, which is cheap beside kmeans_assign.
__global__ void __launch_bounds__(kThreads)
    kmeans_update_kernel(Points points, const std::int32_t* labels, int clusters, float* centroids,
                         std::int32_t* members) {
  TRIPHASE_SHARED(int, found, kThreads);
  TRIPHASE_SHARED(unsigned, scratch, kBlockReduceWords);
  const int thread = static_cast<int>(threadIdx.x);
  const int cluster = static_cast<int>(blockIdx.x);
  const std::int64_t row = blockIdx.y;
  const int dim = static_cast<int>(points.dim);
  const std::int32_t* row_labels = labels + row * points.count;
  const float* values = points.values + row * points.count * dim;
  float sums[kMaxDim / kThreads] = {};
  int count = 0;
  for (std::int64_t begin = 0; begin < points.count; begin += kThreads) {
    const bool mine = begin + thread < points.count && row_labels[begin + thread] == cluster;
    unsigned total = 0;
    const unsigned place = block_scan(static_cast<unsigned>(mine), scratch, total);
    if (mine) found[place] = thread;
    __syncthreads();
    for (unsigned i = 0; i < total; ++i) {
      const float* vector = values + (begin + found[i]) * dim;
      TRIPHASE_UNROLL
      for (int own = 0; own < kMaxDim / kThreads; ++own) {
        const int c = own * kThreads + thread;
        if (c < dim) sums[own] += vector[c];
      }
    }
    count += static_cast<int>(total);
    __syncthreads();
  }
  TRIPHASE_UNROLL
  for (int own = 0; own < kMaxDim / kThreads; ++own) {
    const int c = own * kThreads + thread;
    if (c < dim) {
      centroids[(row * clusters + cluster) * dim + c] =
          count > 0 ? sums[own] / static_cast<float>(count) : 0.0F;
    }
  }
  if (thread == 0) members[row * clusters + cluster] = count;
}

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
  const int clustered = smaller(static_cast<int>(clusters.tokens), context - 1);
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

bool are_points(const Points& points) {
  return points.values != nullptr && points.rows >= 0 && points.rows <= 65535 &&
         points.count >= 0 && points.dim > 0 && points.dim <= kMaxDim;
}

constexpr std::string_view kBadPoints =
    "null pointer, no clusters, more than 65535 rows, or dim not 1 to 256";

std::string shape_of(const Points& points, std::int64_t clusters = 0) {
  return shape_text({{"rows", points.rows},
                     {"points", points.count},
                     {"dim", points.dim},
                     {"clusters", clusters}});
}

}  // namespace

void normalize_points(const Points& points, float* normalized, StreamHandle stream) {
  const auto shape = [&] { return shape_of(points); };
  require(are_points(points) && normalized != nullptr, "normalize_points", kBadPoints, shape);
  const std::int64_t total = points.rows * points.count;
  if (total == 0) return;
  TRIPHASE_LAUNCH((normalize_points_kernel),
                  static_cast<unsigned>(ceil_div<std::int64_t>(total, kWarps)), kThreads, 0, stream,
                  points, normalized);
  check_launched("normalize_points", shape);
}

void kmeans_assign(const Points& points, const float* centroids, std::int64_t clusters,
                   std::int32_t* labels, StreamHandle stream) {
  const auto shape = [&] { return shape_of(points, clusters); };
  require(are_points(points) && centroids != nullptr && clusters > 0 && labels != nullptr,
          "kmeans_assign", kBadPoints, shape);
  if (points.rows * points.count == 0) return;
  const dim3 grid{static_cast<unsigned>(ceil_div<std::int64_t>(points.count, kPointTile)),
                  static_cast<unsigned>(points.rows), 1};
  const std::size_t shared = assign_shared_bytes(points.dim);
  allow_shared_bytes(&kmeans_assign_kernel, shared, "kmeans_assign", shape);
  TRIPHASE_LAUNCH((kmeans_assign_kernel), grid, kThreads, shared, stream, points, centroids,
                  static_cast<int>(clusters), labels);
  check_launched("kmeans_assign", shape);
}

void kmeans_update(const Points& points, const std::int32_t* labels, std::int64_t clusters,
                   float* centroids, std::int32_t* members, StreamHandle stream) {
  const auto shape = [&] { return shape_of(points, clusters); };
  require(are_points(points) && labels != nullptr && clusters > 0 && centroids != nullptr &&
              members != nullptr,
          "kmeans_update", kBadPoints, shape);
  if (points.rows == 0) return;
  const dim3 grid{static_cast<unsigned>(clusters), static_cast<unsigned>(points.rows), 1};
  TRIPHASE_LAUNCH((kmeans_update_kernel), grid, kThreads, 0, stream, points, labels,
                  static_cast<int>(clusters), centroids, members);
  check_launched("kmeans_update", shape);
}

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
