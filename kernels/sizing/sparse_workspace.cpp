#include "kernels/sizing/sparse_workspace.h"

#include <algorithm>

namespace triphase {
namespace {

std::int64_t padded(std::int64_t count) { return (count + 15) / 16 * 16; }

}  // namespace

std::int64_t sparse_row_floats(const AttentionShape& shape) {
  return shape.heads / shape.kv_heads * padded(shape.max_context);
}

ChannelChoiceLayout channel_choice_layout(const AttentionShape& shape) {
  const std::int64_t group = shape.heads / shape.kv_heads;
  ChannelChoiceLayout layout;
  const auto take = [&layout](std::int64_t count) {
    const std::int64_t at = layout.size;
    layout.size += padded(count);
    return at;
  };
  layout.row = padded(shape.max_context);
  layout.query_row = padded(shape.head_dim);
  (void)take(group * layout.row);
  layout.sums = group == 1 ? 0 : take(layout.row);
  layout.selection = take(select_top_words(layout.row));
  layout.channels = take(layout.query_row);
  layout.queries = take(group * layout.query_row);
  layout.scaled_queries = take(group * layout.query_row);
  layout.starts = take(group);
  layout.tile = take(layout.query_row * kChannelTile);
  return layout;
}

std::uint64_t sparse_workspace_bytes(const AttentionShape& shape) {
  const std::int64_t scores = attention_layout(shape).thread_floats + sparse_row_floats(shape);
  return sizeof(float) * static_cast<std::uint64_t>(
                             shape.threads * std::max(scores, channel_choice_layout(shape).size));
}

}  // namespace triphase
