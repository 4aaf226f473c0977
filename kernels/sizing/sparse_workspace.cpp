#include "kernels/sizing/sparse_workspace.h"

#include <algorithm>

#include "kernels/sizing/regions.h"

namespace triphase {
namespace {

constexpr std::int64_t kVector = 16;  // the widest of any target

}  // namespace

std::int64_t sparse_row_floats(const AttentionShape& shape) {
  return shape.heads / shape.kv_heads * round_up(shape.max_context, kVector);
}

ChannelChoiceLayout channel_choice_layout(const AttentionShape& shape) {
  const std::int64_t group = shape.heads / shape.kv_heads;
  ChannelChoiceLayout layout;
  Regions all(kVector);
  layout.row = round_up(shape.max_context, kVector);
  layout.query_row = round_up(shape.head_dim, kVector);
  (void)all.take(group * layout.row);
  layout.sums = group == 1 ? 0 : all.take(layout.row);
  layout.selection = all.take(select_top_words(layout.row));
  layout.channels = all.take(layout.query_row);
  layout.queries = all.take(group * layout.query_row);
  layout.scaled_queries = all.take(group * layout.query_row);
  layout.starts = all.take(group);
  layout.tile = all.take(layout.query_row * kChannelTile);
  layout.size = all.bytes();
  return layout;
}

std::uint64_t sparse_workspace_bytes(const AttentionShape& shape) {
  const std::int64_t scores = attention_layout(shape).thread_floats + sparse_row_floats(shape);
  return sizeof(float) * static_cast<std::uint64_t>(
                             shape.threads * std::max(scores, channel_choice_layout(shape).size));
}

}  // namespace triphase
