#include "kernels/sizing/resolver_memory.h"

#include "kernels/sizing/cuda_workspace.h"
#include "kernels/sizing/regions.h"

namespace triphase {
namespace {

constexpr std::int64_t kWord = 4;

}  // namespace

ResolverLayout resolver_layout(const ResolverShape& shape) {
  ResolverLayout layout;
  Regions all(kCudaRegionAlignment);
  const std::int64_t sets = shape.layers * shape.lists;
  layout.map = all.take(shape.hot_rows > 0 ? sets * shape.host_tokens() * kWord : 0);
  layout.owners = all.take(sets * shape.hot_rows * kWord);
  layout.stamps = all.take(sets * shape.hot_rows * kWord);
  layout.claims = all.take(shape.lists * shape.host_words() * kWord);
  layout.seen = all.take(shape.lists * shape.host_words() * kWord);
  layout.ranks = all.take(shape.lists * shape.host_words() * kWord);
  layout.hits = all.take(shape.lists * shape.hot_words() * kWord);
  layout.victims = all.take(shape.lists * shape.hot_rows * kWord);
  layout.found = all.take(shape.lists * 5 * kWord);
  layout.totals = all.take(shape.lists * 4 * 2 * kWord);

  Regions unit(kCudaRegionAlignment);
  const std::int64_t entries = shape.list_entries() * kWord;
  layout.slots = unit.take(entries);
  layout.missing_slots = unit.take(entries);
  layout.missing_records = unit.take(entries);
  layout.missing_heads = unit.take(shape.lists > 1 ? entries : 0);
  layout.missing_widths = unit.take(shape.lists > 1 ? entries : 0);
  layout.missing_count = unit.take(kWord);
  layout.recomputed = unit.take(shape.recomputes ? 4 * entries : 0);
  layout.recomputed_count = unit.take(shape.recomputes ? kWord : 0);
  layout.unit_bytes = unit.bytes();
  layout.units = all.take(shape.units() * layout.unit_bytes);
  layout.bytes = all.bytes();
  return layout;
}

ResolverCosts resolver_costs(ResolverShape shape) {
  const std::int64_t sets = shape.layers * shape.lists;
  shape.host_blocks = 0;
  shape.input_blocks = 0;
  shape.hot_rows = 0;
  // Every region that grows may be rounded up, and so may the bits of the last hot rows.
  constexpr std::int64_t kGrowing = 8;
  const std::int64_t rounding = kGrowing * kCudaRegionAlignment + shape.lists * kWord;
  const std::int64_t block =
      kWord * (sets * shape.block_tokens + ceil_div(3 * shape.lists * shape.block_tokens, 32));
  const std::int64_t row = kWord * (2 * sets + shape.lists) + ceil_div(kWord * shape.lists, 32);
  return {.fixed = static_cast<std::uint64_t>(resolver_layout(shape).bytes + rounding),
          .host_block = static_cast<std::uint64_t>(block),
          .hot_row = static_cast<std::uint64_t>(row)};
}

}  // namespace triphase
