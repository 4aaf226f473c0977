#pragma once

// What the emulated kernel tests share: arrays that are poisoned before use, and small paged caches
// with float64 access.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/kv_cache.h"
#include "tests/emulated/emulator.h"
#include "tests/support/test_matrix.h"

namespace triphase::cuda {

// Whether the device has warpgroup products: the emulated one, and of GPUs Hopper's.
#ifdef TRIPHASE_GPU_TESTS
bool has_warpgroups();
#else
inline bool has_warpgroups() { return true; }
#endif

inline std::vector<float> poisoned(std::int64_t count) {
  return std::vector<float>(static_cast<std::size_t>(count),
                            std::numeric_limits<float>::quiet_NaN());
}

inline std::uint16_t to_bits16(float value, DType dtype) {
  return dtype == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
}

inline std::vector<float> random_floats(std::mt19937& random, std::int64_t count,
                                        float scale = 1.0F) {
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// Random K and V of some sequences over shuffled pages, everything unused poisoned. With kInt8 the
// codes have scales, in pages of their own, and the last block of each sequence lies in a partial
// page of F16 or BF16. Neither pages nor later sequences change a sequence's values.
struct PagedCache {
  PagedCache(std::mt19937& random, DType cache_dtype, std::vector<std::int32_t> token_counts,
             std::int64_t tokens_per_page, std::int64_t kv_head_count, std::int64_t dim,
             bool with_channels = false, DType partial_dtype = DType::kF16, unsigned page_seed = 1)
      : dtype(cache_dtype),
        lengths(std::move(token_counts)),
        page_tokens(tokens_per_page),
        kv_heads(kv_head_count),
        head_dim(dim) {
    for (const std::int32_t length : lengths) {
      max_pages = std::max<std::int64_t>(max_pages, (length + page_tokens - 1) / page_tokens);
      max_length = std::max<std::int64_t>(max_length, length);
    }
    const auto sequences = static_cast<std::int64_t>(lengths.size());
    const std::int64_t page_count = sequences * max_pages + 1;
    const std::int64_t elements = page_count * page_elements();
    if (dtype == DType::kInt8) {
      codes_k.assign(static_cast<std::size_t>(elements), 255);
      codes_v = codes_k;
      scales.assign(static_cast<std::size_t>(page_count * 2 * kv_heads * head_dim), {kNoKvScale});
      partial_k.emplace_back(partial_dtype, sequences * page_elements());
      partial_v.emplace_back(partial_dtype, sequences * page_elements());
    } else {
      k.emplace_back(dtype, elements);
      v.emplace_back(dtype, elements);
      if (with_channels) channels.emplace_back(dtype, elements);
    }
    pages.assign(static_cast<std::size_t>(sequences * max_pages), -1);
    scale_pages = pages;
    std::mt19937 page_random(page_seed);
    const auto shuffled = [&](std::int64_t count) {
      std::vector<std::int32_t> all(static_cast<std::size_t>(count));
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), page_random);
      return all;
    };
    const std::vector<std::int32_t> order = shuffled(page_count);
    const std::vector<std::int32_t> scale_order = shuffled(page_count);
    partial_pages = shuffled(sequences);
    for (std::int64_t b = 0; b < sequences; ++b) {
      const std::int64_t length = lengths[static_cast<std::size_t>(b)];
      const std::int64_t tokens = dtype == DType::kInt8 ? own_block(b) : length;
      for (std::int64_t p = 0; p * page_tokens < tokens; ++p) {
        const auto at = static_cast<std::size_t>(b * max_pages + p);
        pages[at] = order[at];
        scale_pages[at] = scale_order[at];
      }
      fill(random, b);
    }
  }

  [[nodiscard]] std::int64_t page_elements() const { return page_tokens * kv_heads * head_dim; }
  // First token of the block that holds the last token.
  [[nodiscard]] std::int64_t own_block(std::int64_t b) const {
    return (lengths[static_cast<std::size_t>(b)] - 1) / page_tokens * page_tokens;
  }
  [[nodiscard]] std::int64_t place(std::int64_t page, std::int64_t head, std::int64_t token,
                                   std::int64_t c) const {
    return ((page * kv_heads + head) * page_tokens + token % page_tokens) * head_dim + c;
  }
  [[nodiscard]] double value(bool of_v, std::int64_t b, std::int64_t head, std::int64_t token,
                             std::int64_t c) const {
    const std::int64_t page = pages[static_cast<std::size_t>(b * max_pages + token / page_tokens)];
    if (dtype != DType::kInt8) return (of_v ? v : k)[0].at(place(page, head, token, c));
    if (token >= own_block(b)) {
      return (of_v ? partial_v : partial_k)[0].at(
          place(partial_pages[static_cast<std::size_t>(b)], head, token, c));
    }
    const std::size_t scale = scale_place(b, of_v, head, token, c);
    const double code =
        (of_v ? codes_v : codes_k)[static_cast<std::size_t>(place(page, head, token, c))];
    return static_cast<double>(kv_lambda(scales[scale].bits)) *
           (code - static_cast<double>(kv_zero(scales[scale].bits)));
  }
  // Where kernels find a token: its page and its place there.
  [[nodiscard]] std::int32_t slot(std::int64_t b, std::int64_t token) const {
    const bool partial = dtype == DType::kInt8 && token >= own_block(b);
    const std::int64_t page =
        partial ? partial_pages[static_cast<std::size_t>(b)]
                : pages[static_cast<std::size_t>(b * max_pages + token / page_tokens)];
    return static_cast<std::int32_t>(page * page_tokens + token % page_tokens);
  }
  // Whoever looks the page up finds none.
  void lose_page(std::int64_t b, std::int64_t block) {
    const auto at = static_cast<std::size_t>(b * max_pages + block);
    pages[at] = scale_pages[at] = -1;
  }
  [[nodiscard]] KvCache view() const {
    KvCache cache{.k = const_cast<void*>(k_data()),
                  .v = const_cast<void*>(v_data()),
                  .dtype = dtype,
                  .page_tokens = static_cast<int>(page_tokens),
                  .kv_heads = static_cast<int>(kv_heads),
                  .head_dim = static_cast<int>(head_dim)};
    if (dtype == DType::kInt8) {
      cache.scales = const_cast<KvScale*>(scales.data());
      cache.partial_k = const_cast<void*>(partial_k[0].data());
      cache.partial_v = const_cast<void*>(partial_v[0].data());
      cache.partial_dtype = partial_k[0].dtype();
    }
    return cache;
  }
  [[nodiscard]] const void* k_data() const {
    return dtype == DType::kInt8 ? static_cast<const void*>(codes_k.data()) : k[0].data();
  }
  [[nodiscard]] const void* v_data() const {
    return dtype == DType::kInt8 ? static_cast<const void*>(codes_v.data()) : v[0].data();
  }

  DType dtype;
  std::vector<std::int32_t> lengths;
  std::int64_t page_tokens, kv_heads, head_dim;
  std::int64_t max_pages = 1;
  std::int64_t max_length = 0;
  std::vector<std::int32_t> pages, scale_pages, partial_pages;
  std::vector<Elements> k, v, channels, partial_k, partial_v;
  std::vector<std::uint8_t> codes_k, codes_v;
  std::vector<KvScale> scales;

 private:
  [[nodiscard]] std::size_t scale_place(std::int64_t b, bool of_v, std::int64_t head,
                                        std::int64_t token, std::int64_t c) const {
    const std::int64_t page =
        scale_pages[static_cast<std::size_t>(b * max_pages + token / page_tokens)];
    return static_cast<std::size_t>(((page * 2 + (of_v ? 1 : 0)) * kv_heads + head) * head_dim + c);
  }
  void fill(std::mt19937& random, std::int64_t b) {
    std::normal_distribution<float> normal(0.1F, 1.0F);
    for (std::int64_t token = 0; token < lengths[static_cast<std::size_t>(b)]; ++token) {
      const std::int64_t page =
          pages[static_cast<std::size_t>(b * max_pages + token / page_tokens)];
      for (std::int64_t head = 0; head < kv_heads; ++head) {
        for (std::int64_t c = 0; c < head_dim; ++c) {
          const std::int64_t at = place(page, head, token, c);
          if (dtype != DType::kInt8) {
            const float key = normal(random);
            k[0].set(at, key);
            v[0].set(at, normal(random));
            if (!channels.empty() && token < own_block(b)) {
              channels[0].set(
                  ((page * kv_heads + head) * head_dim + c) * page_tokens + token % page_tokens,
                  key);
            }
          } else if (token >= own_block(b)) {
            const std::int64_t partial =
                place(partial_pages[static_cast<std::size_t>(b)], head, token, c);
            partial_k[0].set(partial, normal(random));
            partial_v[0].set(partial, normal(random));
          } else {
            codes_k[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(random());
            codes_v[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(random());
            for (const bool of_v : {false, true}) {
              scales[scale_place(b, of_v, head, token, c)] =
                  kv_scale(0.01F + 0.0001F * static_cast<float>(c),
                           static_cast<float>(c % 7 == 0 ? -300 : 120 + c % 5));
            }
          }
        }
      }
    }
  }
};

// One query head's attention to tokens of a PagedCache, in float64.
struct ExactAttention {
  std::vector<double> scores;            // of the tokens
  double top = -INFINITY;                // the largest score, or a sink
  double log_sum = -INFINITY;            // of exp(score), a sink among them
  std::vector<double> value, magnitude;  // by channel; sums of weight * v and of |weight * v|
};
inline ExactAttention exact_attention(const PagedCache& cache, std::int64_t b, std::int64_t kv_head,
                                      const std::vector<std::int32_t>& tokens, const float* q,
                                      float scale, float cap, const float* sink = nullptr) {
  ExactAttention result;
  if (sink != nullptr) result.top = *sink;
  for (const std::int32_t token : tokens) {
    double dot = 0.0;
    for (std::int64_t c = 0; c < cache.head_dim; ++c) {
      dot += q[c] * cache.value(false, b, kv_head, token, c);
    }
    const double score = scale * dot;
    result.scores.push_back(cap > 0.0F ? cap * std::tanh(score / cap) : score);
    result.top = std::max(result.top, result.scores.back());
  }
  double sum = sink != nullptr ? std::exp(*sink - result.top) : 0.0;
  for (const double score : result.scores) sum += std::exp(score - result.top);
  if (sum > 0.0) result.log_sum = result.top + std::log(sum);
  result.value.assign(static_cast<std::size_t>(cache.head_dim), 0.0);
  result.magnitude = result.value;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const double weight = std::exp(result.scores[i] - result.top) / sum;
    for (std::size_t c = 0; c < result.value.size(); ++c) {
      const double term =
          weight * cache.value(true, b, kv_head, tokens[i], static_cast<std::int64_t>(c));
      result.value[c] += term;
      result.magnitude[c] += std::abs(term);
    }
  }
  return result;
}

}  // namespace triphase::cuda
