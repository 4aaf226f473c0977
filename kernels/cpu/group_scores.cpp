#include <algorithm>
#include <cmath>

#include "base/rounding.h"
#include "kernels/cpu/cpu_sparse_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/group_scores.cpp"
#include "hwy/foreach_target.h"
//
#include "kernels/cpu/attention_split-inl.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {
namespace {

// Calls body(key as F32 vector) for columns [c, c + count) of tokens [begin, end) of one KV head.
template <class Partial, class Body>
void for_keys(const Call& call, const Block& block, std::int64_t begin, std::int64_t end,
              std::int64_t c, std::int64_t count, const Body& body) {
  const KvLayerView& cache = call.cache;
  const AttentionSegment& keys = *block.segment;
  const std::int64_t own = (keys.context_tokens - 1) / cache.page_tokens;
  for (std::int64_t token = begin; token < end; ++token) {
    const std::int64_t index = token / cache.page_tokens;
    const std::int64_t offset = token % cache.page_tokens;
    const bool partial = cache.quantized() && index == own;
    const PageId page = partial ? keys.partial_page : keys.pages[static_cast<std::size_t>(index)];
    const std::int64_t at = row_offset(cache, block.kv_head, page.value, offset) + c;
    if (!cache.quantized() || partial) {
      body(load_some(static_cast<const Partial*>(partial ? cache.partial_k : cache.k) + at, count));
      continue;
    }
    const VU32 scales = load_scales(scales_of(call, block, index, 0) + c, count);
    const VF whole =
        hn::Sub(load_some(static_cast<const U8*>(cache.k) + at, count), zeros_of(scales));
    body(hn::Mul(lambdas_of(scales), whole));
  }
}

float page_score(const float* q, const float* bounds, std::int64_t dim) {
  VF sum = hn::Zero(DF());
  for_columns(dim, [&](std::int64_t c, std::int64_t count) {
    const VF in = load_some(q + c, count);
    sum = hn::Add(sum, hn::Max(hn::Mul(in, load_some(bounds + c, count)),
                               hn::Mul(in, load_some(bounds + dim + c, count))));
  });
  return sum_lanes(sum);
}

float dot(const float* a, const float* b, std::int64_t dim) {
  VF sum = hn::Zero(DF());
  for_columns(dim, [&](std::int64_t c, std::int64_t count) {
    sum = hn::MulAdd(load_some(a + c, count), load_some(b + c, count), sum);
  });
  return sum_lanes(sum);
}

}  // namespace

void bound_pages(ThreadPool& pool, const KvLayerView& cache, const AttentionSegment& keys,
                 const PageBounds& bounds, std::int64_t page_tokens) {
  const std::int64_t first_page = bounds.first_token / page_tokens;
  const std::int64_t pages = ceil_div(keys.context_tokens, page_tokens);
  const std::int64_t dim = cache.head_dim;
  Call call{};
  call.cache = cache;
  with_type(cache.quantized() ? cache.partial_dtype : cache.dtype, [&]<class T>() {
    pool.parallel_for((pages - first_page) * cache.kv_heads, [&](std::int64_t task, int) {
      const std::int64_t page = first_page + task / cache.kv_heads;
      Block block{};
      block.segment = &keys;
      block.kv_head = task % cache.kv_heads;
      const std::int64_t begin = page * page_tokens;
      const std::int64_t end = std::min(begin + page_tokens, keys.context_tokens);
      float* to = bounds.data + (page * cache.kv_heads + block.kv_head) * 2 * dim;
      for_columns(dim, [&](std::int64_t c, std::int64_t count) {
        VF low = hn::Set(DF(), -kMinusInfinity);
        VF high = hn::Set(DF(), kMinusInfinity);
        for_keys<T>(call, block, begin, end, c, count, [&](VF key) {
          low = hn::Min(low, key);
          high = hn::Max(high, key);
        });
        store_some(low, to + c, count);
        store_some(high, to + dim + c, count);
      });
    });
  });
}

void score_pages(ThreadPool& pool, ConstMatrix q, std::int64_t row, std::int64_t heads,
                 std::int64_t kv_heads, const float* bounds, std::int64_t pages, float* scores) {
  constexpr std::int64_t kStep = 64;
  const std::int64_t group = heads / kv_heads;
  const std::int64_t dim = q.cols / heads;
  const std::int64_t steps = ceil_div(pages, kStep);
  const float* queries = static_cast<const float*>(q.data) + row * q.row_stride;
  pool.parallel_for(kv_heads * steps, [&](std::int64_t task, int) {
    const std::int64_t kv_head = task / steps;
    const std::int64_t end = std::min(pages, (task % steps + 1) * kStep);
    for (std::int64_t page = task % steps * kStep; page < end; ++page) {
      const float* at = bounds + (page * kv_heads + kv_head) * 2 * dim;
      float best = kMinusInfinity;
      for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        best = std::max(best, page_score(queries + head * dim, at, dim));
      }
      scores[kv_head * pages + page] = best;
    }
  });
}

void score_centroids(ThreadPool& pool, ConstMatrix q, std::int64_t row, std::int64_t heads,
                     std::int64_t kv_heads, const Centroids& centroids, float scale,
                     float* scores) {
  const std::int64_t group = heads / kv_heads;
  const std::int64_t dim = q.cols / heads;
  const std::int64_t count = centroids.count;
  const float* queries = static_cast<const float*>(q.data) + row * q.row_stride;
  pool.parallel_for(kv_heads, [&](std::int64_t kv_head, int) {
    const float* means = centroids.means + kv_head * count * dim;
    const float* keys = centroids.keys + kv_head * count;
    const std::uint8_t* alive =
        centroids.alive == nullptr ? nullptr : centroids.alive + kv_head * count;
    float* to = scores + kv_head * count;
    const auto counts = [&](std::int64_t i) {
      return keys[i] > 0.0F && (alive == nullptr || alive[i] != 0);
    };
    std::fill_n(to, count, 0.0F);
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      // Two passes over the logits instead of a buffer for them: centroids stay in the cache.
      const float* query = queries + head * dim;
      float top = kMinusInfinity;
      for (std::int64_t i = 0; i < count; ++i) {
        if (counts(i)) top = std::max(top, scale * dot(query, means + i * dim, dim));
      }
      double total = 0;
      for (std::int64_t i = 0; i < count; ++i) {
        if (!counts(i)) continue;
        total +=
            static_cast<double>(keys[i]) * std::exp(scale * dot(query, means + i * dim, dim) - top);
      }
      for (std::int64_t i = 0; i < count; ++i) {
        if (!counts(i)) continue;
        const float weight = std::exp(scale * dot(query, means + i * dim, dim) - top);
        to[i] += weight / static_cast<float>(total) / static_cast<float>(group);
      }
    }
  });
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace triphase::cpu {
namespace {
HWY_EXPORT(bound_pages);
HWY_EXPORT(score_pages);
HWY_EXPORT(score_centroids);
}  // namespace

void bound_pages(ThreadPool& pool, const KvLayerView& cache, const AttentionSegment& keys,
                 const PageBounds& bounds, std::int64_t page_tokens) {
  HWY_DYNAMIC_DISPATCH(bound_pages)(pool, cache, keys, bounds, page_tokens);
}

void score_pages(ThreadPool& pool, ConstMatrix q, std::int64_t row, std::int64_t heads,
                 std::int64_t kv_heads, const float* bounds, std::int64_t pages, float* scores) {
  HWY_DYNAMIC_DISPATCH(score_pages)
  (pool, q, row, heads, kv_heads, bounds, pages, scores);
}

void score_centroids(ThreadPool& pool, ConstMatrix q, std::int64_t row, std::int64_t heads,
                     std::int64_t kv_heads, const Centroids& centroids, float scale,
                     float* scores) {
  HWY_DYNAMIC_DISPATCH(score_centroids)
  (pool, q, row, heads, kv_heads, centroids, scale, scores);
}

}  // namespace triphase::cpu
#endif
