#pragma once

// A KV cache in a device's memory, filled through an Ops: what the seams' tests attend and score.

#include <memory>
#include <random>
#include <vector>

#include "kernels/ops.h"
#include "tests/emulated/emulated_test.h"
#include "tests/emulated/guarded_memory.h"

namespace triphase::cuda {

using Numbers = DeviceArray<float>;

inline Matrix matrix(const Numbers& values, std::int64_t rows, std::int64_t cols) {
  return {values.data(), DType::kF32, rows, cols, cols};
}

// Sequences whose K and V were written by an Ops, and full blocks quantized where the cache is
// INT8; everything unused is NaN.
class FilledCache {
 public:
  static constexpr std::int64_t kPageTokens = 32;
  static constexpr std::int64_t kMaxPages = 5;
  static constexpr std::int64_t kKvHeads = 2;
  static constexpr std::int64_t kDim = 16;

  FilledCache(Ops& ops, Device& device, DType dtype, std::vector<std::int32_t> lengths,
              std::uint32_t seed)
      : dtype_(dtype),
        lengths_(std::move(lengths)),
        pool_pages_(static_cast<std::int64_t>(lengths_.size()) * kMaxPages),
        k_(device, elements() * element_bytes()),
        v_(device, elements() * element_bytes()),
        partial_k_(device, quantized() ? 2 * elements() : 1),
        partial_v_(device, quantized() ? 2 * elements() : 1),
        scales_(device, quantized() ? pool_pages_ * 2 * kKvHeads * kDim : 1) {
    const std::unique_ptr<Stream> stream = device.make_stream();
    std::mt19937 random(seed);
    for (std::size_t b = 0; b < lengths_.size(); ++b) {
      pages_.emplace_back();
      for (std::int64_t i = 0; i < kMaxPages; ++i) {
        pages_.back().push_back(
            PageId(pool_pages_ - 1 - static_cast<std::int64_t>(b) * kMaxPages - i));
      }
      const std::int64_t count = lengths_[b];
      const DeviceArray<float> key(device, random_floats(random, count * kKvHeads * kDim));
      const DeviceArray<float> value(device, random_floats(random, count * kKvHeads * kDim));
      std::vector<PageId> at;
      std::vector<std::int32_t> offsets;
      for (std::int64_t t = 0; t < count; ++t) {
        at.push_back(pages_.back()[static_cast<std::size_t>(t / kPageTokens)]);
        offsets.push_back(static_cast<std::int32_t>(t % kPageTokens));
      }
      const std::int64_t columns = kKvHeads * kDim;
      ops.kv_append({key.data(), DType::kF32, count, columns, columns},
                    {value.data(), DType::kF32, count, columns, columns}, {at, offsets}, view(),
                    *stream);
      std::vector<FullBlock> full;
      for (std::int64_t i = 0; quantized() && (i + 1) * kPageTokens < count; ++i) {
        const PageId page = pages_.back()[static_cast<std::size_t>(i)];
        full.push_back({page, page, page});  // the same number in each pool
      }
      if (quantized()) ops.quantize_blocks({full}, view(), *stream);
      stream->synchronize();
    }
  }

  [[nodiscard]] KvLayerView view() const {
    KvLayerView cache{k_.data(), v_.data(), dtype_, kPageTokens, kKvHeads, kDim};
    if (quantized()) {
      cache.scales = scales_.data();
      cache.partial_k = partial_k_.data();
      cache.partial_v = partial_v_.data();
      cache.partial_dtype = DType::kF16;
    }
    return cache;
  }
  // Queries that end at token `context` (0: the sequence's last).
  [[nodiscard]] AttentionSegment segment(std::size_t b, std::int64_t first_row,
                                         std::int64_t queries, std::int64_t context = 0) const {
    AttentionSegment segment;
    segment.query_begin = first_row;
    segment.query_count = queries;
    segment.context_tokens = context > 0 ? context : lengths_[b];
    segment.pages = pages_[b];
    if (quantized()) {
      segment.scale_pages = pages_[b];
      segment.partial_page =
          pages_[b][static_cast<std::size_t>((segment.context_tokens - 1) / kPageTokens)];
    }
    return segment;
  }
  [[nodiscard]] bool quantized() const { return dtype_ == DType::kInt8; }
  [[nodiscard]] std::int64_t length(std::size_t b) const { return lengths_[b]; }
  [[nodiscard]] PageId page(std::size_t b, std::int64_t i) const {
    return pages_[b][static_cast<std::size_t>(i)];
  }
  [[nodiscard]] const DeviceArray<std::byte>& k() const { return k_; }
  [[nodiscard]] const DeviceArray<std::byte>& v() const { return v_; }
  [[nodiscard]] const DeviceArray<std::byte>& partial_k() const { return partial_k_; }
  [[nodiscard]] const DeviceArray<std::byte>& partial_v() const { return partial_v_; }
  [[nodiscard]] const DeviceArray<KvScale>& scales() const { return scales_; }

 private:
  [[nodiscard]] std::int64_t elements() const {
    return pool_pages_ * kPageTokens * kKvHeads * kDim;
  }
  [[nodiscard]] std::int64_t element_bytes() const {
    return static_cast<std::int64_t>(dtype_bytes(dtype_));
  }

  DType dtype_;
  std::vector<std::int32_t> lengths_;
  std::int64_t pool_pages_;
  DeviceArray<std::byte> k_, v_, partial_k_, partial_v_;
  DeviceArray<KvScale> scales_;
  std::vector<std::vector<PageId>> pages_;
};

// A cache's bytes on the host, for float64 oracles.
class HostCopy {
 public:
  explicit HostCopy(const FilledCache& cache)
      : view_(cache.view()),
        k_(cache.k().host()),
        v_(cache.v().host()),
        partial_k_(cache.partial_k().host()),
        partial_v_(cache.partial_v().host()),
        scales_(cache.scales().host()) {
    view_.k = k_.data();
    view_.v = v_.data();
    if (!view_.quantized()) return;
    view_.scales = scales_.data();
    view_.partial_k = partial_k_.data();
    view_.partial_v = partial_v_.data();
  }
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;
  [[nodiscard]] const KvLayerView& view() const { return view_; }

 private:
  KvLayerView view_;
  std::vector<std::byte> k_, v_, partial_k_, partial_v_;
  std::vector<KvScale> scales_;
};

}  // namespace triphase::cuda
