#include "memory/kv/kv_shape.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/kv_scale.h"

namespace triphase {
namespace {

// Elements of K (or V) of one page.
std::uint64_t page_elements(const KvShape& shape) {
  return static_cast<std::uint64_t>(shape.kv_heads * shape.block_tokens * shape.head_dim);
}

}  // namespace

LayerSets::LayerSets(std::span<const std::int64_t> windows) {
  const std::int64_t whole = std::ranges::count(windows, 0);
  const std::int64_t sliding = std::ssize(windows) - whole;
  if (whole == 0 || sliding == 0) return;
  pages_ = whole;
  count_ = 1 + (sliding + whole - 1) / whole;
  window_ = std::ranges::max(windows);
  std::int64_t whole_page = 0;
  std::int64_t sliding_page = 0;
  for (const std::int64_t window : windows) {
    if (window == 0) {
      places_.push_back({0, whole_page++});
    } else {
      places_.push_back({1 + sliding_page / whole, sliding_page % whole});
      ++sliding_page;
    }
  }
}

LayerId LayerSets::first(std::int64_t set) const {
  if (!apart()) return LayerId(0);
  const auto place = std::ranges::find(places_, Place{set, 0});
  TRIPHASE_CHECK(place != places_.end(), "a set without layers");
  return LayerId(place - places_.begin());
}

std::uint64_t KvShape::page_bytes() const { return 2 * page_elements(*this) * dtype_bytes(dtype); }

std::uint64_t KvShape::transposed_k_bytes() const {
  return transposed_k ? page_elements(*this) * dtype_bytes(dtype) : 0;
}

std::uint64_t KvShape::partial_page_bytes() const {
  return quantized() ? 2 * page_elements(*this) * dtype_bytes(partial_dtype) : 0;
}

std::uint64_t KvShape::scale_bytes() const {
  if (!quantized()) return 0;
  return 2 * static_cast<std::uint64_t>(kv_heads * head_dim) * sizeof(KvScale);
}

std::uint64_t KvShape::host_block_bytes() const {
  return page_bytes() * static_cast<std::uint64_t>(slab_pages());
}

std::uint64_t KvShape::input_bytes() const {
  return static_cast<std::uint64_t>(block_tokens) *
         (static_cast<std::uint64_t>(input_width) + sizeof(float));
}

bool KvShape::page_holds_inputs(std::int64_t width) const {
  const auto half = static_cast<std::int64_t>(page_bytes() / 2) / block_tokens;
  return width > 0 && width <= half && std::int64_t{sizeof(float)} <= half;
}

}  // namespace triphase
