#include "kernels/sizing/sparse_workspace.h"

namespace triphase {

std::int64_t sparse_row_floats(const AttentionShape& shape) {
  return shape.heads / shape.kv_heads * ((shape.max_context + 15) / 16 * 16);
}

std::uint64_t sparse_workspace_bytes(const AttentionShape& shape) {
  const AttentionLayout layout = attention_layout(shape);
  return sizeof(float) * static_cast<std::uint64_t>(
                             shape.threads * (layout.thread_floats + sparse_row_floats(shape)));
}

}  // namespace triphase
