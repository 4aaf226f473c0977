#include "memory/kv/kv_shape.h"

namespace triphase {
namespace {

// Elements of K (or V) of one page.
std::uint64_t page_elements(const KvShape& shape) {
  return static_cast<std::uint64_t>(shape.kv_heads * shape.block_tokens * shape.head_dim);
}

}  // namespace

std::uint64_t KvShape::page_bytes() const { return 2 * page_elements(*this) * dtype_bytes(dtype); }

std::uint64_t KvShape::transposed_k_bytes() const {
  return transposed_k ? page_elements(*this) * dtype_bytes(dtype) : 0;
}

std::uint64_t KvShape::partial_page_bytes() const {
  return quantized() ? 2 * page_elements(*this) * dtype_bytes(partial_dtype) : 0;
}

std::uint64_t KvShape::scale_bytes() const {
  if (!quantized()) return 0;
  // K and V, each with lambda and zero per channel.
  return 4 * static_cast<std::uint64_t>(kv_heads * head_dim) * sizeof(float);
}

std::uint64_t KvShape::host_block_bytes() const {
  return page_bytes() * static_cast<std::uint64_t>(layers);
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
