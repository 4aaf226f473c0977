#include "kernels/sizing/expert_workspace.h"

#include <algorithm>

#include "kernels/sizing/regions.h"

namespace triphase {

ExpertLayout expert_layout(const ExpertShape& shape) {
  constexpr std::int64_t kCpuWidths = 2;  // gate and what it gates
  const std::int64_t choices = shape.choices();
  Regions all(256);
  const auto take = [&all](std::int64_t words) { return all.take(4 * words); };
  ExpertLayout layout;
  layout.logits_at = take(shape.rows * shape.experts);
  layout.inner_at = take(shape.rows * std::max(kCpuWidths, shape.per_row) * shape.ffn);
  layout.outputs_at = take(choices * shape.hidden);
  layout.experts_at = take(choices);
  layout.shares_at = take(choices);
  layout.places_at = take(choices);
  layout.rows_at = take(choices);
  layout.begins_at = take(shape.experts + 1);
  // Of the smaller tiles, so that more rows never take less.
  layout.tiles_at = take(4 * expert_tiles(shape, kFewExpertRows));
  layout.bytes = all.bytes();
  return layout;
}

std::int64_t expert_tile_rows(const ExpertShape& shape) {
  return shape.choices() <= kFewExpertRows * shape.experts ? kFewExpertRows : kManyExpertRows;
}

std::int64_t expert_tiles(const ExpertShape& shape, std::int64_t tile_rows) {
  // Each expert that has rows has a first tile; the others need tile_rows each.
  const std::int64_t choices = shape.choices();
  const std::int64_t chosen = std::min(choices, shape.experts);
  return chosen + (choices - chosen) / tile_rows;
}

}  // namespace triphase
