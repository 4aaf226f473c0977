#include <cmath>
#include <string>

#include "kernels/cuda/attention_sink.h"
#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/score_keys.h"
#include "kernels/cuda/score_rows.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;

// Writes a tile's logits (one per thread and query head) and their partial maximum and sum.
// `weight`: how many keys the entry stands for; with none its logit is -infinity.
template <int G>
__device__ inline void write_tile(const float (&logit)[G], float weight, int token, int length,
                                  int group, std::int64_t row, const ScoreLogits& out,
                                  float* scratch) {
  const std::int64_t tiles = ceil_div<std::int64_t>(out.length_stride, kScoreTile);
  for (int g = 0; g < group; ++g) {
    const bool inside = token < length;
    const bool counts = inside && weight > 0.0F;
    if (inside) {
      out.logits[(row * group + g) * out.length_stride + token] = counts ? logit[g] : -INFINITY;
    }
    const float top = block_max(counts ? logit[g] : -INFINITY, scratch);
    const float sum = block_sum(counts ? weight * exp2_fast(logit[g] - top) : 0.0F, scratch);
    if (threadIdx.x == 0) {
      float* partial = out.partials + ((row * tiles + blockIdx.y) * group + g) * 2;
      partial[0] = top;
      partial[1] = sum;
    }
  }
}

__global__ void __launch_bounds__(kMaxScoreDim)
    choose_channels_kernel(ScoreQueries queries, int kv_heads, int head_dim, int rank,
                           SparqScale scale, std::int32_t* channels, float* factors) {
  TRIPHASE_SHARED(uint4, weight, kMaxScoreDim / 4);
  TRIPHASE_SHARED(float, sums, 2 * kGpuMaxScoredGroup * kChannelWarps);
  TRIPHASE_SHARED(int, counts, kChannelWarps);
  const int sequence = static_cast<int>(blockIdx.x) / kv_heads;
  const int head = static_cast<int>(blockIdx.x) % kv_heads;
  const int group = static_cast<int>(queries.heads) / kv_heads;
  const float* q =
      queries.q + sequence * queries.q_stride + static_cast<std::int64_t>(head) * group * head_dim;
  choose_row_channels(q, group, head_dim, rank, scale,
                      channels + static_cast<std::int64_t>(blockIdx.x) * rank,
                      factors + static_cast<std::int64_t>(blockIdx.x) * group,
                      {reinterpret_cast<float*>(weight), sums, counts});
}

// Threads that a multiprocessor has room for at least.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kResidentThreads = 1024;  // Turing
#else
constexpr int kResidentThreads = 1536;
#endif

// Blocks that a multiprocessor's registers must allow: as many as fit without spills.
template <class T, int G>
constexpr int sparq_blocks() {
  constexpr int kBlocks = G == 8 || sizeof(T) == 1 ? 10 : 12;
  return kBlocks < kResidentThreads / kThreads ? kBlocks : kResidentThreads / kThreads;
}

template <class T, int G>
__global__ void __launch_bounds__(kThreads, sparq_blocks<T, G>())
    score_sparq_kernel(ScoreKeys keys, ScoreQueries queries, const std::int32_t* channels,
                       const float* factors, int rank, ScoreLogits out) {
  TRIPHASE_SHARED(float, q_chosen, kMaxScoreDim* G);
  TRIPHASE_SHARED(int, channel, kMaxScoreDim);
  TRIPHASE_SHARED(float, scratch, kBlockReduceWords);
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const int sequence = static_cast<int>(row / keys.kv_heads);
  const int head = static_cast<int>(row % keys.kv_heads);
  const int length = keys.lengths[sequence];
  const int token = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (static_cast<int>(blockIdx.y) * kThreads >= length) return;
  const int group = static_cast<int>(queries.heads / keys.kv_heads);
  const float* q = queries.q + sequence * queries.q_stride + head * group * keys.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < rank; i += kThreads) {
    channel[i] = channels[row * rank + i];
    for (int g = 0; g < G; ++g) {
      q_chosen[i * G + g] =
          g < group ? q[g * keys.head_dim + channel[i]] * factors[row * group + g] : 0.0F;
    }
  }
  __syncthreads();
  float logit[G] = {};
  if (token < length) {
    const bool partial = is_partial(keys, length, token);
    const auto add = [&](int i, float key) {
      TRIPHASE_UNROLL
      for (int g = 0; g < G; ++g) logit[g] = fma_rn(q_chosen[i * G + g], key, logit[g]);
    };
    if (sizeof(T) == 1 && partial) {
      TRIPHASE_NO_UNROLL
      for (int i = 0; i < rank; ++i) add(i, partial_value(keys, sequence, head, token, channel[i]));
    } else {
      const KeyPlace<T> place = place_of<T>(keys, sequence, head, token);
      Channels<T> from{place.row, 1};
      if (keys.channels.data != nullptr && !partial) {
        const std::int64_t entry = sequence * keys.max_pages + token / keys.page_tokens;
        from = channels_of<T>(keys, keys.pages[entry], head,
                              static_cast<int>(token % keys.page_tokens));
      }
      TRIPHASE_UNROLL_BY(4)
      for (int i = 0; i < rank; ++i) {
        const int c = channel[i];
        add(i, stored_value(from.first + c * from.stride, place.scales, c));
      }
    }
  }
  write_tile<G>(logit, 1.0F, token, length, group, row, out, scratch);
}

// A lane's part of a vector: four consecutive channels of every 128.
constexpr int kLaneParts = kMaxScoreDim / (4 * kWarpSize);

template <class T>
__device__ inline float4 load_four(const T* from) {
  if constexpr (sizeof(T) == 4) {
    const uint4 bits = load16(from);
    return {bits_float(bits.x), bits_float(bits.y), bits_float(bits.z), bits_float(bits.w)};
  } else if constexpr (sizeof(T) == 2) {
    const uint2 bits = load8(from);
    const float2 low = unpack2<T>(bits.x);
    const float2 high = unpack2<T>(bits.y);
    return {low.x, low.y, high.x, high.y};
  } else {
    const unsigned bits = load4(from);
    return {static_cast<float>(bits & 0xFFU), static_cast<float>(bits >> 8 & 0xFFU),
            static_cast<float>(bits >> 16 & 0xFFU), static_cast<float>(bits >> 24)};
  }
}

__device__ inline float dot_four(float4 a, float4 b, float sum) {
  return fma_rn(a.x, b.x, fma_rn(a.y, b.y, fma_rn(a.z, b.z, fma_rn(a.w, b.w, sum))));
}

__device__ inline float4 dequantize_four(float4 codes, const KvScale* scales) {
  return {dequantized(codes.x, scales[0]), dequantized(codes.y, scales[1]),
          dequantized(codes.z, scales[2]), dequantized(codes.w, scales[3])};
}

// The group's queries of this lane's channels, times the softmax scale.
template <int G>
__device__ inline void load_queries(const float* q, int group, int head_dim, float factor,
                                    float4 (&part)[G][kLaneParts]) {
  TRIPHASE_UNROLL
  for (int g = 0; g < G; ++g) {
    TRIPHASE_UNROLL
    for (int i = 0; i < kLaneParts; ++i) {
      const int c = (i * kWarpSize + lane_id()) * 4;
      part[g][i] = {0.0F, 0.0F, 0.0F, 0.0F};
      if (g < group && c < head_dim) {
        const float* from = q + g * head_dim + c;
        part[g][i] = {factor * from[0], factor * from[1], factor * from[2], factor * from[3]};
      }
    }
  }
}

// Logits of a tile's tokens into shared memory, a warp per token, then one token per thread.
template <int G, class Key>
__device__ inline void exact_tile(const float4 (&part)[G][kLaneParts], int first, int length,
                                  int group, int head_dim, float* tile, const Key& key) {
  for (int i = warp_id(); i < kThreads; i += kWarps) {
    const int token = first + i;
    float sums[G] = {};
    if (token < length) {
      TRIPHASE_UNROLL
      for (int p = 0; p < kLaneParts; ++p) {
        const int c = (p * kWarpSize + lane_id()) * 4;
        if (c >= head_dim) continue;
        const float4 values = key(token, c);
        TRIPHASE_UNROLL
        for (int g = 0; g < G; ++g) sums[g] = dot_four(part[g][p], values, sums[g]);
      }
    }
    for (int g = 0; g < group; ++g) {
      const float sum = warp_sum(sums[g]);
      if (lane_id() == 0) tile[i * G + g] = sum;
    }
  }
  __syncthreads();
}

template <class T, int G>
__global__ void __launch_bounds__(kThreads)
    score_exact_kernel(ScoreKeys keys, ScoreQueries queries, float factor, ScoreLogits out) {
  TRIPHASE_SHARED(float, tile, kThreads* G);
  TRIPHASE_SHARED(float, scratch, kBlockReduceWords);
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const int sequence = static_cast<int>(row / keys.kv_heads);
  const int head = static_cast<int>(row % keys.kv_heads);
  const int length = keys.lengths[sequence];
  const int first = static_cast<int>(blockIdx.y) * kThreads;
  if (first >= length) return;
  const int group = static_cast<int>(queries.heads / keys.kv_heads);
  const int head_dim = static_cast<int>(keys.head_dim);
  float4 part[G][kLaneParts];
  load_queries<G>(queries.q + sequence * queries.q_stride + head * group * keys.head_dim, group,
                  head_dim, factor, part);
  exact_tile<G>(part, first, length, group, head_dim, tile, [&](int token, int c) -> float4 {
    if constexpr (sizeof(T) == 1) {
      if (is_partial(keys, length, token)) {
        return {partial_value(keys, sequence, head, token, c),
                partial_value(keys, sequence, head, token, c + 1),
                partial_value(keys, sequence, head, token, c + 2),
                partial_value(keys, sequence, head, token, c + 3)};
      }
    }
    const KeyPlace<T> place = place_of<T>(keys, sequence, head, token);
    const float4 values = load_four(place.row + c);
    if constexpr (sizeof(T) == 1) {
      return dequantize_four(values, place.scales + c);
    } else {
      return values;
    }
  });
  float logit[G] = {};
  for (int g = 0; g < group; ++g) logit[g] = tile[threadIdx.x * G + g];
  write_tile<G>(logit, 1.0F, first + static_cast<int>(threadIdx.x), length, group, row, out,
                scratch);
}

template <int G>
__global__ void __launch_bounds__(kThreads)
    score_centroids_kernel(ScoreClusters clusters, ScoreQueries queries, float factor,
                           ScoreLogits out) {
  TRIPHASE_SHARED(float, tile, kThreads* G);
  TRIPHASE_SHARED(float, scratch, kBlockReduceWords);
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const std::int64_t sequence = row / clusters.kv_heads;
  const std::int64_t head = row % clusters.kv_heads;
  const int count = static_cast<int>(clusters.count);
  const int first = static_cast<int>(blockIdx.y) * kThreads;
  const int group = static_cast<int>(queries.heads / clusters.kv_heads);
  const int head_dim = static_cast<int>(clusters.head_dim);
  float4 part[G][kLaneParts];
  load_queries<G>(queries.q + sequence * queries.q_stride + head * group * head_dim, group,
                  head_dim, factor, part);
  const float* values = clusters.centroids + head * count * head_dim;
  exact_tile<G>(part, first, count, group, head_dim, tile, [&](int cluster, int c) -> float4 {
    return load_four(values + static_cast<std::int64_t>(cluster) * head_dim + c);
  });
  float logit[G] = {};
  for (int g = 0; g < group; ++g) logit[g] = tile[threadIdx.x * G + g];
  const int cluster = first + static_cast<int>(threadIdx.x);
  const float keys = cluster < count ? clusters.keys[head * count + cluster] : 0.0F;
  const bool dead =
      clusters.alive != nullptr && cluster < count && clusters.alive[row * count + cluster] == 0;
  write_tile<G>(logit, dead ? 0.0F : keys, cluster, count, group, row, out, scratch);
}

// Each block first merges the row's partials, in their order, then scores its own tile.
__global__ void __launch_bounds__(kThreads)
    group_scores_kernel(ScoreLogits logits, const std::int32_t* lengths,
                        std::int64_t rows_per_length, int group, GroupReduce reduce, float* scores,
                        float* totals) {
  TRIPHASE_SHARED(float, scratch, kBlockReduceWords);
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const int length = lengths[row / rows_per_length];
  const int thread = static_cast<int>(threadIdx.x);
  const int token = static_cast<int>(blockIdx.y) * kThreads + thread;
  if (static_cast<int>(blockIdx.y) * kThreads >= length && blockIdx.y > 0) return;
  const int tiles = static_cast<int>(ceil_div<std::int64_t>(length, kScoreTile));
  const std::int64_t tile_stride = ceil_div<std::int64_t>(logits.length_stride, kScoreTile);
  const float* partials = logits.partials + row * tile_stride * group * 2;
  float score = 0.0F;
  for (int g = 0; g < group; ++g) {
    float top = -INFINITY;
    for (int tile = thread; tile < tiles; tile += kThreads) {
      top = larger(top, partials[(tile * group + g) * 2]);
    }
    top = block_max(top, scratch);
    float sum = 0.0F;
    for (int tile = thread; tile < tiles; tile += kThreads) {
      const float* partial = partials + (tile * group + g) * 2;
      if (partial[1] > 0.0F) sum += partial[1] * exp2_fast(partial[0] - top);
    }
    sum = with_sink(logits.sinks, row * group + g, top, block_sum(sum, scratch));
    if (thread == 0 && blockIdx.y == 0) {
      totals[(row * group + g) * 2] = top;
      totals[(row * group + g) * 2 + 1] = sum;
    }
    if (token < length) {
      const float logit = logits.logits[(row * group + g) * logits.length_stride + token];
      const float weight = sum > 0.0F ? exp2_fast(logit - top) / sum : 0.0F;
      score += reduce == GroupReduce::kLogitSum ? logit : weight;
      if (reduce == GroupReduce::kNone) {
        scores[(row * group + g) * logits.length_stride + token] = weight;
      }
    }
  }
  if (token < length && reduce != GroupReduce::kNone) {
    if (reduce == GroupReduce::kProbabilityMean) score /= static_cast<float>(group);
    scores[row * logits.length_stride + token] = score;
  }
}

__global__ void __launch_bounds__(kThreads)
    selected_share_kernel(ScoreLogits logits, const float* totals, const std::int32_t* indices,
                          std::int64_t capacity, const std::int32_t* counts, int group,
                          float* alpha) {
  TRIPHASE_SHARED(float, scratch, kBlockReduceWords);
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const int count = counts[row];
  for (int g = 0; g < group; ++g) {
    const float top = totals[(row * group + g) * 2];
    const float* from = logits.logits + (row * group + g) * logits.length_stride;
    float share = 0.0F;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      share += exp2_fast(from[indices[row * capacity + i]] - top);
    }
    share = block_sum(share, scratch);
    if (threadIdx.x == 0) {
      const float sum = totals[(row * group + g) * 2 + 1];
      alpha[row * group + g] = sum > 0.0F ? share / sum : 0.0F;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    score_quest_kernel(QuestPages pages, ScoreQueries queries, int group, float* scores,
                       std::int64_t score_stride) {
  const auto row = static_cast<std::int64_t>(blockIdx.x);
  const int sequence = static_cast<int>(row / pages.kv_heads);
  const std::int64_t head = row % pages.kv_heads;
  const int page = static_cast<int>(blockIdx.y) * kWarps + warp_id();
  if (page >= ceil_div(pages.lengths[sequence], static_cast<int>(pages.tokens))) return;
  const int head_dim = static_cast<int>(pages.head_dim);
  const PageChoice& choice = pages.choices[sequence];
  const float* low = in_layer(choice.bounds, choice.layer_bytes, pages.layer) +
                     (page * pages.kv_heads + head) * 2 * head_dim;
  const float* q = queries.q + sequence * queries.q_stride + head * group * pages.head_dim;
  float best = -INFINITY;
  for (int g = 0; g < group; ++g) {
    float sum = 0.0F;
    for (int c = lane_id(); c < head_dim; c += kWarpSize) {
      const float value = q[g * head_dim + c];
      sum += larger(value * low[c], value * low[head_dim + c]);
    }
    best = larger(best, warp_sum(sum));
  }
  if (lane_id() == 0) scores[row * score_stride + page] = best;
}

std::string shape_of(const ScoreKeys& keys, const ScoreQueries& queries) {
  return shape_text({{"sequences", keys.sequences},
                     {"heads", queries.heads},
                     {"kv_heads", keys.kv_heads},
                     {"head_dim", keys.head_dim},
                     {"page_tokens", keys.page_tokens},
                     {"max_pages", keys.max_pages},
                     {"max_length", keys.max_length}}) +
         ", keys " + std::string(dtype_name(keys.dtype));
}

void check_keys(const ScoreKeys& keys, const ScoreQueries& queries, std::string_view kernel) {
  const LaunchCheck check(kernel, [&] { return shape_of(keys, queries); });
  check(keys.kv_heads > 0 && queries.heads > 0 && queries.heads % keys.kv_heads == 0,
        "heads must be a positive multiple of kv_heads");
  check(keys.head_dim > 0 && keys.head_dim <= kMaxScoreDim, "head_dim must be 1 to 256");
  check(keys.page_tokens > 0 && keys.max_pages * keys.page_tokens >= keys.max_length,
        "the page table is too short");
  check(keys.keys != nullptr && keys.pages != nullptr && keys.lengths != nullptr &&
            queries.q != nullptr,
        "null pointer");
  check(
      keys.dtype != DType::kInt8 || (keys.scales != nullptr && keys.scale_pages != nullptr &&
                                     keys.partial_keys != nullptr && keys.partial_pages != nullptr),
      "INT8 keys need scales, their pages and the partial pages");
}

void check_out(const ScoreLogits& out, std::int64_t max_length, std::string_view kernel) {
  require(out.logits != nullptr && out.partials != nullptr && out.length_stride >= max_length &&
              max_length <= kScoreTile * kMostGridY,
          kernel, "no workspace, or one for shorter rows", [&] {
            return shape_text({{"max_length", max_length}, {"length_stride", out.length_stride}});
          });
}

dim3 tile_grid(std::int64_t rows, std::int64_t max_length) {
  return {static_cast<unsigned>(rows),
          static_cast<unsigned>(
              larger<std::int64_t>(1, ceil_div<std::int64_t>(max_length, kScoreTile))),
          1};
}

}  // namespace

void choose_channels(const ScoreQueries& queries, std::int64_t sequences, std::int64_t kv_heads,
                     std::int64_t head_dim, std::int64_t rank, const SparqScale& scale,
                     std::int32_t* channels, float* factors, StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"sequences", sequences},
                       {"heads", queries.heads},
                       {"kv_heads", kv_heads},
                       {"head_dim", head_dim},
                       {"rank", rank}});
  };
  require(kv_heads > 0 && queries.heads % kv_heads == 0 && head_dim > 0 &&
              head_dim <= kMaxScoreDim && rank >= 1 && rank <= head_dim,
          "choose_channels", "whole groups, head_dim 1 to 256 and rank 1 to head_dim", shape);
  require(queries.heads / kv_heads <= kGpuMaxScoredGroup, "choose_channels",
          "1 to 8 query heads for each KV head", shape);
  require(queries.q != nullptr && channels != nullptr && factors != nullptr, "choose_channels",
          "null pointer", shape);
  if (sequences == 0) return;
  TRIPHASE_LAUNCH((choose_channels_kernel), static_cast<unsigned>(sequences * kv_heads),
                  kMaxScoreDim, 0, stream, queries, static_cast<int>(kv_heads),
                  static_cast<int>(head_dim), static_cast<int>(rank), scale, channels, factors);
  check_launched("choose_channels", shape);
}

void score_sparq(const ScoreKeys& keys, const ScoreQueries& queries, const std::int32_t* channels,
                 const float* factors, std::int64_t rank, const ScoreLogits& out,
                 StreamHandle stream) {
  check_keys(keys, queries, "score_sparq");
  check_out(out, keys.max_length, "score_sparq");
  const auto shape = [&] { return shape_of(keys, queries) + ", " + shape_text({{"rank", rank}}); };
  require(rank >= 1 && rank <= keys.head_dim && channels != nullptr && factors != nullptr,
          "score_sparq", "rank must be 1 to head_dim, with channels and factors", shape);
  const std::int64_t rows = keys.sequences * keys.kv_heads;
  if (rows == 0) return;
  for_cache_type(keys.dtype, "score_sparq", shape, [&]<class T>() {
    for_group(queries.heads / keys.kv_heads, "score_sparq", shape, [&]<int G>() {
      TRIPHASE_LAUNCH((score_sparq_kernel<T, G>), tile_grid(rows, keys.max_length), kThreads, 0,
                      stream, keys, queries, channels, factors, static_cast<int>(rank), out);
    });
  });
  check_launched("score_sparq", shape);
}

void score_exact(const ScoreKeys& keys, const ScoreQueries& queries, float scale,
                 const ScoreLogits& out, StreamHandle stream) {
  check_keys(keys, queries, "score_exact");
  check_out(out, keys.max_length, "score_exact");
  const auto shape = [&] { return shape_of(keys, queries); };
  require(keys.head_dim % 4 == 0, "score_exact", "head_dim must be a multiple of 4", shape);
  const std::int64_t rows = keys.sequences * keys.kv_heads;
  if (rows == 0) return;
  for_cache_type(keys.dtype, "score_exact", shape, [&]<class T>() {
    for_group(queries.heads / keys.kv_heads, "score_exact", shape, [&]<int G>() {
      TRIPHASE_LAUNCH((score_exact_kernel<T, G>), tile_grid(rows, keys.max_length), kThreads, 0,
                      stream, keys, queries, scale * kLog2E, out);
    });
  });
  check_launched("score_exact", shape);
}

void score_centroids(const ScoreClusters& clusters, const ScoreQueries& queries, float scale,
                     const ScoreLogits& out, StreamHandle stream) {
  check_out(out, clusters.count, "score_centroids");
  const auto shape = [&] {
    return shape_text({{"sequences", clusters.sequences},
                       {"heads", queries.heads},
                       {"kv_heads", clusters.kv_heads},
                       {"head_dim", clusters.head_dim},
                       {"count", clusters.count}});
  };
  require(clusters.kv_heads > 0 && queries.heads > 0 && queries.heads % clusters.kv_heads == 0 &&
              clusters.head_dim > 0 && clusters.head_dim % 4 == 0 &&
              clusters.head_dim <= kMaxScoreDim,
          "score_centroids", "whole groups, and head_dim a multiple of 4 up to 256", shape);
  require(clusters.centroids != nullptr && clusters.keys != nullptr && queries.q != nullptr,
          "score_centroids", "null pointer", shape);
  const std::int64_t rows = clusters.sequences * clusters.kv_heads;
  if (rows == 0 || clusters.count == 0) return;
  for_group(queries.heads / clusters.kv_heads, "score_centroids", shape, [&]<int G>() {
    TRIPHASE_LAUNCH((score_centroids_kernel<G>), tile_grid(rows, clusters.count), kThreads, 0,
                    stream, clusters, queries, scale * kLog2E, out);
  });
  check_launched("score_centroids", shape);
}

void group_scores(const ScoreLogits& logits, const std::int32_t* lengths,
                  std::int64_t rows_per_length, std::int64_t rows, std::int64_t group,
                  std::int64_t max_length, GroupReduce reduce, float* scores, float* totals,
                  StreamHandle stream) {
  check_out(logits, max_length, "group_scores");
  const auto shape = [&] {
    return shape_text({{"rows", rows},
                       {"group", group},
                       {"rows_per_length", rows_per_length},
                       {"max_length", max_length}});
  };
  require(lengths != nullptr && rows_per_length > 0 && group > 0 && scores != nullptr &&
              totals != nullptr,
          "group_scores", "null pointer, or a size that is not positive", shape);
  if (rows == 0) return;
  TRIPHASE_LAUNCH((group_scores_kernel), tile_grid(rows, max_length), kThreads, 0, stream, logits,
                  lengths, rows_per_length, static_cast<int>(group), reduce, scores, totals);
  check_launched("group_scores", shape);
}

void selected_share(const ScoreLogits& logits, const float* totals, const std::int32_t* indices,
                    std::int64_t capacity, const std::int32_t* counts, std::int64_t rows,
                    std::int64_t group, float* alpha, StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"rows", rows}, {"group", group}, {"capacity", capacity}});
  };
  require(logits.logits != nullptr && totals != nullptr && indices != nullptr &&
              counts != nullptr && alpha != nullptr && group > 0,
          "selected_share", "null pointer, or no query heads", shape);
  if (rows == 0) return;
  TRIPHASE_LAUNCH((selected_share_kernel), static_cast<unsigned>(rows), kThreads, 0, stream, logits,
                  totals, indices, capacity, counts, static_cast<int>(group), alpha);
  check_launched("selected_share", shape);
}

void score_quest(const QuestPages& pages, const ScoreQueries& queries, float* scores,
                 std::int64_t score_stride, StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"sequences", pages.sequences},
                       {"heads", queries.heads},
                       {"kv_heads", pages.kv_heads},
                       {"head_dim", pages.head_dim},
                       {"max_length", pages.max_length},
                       {"tokens", pages.tokens},
                       {"score_stride", score_stride}});
  };
  require(pages.tokens > 0 && pages.kv_heads > 0 && queries.heads > 0 &&
              queries.heads % pages.kv_heads == 0 &&
              score_stride >= ceil_div<std::int64_t>(pages.max_length, pages.tokens),
          "score_quest", "whole groups, and room for every page", shape);
  const std::int64_t rows = pages.sequences * pages.kv_heads;
  const std::int64_t most = ceil_div<std::int64_t>(pages.max_length, pages.tokens);
  if (rows == 0 || most == 0) return;
  require(pages.choices != nullptr && pages.lengths != nullptr && queries.q != nullptr &&
              scores != nullptr,
          "score_quest", "null pointer", shape);
  const dim3 grid{static_cast<unsigned>(rows),
                  static_cast<unsigned>(ceil_div<std::int64_t>(most, kWarps)), 1};
  TRIPHASE_LAUNCH((score_quest_kernel), grid, kThreads, 0, stream, pages, queries,
                  static_cast<int>(queries.heads / pages.kv_heads), scores, score_stride);
  check_launched("score_quest", shape);
}

}  // namespace triphase::cuda
