#include "models/device_copies.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace triphase {
namespace {

// Pages that the segment reads of those that may be copied; an INT8 line's open page is another.
std::size_t pages_read(const AttentionSegment& segment, const KvStore::Shape& shape) {
  const std::int64_t tokens = segment.context_tokens;
  const std::int64_t block = shape.block_tokens;
  return static_cast<std::size_t>(shape.quantized() ? (tokens - 1) / block
                                                    : (tokens + block - 1) / block);
}

}  // namespace

void DeviceCopies::begin_layer(const KvStore& store) {
  const auto pages = static_cast<std::size_t>(store.sizes().device_pages);
  if (met_.size() < pages) {
    met_.resize(pages, 0);
    copies_.resize(pages);
  }
  ++layer_;
  used_ = 0;
}

PageId DeviceCopies::copy_of(const KvStore& store, PageId page, Stream& stream) {
  if (std::exchange(met_[page.index()], layer_) == layer_) return copies_[page.index()];
  TRIPHASE_CHECK(used_ < store.sizes().copy_pages, "pages for the copies of a layer");
  const PageId to = store.copy_page(used_++);
  const auto half = static_cast<std::size_t>(KvStore::page_bytes(store.shape()) / 2);
  for (std::byte* pool : {store.k_pages(), store.v_pages()}) {
    device_->copy(pool + to.index() * half, pool + page.index() * half, half, stream);
  }
  bytes_ += 2 * half;
  copies_[page.index()] = to;
  return to;
}

std::span<const AttentionSegment> DeviceCopies::copy(const KvStore& store, const KvStep& step,
                                                     std::span<const AttentionSegment> segments,
                                                     Stream& stream) {
  segments_.assign(segments.begin(), segments.end());
  if (tables_.size() < segments.size()) tables_.resize(segments.size());
  const KvResidency& residency = store.residency();
  const auto at_home = [&](PageId page) {
    return page.valid() && page.value < store.sizes().device_pages;
  };
  for (std::size_t index = 0; index < segments.size(); ++index) {
    const BatchSegment& rows = step.segment_rows(index);
    // Lines that have room on the host are not of the device's share, even where they are short.
    if (!rows.decode || residency.reserved_host_blocks(rows.sequence) > 0) continue;
    AttentionSegment& segment = segments_[index];
    const std::span<const PageId> pages =
        segment.pages.first(std::min(pages_read(segment, store.shape()), segment.pages.size()));
    if (!std::ranges::all_of(pages, at_home)) continue;
    std::vector<PageId>& table = tables_[index];
    table.assign(segment.pages.begin(), segment.pages.end());
    for (std::size_t block = 0; block < pages.size(); ++block) {
      table[block] = copy_of(store, pages[block], stream);
    }
    segment.pages = table;
  }
  return segments_;
}

}  // namespace triphase
