#include "models/next_step.h"

#include <algorithm>

namespace triphase {

void NextStep::begin(KvStore& store, std::span<const BatchSegment> rows,
                     std::span<const std::int64_t> windows) {
  store_ = &store;
  now_ = rows;
  windows_ = windows;
  foreseen_ = done_ = false;
  alone_ = true;
  taken_ = 0;
  fetched_.ranges.clear();
}

// The rows that continue, one token on, and where their blocks will be: what leaves or returns now
// has arrived by then.
void NextStep::foresee() {
  foreseen_ = true;
  rows_.clear();
  for (const BatchSegment& entry : now_) {
    alone_ = alone_ && entry.decode;
    if (!entry.continues) continue;
    BatchSegment next = entry;
    next.first_position += entry.count;
    next.count = 1;
    rows_.push_back(next);
  }
  const KvBook& book = store_->book();
  entries_ = {
      .rows = rows_,
      .blocks = [&book, this](std::size_t entry) { return book.blocks(rows_[entry].sequence); },
      .is_away =
          [&book, this](std::size_t entry, std::int64_t block) {
            const BlockPlace place = book.block(rows_[entry].sequence, block).place;
            return place == BlockPlace::kHost || place == BlockPlace::kOffloading ||
                   place == BlockPlace::kRecomputable;
          }};
  const std::int64_t away = SequenceGroups::most_away(entries_);
  // Nothing to bring; or a sequence that will have to make room.
  done_ = away == 0 || away > store_->sizes().staging_pages;
  if (done_) return;
  groups_.make(book, entries_, store_->sizes().staging_pages);
  fetched_.groups = groups_.count();
}

// Blocks with saved layer inputs may be discarded before the step begins.
bool NextStep::is_certain(const BatchSegment& rows, std::int64_t block) const {
  const KvBook& book = store_->book();
  return book.block(rows.sequence, block).place == BlockPlace::kHost &&
         book.block(rows.sequence, block).input_block < 0;
}

void NextStep::look_at(LayerId layer, const SequenceGroup& group) {
  sources_.clear();
  const std::int64_t window = windows_[layer.index()];
  groups_.for_each_away(
      store_->book(), entries_, group, [&](std::size_t entry, std::int64_t block) {
        const BatchSegment& rows = rows_[entry];
        if (block < rows.first_block_in_window(window, store_->shape().block_tokens)) return;
        if (!is_certain(rows, block)) return;
        const auto source = store_->early_source(layer, rows.sequence, block);
        // Another group may have brought what it shares with this one.
        if (source && !store_->early().find(*source)) sources_.push_back(*source);
      });
}

void NextStep::bring(LayerId layer, std::int64_t first_page) {
  const std::int64_t block_tokens = store_->shape().block_tokens;
  runs_.clear();
  std::int64_t page = store_->sizes().device_pages + first_page;
  for (const EarlyBlocks::Source& source : sources_) {
    store_->early().add(source, PageId(page));
    runs_.push_back({.slot = page * block_tokens,
                     .record = store_->host_record(source.host_block, layer, 0),
                     .count = static_cast<std::int32_t>(block_tokens),
                     .head_count = static_cast<std::int32_t>(store_->shape().kv_heads)});
    ++page;
  }
  store_->early().end_range(
      store_->transfers()->move_tokens(Lane::kToDevice, store_->geometry(), runs_));
}

// Lines whose prompts are still computed bring blocks that nobody can foresee: half of the ring is
// theirs.
bool NextStep::may_take(LayerId layer, std::int64_t pages) const {
  // What the present step reads in its last layer is not early any more by then.
  if (layer.value + 1 >= static_cast<std::int64_t>(windows_.size())) return false;
  return alone_ || (layer.value == 0 && 2 * (taken_ + pages) <= store_->sizes().staging_pages);
}

std::int64_t NextStep::fetch(StagingRing& ring, std::int64_t first_unit) {
  if (!foreseen_) foresee();
  std::int64_t brought = 0;
  while (!done_) {
    const auto number = static_cast<std::int64_t>(fetched_.ranges.size());
    const LayerId layer(number / groups_.count());
    const SequenceGroup& group = groups_.at(number % groups_.count());
    // A block of each sequence may follow the others to the host before the step reads them.
    const std::int64_t pages = group.pages + static_cast<std::int64_t>(group.count);
    done_ = !may_take(layer, pages);
    if (done_) break;
    look_at(layer, group);
    done_ = sources_.empty();
    if (done_) break;
    const std::optional<std::int64_t> first = ring.take(pages, first_unit + number);
    if (!first) break;
    taken_ += pages;
    bring(layer, *first);
    const auto count = static_cast<std::int64_t>(sources_.size());
    fetched_.ranges.push_back({*first, pages, count});
    brought += count;
  }
  return brought;
}

}  // namespace triphase
