#pragma once

// A KV cache for kernel tests: random tokens of ragged sequences in pages dealt out in a shuffled
// order, everything unused poisoned with NaN, and beside it the stored values in float64.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "kernels/cuda/kv_cache.h"

namespace triphase::cuda {

// A scale for the channel of a block, a little wider than kernels/ops.h asks for.
struct ChannelScale {
  float lambda;
  float zero;

  static ChannelScale of(float low, float high) {
    const float most = std::max(std::abs(low), std::abs(high));
    const float lambda = kv_lambda(
        kv_scale(std::max({1.01F * (high - low) / 255.0F, most * 0x1p-13F, 1e-20F}), 0.0F).bits);
    return {lambda, std::nearbyint(-low / lambda)};
  }
  [[nodiscard]] std::uint8_t code(float x) const {
    const float code = std::nearbyint(x / lambda) + zero;
    return static_cast<std::uint8_t>(std::clamp(code, 0.0F, 255.0F));
  }
};

inline std::uint16_t to_bits16(float value, DType dtype) {
  return dtype == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
}
inline float from_bits16(std::uint16_t bits, DType dtype) {
  return dtype == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

struct KvFixtureShape {
  std::vector<int> lengths;
  int kv_heads = 1;
  int head_dim = 128;
  int page_tokens = 128;
  DType dtype = DType::kF16;
  DType partial_dtype = DType::kF16;
  unsigned value_seed = 1;
  unsigned page_seed = 1;
};

class KvFixture {
 public:
  explicit KvFixture(KvFixtureShape shape) : shape_(std::move(shape)) {
    make_values();
    make_pages();
    store();
  }

  [[nodiscard]] KvCache cache() {
    KvCache cache;
    cache.k = k_.data();
    cache.v = v_.data();
    cache.dtype = shape_.dtype;
    cache.page_tokens = shape_.page_tokens;
    cache.kv_heads = shape_.kv_heads;
    cache.head_dim = shape_.head_dim;
    if (quantized()) {
      cache.scales = scales_.data();
      cache.partial_k = partial_k_.data();
      cache.partial_v = partial_v_.data();
      cache.partial_dtype = shape_.partial_dtype;
    }
    return cache;
  }
  [[nodiscard]] KvPageTables tables() const {
    return {pages_.data(), scale_pages_.data(), partial_pages_.data(), max_pages_};
  }
  [[nodiscard]] const std::int32_t* lengths() const { return lengths_.data(); }
  [[nodiscard]] int sequences() const { return static_cast<int>(shape_.lengths.size()); }
  [[nodiscard]] const KvFixtureShape& shape() const { return shape_; }
  [[nodiscard]] bool quantized() const { return shape_.dtype == DType::kInt8; }

  // The stored value (kv: 0 for K, 1 for V), as whoever reads the cache must see it.
  [[nodiscard]] double value(int kv, int sequence, int token, int head, int channel) const {
    return values_[static_cast<std::size_t>(sequence)][index(kv, token, head, channel)];
  }
  [[nodiscard]] int slot(int sequence, int token) const {
    const auto s = static_cast<std::size_t>(sequence);
    const int offset = token % shape_.page_tokens;
    const int page = quantized() && in_partial_block(sequence, token)
                         ? partial_pages_[s]
                         : pages_[s * static_cast<std::size_t>(max_pages_) +
                                  static_cast<std::size_t>(token / shape_.page_tokens)];
    return page * shape_.page_tokens + offset;
  }
  // Whoever looks the page up finds none.
  void lose_page(int sequence, int block) {
    const auto at = static_cast<std::size_t>(sequence * max_pages_ + block);
    pages_[at] = scale_pages_[at] = -1;
  }
  [[nodiscard]] bool in_partial_block(int sequence, int token) const {
    return quantized() && token >= (shape_.lengths[static_cast<std::size_t>(sequence)] - 1) /
                                       shape_.page_tokens * shape_.page_tokens;
  }

 private:
  [[nodiscard]] std::size_t index(int kv, int token, int head, int channel) const {
    return static_cast<std::size_t>(((token * 2 + kv) * shape_.kv_heads + head) * shape_.head_dim +
                                    channel);
  }

  void make_values() {
    std::mt19937 random(shape_.value_seed);
    std::normal_distribution<float> normal;
    const DType stored = quantized() ? shape_.partial_dtype : shape_.dtype;
    for (const int length : shape_.lengths) {
      std::vector<double> values(
          static_cast<std::size_t>(length * 2 * shape_.kv_heads * shape_.head_dim));
      // Channels have their own offset and width, as keys do; some are constant.
      for (int kv = 0; kv < 2; ++kv) {
        for (int head = 0; head < shape_.kv_heads; ++head) {
          for (int c = 0; c < shape_.head_dim; ++c) {
            const float offset = c % 7 == 3 ? 5.0F * normal(random) : 0.0F;
            const float width = c % 11 == 10 ? 0.0F : 0.2F + 0.1F * static_cast<float>(c % 5);
            for (int token = 0; token < length; ++token) {
              const float x = offset + width * normal(random);
              values[index(kv, token, head, c)] = from_bits16(to_bits16(x, stored), stored);
            }
          }
        }
      }
      values_.push_back(std::move(values));
      lengths_.push_back(length);
    }
  }

  void make_pages() {
    int blocks = 0;
    for (const int length : shape_.lengths) {
      max_pages_ = std::max(max_pages_, (length + shape_.page_tokens - 1) / shape_.page_tokens);
      blocks += (length + shape_.page_tokens - 1) / shape_.page_tokens;
    }
    max_pages_ = std::max(max_pages_, 1);
    const int pool = blocks + 2;
    std::vector<int> free_pages(static_cast<std::size_t>(pool));
    for (int i = 0; i < pool; ++i) free_pages[static_cast<std::size_t>(i)] = i;
    std::vector<int> free_scales = free_pages;
    std::vector<int> free_partial(shape_.lengths.size() + 1);
    for (std::size_t i = 0; i < free_partial.size(); ++i) free_partial[i] = static_cast<int>(i);
    std::mt19937 random(shape_.page_seed);
    std::shuffle(free_pages.begin(), free_pages.end(), random);
    std::shuffle(free_scales.begin(), free_scales.end(), random);
    std::shuffle(free_partial.begin(), free_partial.end(), random);

    const auto table = static_cast<std::size_t>(max_pages_) * shape_.lengths.size();
    pages_.assign(table, -1);
    scale_pages_.assign(table, -1);
    for (std::size_t s = 0; s < shape_.lengths.size(); ++s) {
      const int length = shape_.lengths[s];
      partial_pages_.push_back(free_partial[s]);
      const int count = (length + shape_.page_tokens - 1) / shape_.page_tokens;
      for (int block = 0; block < count; ++block) {
        if (quantized() && block + 1 == count) continue;  // the partial block
        pages_[s * static_cast<std::size_t>(max_pages_) + static_cast<std::size_t>(block)] =
            free_pages.back();
        free_pages.pop_back();
        if (quantized()) {
          scale_pages_[s * static_cast<std::size_t>(max_pages_) + static_cast<std::size_t>(block)] =
              free_scales.back();
          free_scales.pop_back();
        }
      }
    }
    const std::size_t line =
        static_cast<std::size_t>(shape_.kv_heads * shape_.head_dim) * dtype_bytes(shape_.dtype);
    // 0xFF: NaN in every float type; a wrong code in INT8.
    k_.assign(static_cast<std::size_t>(pool * shape_.page_tokens) * line, 0xFF);
    v_ = k_;
    if (quantized()) {
      scales_.assign(static_cast<std::size_t>(pool * 2 * shape_.kv_heads * shape_.head_dim),
                     {kNoKvScale});
      partial_k_.assign(
          free_partial.size() * static_cast<std::size_t>(shape_.page_tokens) * line * 2, 0xFF);
      partial_v_ = partial_k_;
    }
  }

  // Where (slot, head) lies in a pool, in elements.
  [[nodiscard]] std::size_t pool_at(int slot, int head) const {
    const int page = slot / shape_.page_tokens;
    const int offset = slot % shape_.page_tokens;
    return (static_cast<std::size_t>(page * shape_.kv_heads + head) *
                static_cast<std::size_t>(shape_.page_tokens) +
            static_cast<std::size_t>(offset)) *
           static_cast<std::size_t>(shape_.head_dim);
  }

  void put(std::vector<unsigned char>& pool, std::size_t at, double value, DType dtype) const {
    const std::uint16_t bits = to_bits16(static_cast<float>(value), dtype);
    std::memcpy(pool.data() + 2 * at, &bits, 2);
  }

  void store() {
    for (int s = 0; s < sequences(); ++s) {
      const int length = shape_.lengths[static_cast<std::size_t>(s)];
      for (int block = 0; block * shape_.page_tokens < length; ++block) {
        const int begin = block * shape_.page_tokens;
        const int end = std::min(length, begin + shape_.page_tokens);
        for (int kv = 0; kv < 2; ++kv) {
          for (int head = 0; head < shape_.kv_heads; ++head) {
            for (int c = 0; c < shape_.head_dim; ++c) store_channel(s, begin, end, kv, head, c);
          }
        }
      }
    }
  }

  void store_channel(int s, int begin, int end, int kv, int head, int c) {
    auto& values = values_[static_cast<std::size_t>(s)];
    const bool partial = in_partial_block(s, begin);
    ChannelScale scale{};
    float low = INFINITY;
    float high = -INFINITY;
    if (quantized() && !partial) {
      for (int t = begin; t < end; ++t) {
        low = std::min(low, static_cast<float>(values[index(kv, t, head, c)]));
        high = std::max(high, static_cast<float>(values[index(kv, t, head, c)]));
      }
      scale = ChannelScale::of(low, high);
      const int scale_page =
          scale_pages_[static_cast<std::size_t>(s * max_pages_ + begin / shape_.page_tokens)];
      const auto at = static_cast<std::size_t>(
          ((scale_page * 2 + kv) * shape_.kv_heads + head) * shape_.head_dim + c);
      scales_[at] = kv_scale(scale.lambda, scale.zero);
    }
    for (int t = begin; t < end; ++t) {
      double& value = values[index(kv, t, head, c)];
      const std::size_t at = pool_at(slot(s, t), head) + static_cast<std::size_t>(c);
      if (partial) {
        put(kv == 0 ? partial_k_ : partial_v_, at, value, shape_.partial_dtype);
        continue;
      }
      auto& pool = kv == 0 ? k_ : v_;
      if (quantized()) {
        const std::uint8_t code = scale.code(static_cast<float>(value));
        pool[at] = code;
        value = static_cast<double>(scale.lambda) *
                (static_cast<double>(code) - static_cast<double>(scale.zero));
      } else {
        put(pool, at, value, shape_.dtype);
      }
    }
  }

  KvFixtureShape shape_;
  std::vector<std::vector<double>> values_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int32_t> pages_, scale_pages_, partial_pages_;
  std::vector<unsigned char> k_, v_, partial_k_, partial_v_;
  std::vector<KvScale> scales_;
  int max_pages_ = 0;
};

}  // namespace triphase::cuda
