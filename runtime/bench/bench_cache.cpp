#include "runtime/bench/bench_cache.h"

#include <algorithm>

namespace triphase::bench {
namespace {

std::int64_t page_scales(const BenchCacheShape& shape) {
  return shape.quantized() ? 2 * shape.kv_heads * shape.head_dim : 0;
}

}  // namespace

std::int64_t BenchCacheShape::layer_bytes() const {
  const auto element = static_cast<std::int64_t>(dtype_bytes(dtype));
  constexpr std::int64_t kScaleBytes{sizeof(KvScale)};
  return pages * (2 * page_elements() * element + kScaleBytes * page_scales(*this));
}

BenchCache::BenchCache(BenchMemory& memory, const BenchCacheShape& shape) : shape_(shape) {
  const std::int64_t elements = shape.layers * shape.pages * shape.page_elements();
  k_ = memory.random(elements, shape.dtype, 1);
  v_ = memory.random(elements, shape.dtype, 2);
  if (!shape.quantized()) return;
  // Values in about [-1, 1], as the others are.
  std::vector<KvScale> scales;
  const std::int64_t heads = shape.layers * shape.pages * 2 * shape.kv_heads;
  scales.reserve(static_cast<std::size_t>(heads * shape.head_dim));
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t c = 0; c < shape.head_dim; ++c) {
      const auto step = static_cast<float>((head + c) % 10);
      scales.push_back(kv_scale(0.007F + 0.0001F * step, 123.0F + step));
    }
  }
  scales_ = memory.bytes(scales.size() * sizeof(KvScale));
  memory.copy(scales_.data(), scales.data(), scales.size() * sizeof(KvScale));
  partial_k_ = memory.random(shape.partial_pages * shape.page_elements(), DType::kF16, 6);
  partial_v_ = memory.random(shape.partial_pages * shape.page_elements(), DType::kF16, 7);
}

KvLayerView BenchCache::layer(std::int64_t index) const {
  const auto offset = static_cast<std::size_t>(index * shape_.pages * shape_.page_elements()) *
                      dtype_bytes(shape_.dtype);
  KvLayerView view{k_.data() + offset, v_.data() + offset, shape_.dtype,
                   shape_.page_tokens, shape_.kv_heads,    shape_.head_dim};
  if (!shape_.quantized()) return view;
  view.scales = scales_.as<KvScale>() + index * shape_.pages * page_scales(shape_);
  view.partial_k = partial_k_.data();
  view.partial_v = partial_v_.data();
  view.partial_dtype = DType::kF16;
  return view;
}

KvLayerView BenchCache::on_host(BenchMemory& memory) {
  const Buffer* const buffers[] = {&k_, &v_, &scales_, &partial_k_, &partial_v_};
  for (std::size_t i = 0; i < std::size(buffers); ++i) {
    host_[i].resize(buffers[i]->bytes());
    if (!host_[i].empty()) memory.copy(host_[i].data(), buffers[i]->data(), host_[i].size());
  }
  KvLayerView view = layer(0);
  view.k = host_[0].data();
  view.v = host_[1].data();
  if (shape_.quantized()) {
    view.scales = reinterpret_cast<KvScale*>(host_[2].data());
    view.partial_k = host_[3].data();
    view.partial_v = host_[4].data();
  }
  return view;
}

void add_segments(std::vector<AttentionSegment>& segments, const BenchCacheShape& shape,
                  std::span<const PageId> pages, std::int64_t first, std::int64_t context,
                  std::int64_t row, std::int64_t partial_page) {
  for (std::int64_t begin = first; begin < context;) {
    const std::int64_t block_end = (begin / shape.page_tokens + 1) * shape.page_tokens;
    const std::int64_t end = shape.quantized() ? std::min(block_end, context) : context;
    AttentionSegment& segment = segments.emplace_back();
    segment.query_begin = row + begin - first;
    segment.query_count = end - begin;
    segment.context_tokens = end;
    segment.pages = pages;
    if (shape.quantized()) {
      segment.scale_pages = pages;
      segment.partial_page = PageId(partial_page++);
    }
    begin = end;
  }
}

}  // namespace triphase::bench
