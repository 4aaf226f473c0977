#include "memory/kv/kv_prefetcher.h"

#include <algorithm>
#include <utility>

namespace triphase {

void KvPrefetcher::begin_step(KvStore& store, const Step& step) {
  const std::int64_t units_before = units_;
  const bool kept = store_ == &store && !store.prefetched().empty();
  store_ = &store;
  step_ = step;
  units_ = std::ssize(step.windows) * step.groups->count();
  placed_ = 0;
  ranges_ = kept ? std::move(next_ranges_) : Ranges{};
  fresh_.clear();
  last_prefetched_unit_ = -1;
  if (kept) ring_.give_back_before(units_before);
  if (!kept || !find_prefetched()) {
    if (!store.prefetched().empty()) end_prefetched();
    ring_.reset(store.memory().sizes().staging_pages);
  }
  foreseen_ = done_ = false;
  alone_ = true;
  taken_ = 0;
  next_ranges_ = {};
}

bool KvPrefetcher::find_prefetched() {
  const PrefetchedBlocks& prefetched = store_->prefetched();
  const std::int64_t groups = step_.groups->count();
  std::vector<std::int64_t> readers(static_cast<std::size_t>(prefetched.ranges()), -1);
  const std::int64_t units = step_.groups->staging() ? prefetched.layers() * groups : 0;
  for (std::int64_t unit = 0; unit < units; ++unit) {
    const LayerId layer(unit / groups);
    std::int64_t& fresh = fresh_.emplace_back(0);
    step_.groups->for_each_offloaded(
        store_->book(), *step_.entries, step_.groups->at(unit % groups),
        [&](std::size_t entry, std::int64_t block) {
          const KvBlockTable blocks = store_->book().table(step_.rows[entry].sequence);
          const auto source = PrefetchedBlocks::source_of(blocks, layer, block);
          const auto found = source ? prefetched.find(*source) : std::nullopt;
          if (found) {
            readers[found->range] = last_prefetched_unit_ = unit;
          } else {
            ++fresh;
          }
        });
  }
  if (last_prefetched_unit_ < 0) return false;
  // The pages of a range that were not filled are for the unit that it was meant for.
  for (std::int64_t unit = 0; unit < units; ++unit) {
    const Range* range = range_of(unit);
    if (range == nullptr) continue;
    std::int64_t& reader = readers[range - ranges_.of_units.data()];
    reader = std::max(reader, unit);
    last_prefetched_unit_ = std::max(last_prefetched_unit_, unit);
  }
  for (std::size_t range = 0; range < readers.size(); ++range) {
    const std::int64_t reader = readers[range] < 0 ? last_prefetched_unit_ : readers[range];
    ring_.set_reader(static_cast<std::int64_t>(range), reader);
  }
  return true;
}

void KvPrefetcher::end_prefetched() {
  store_->prefetched().end();
  last_prefetched_unit_ = -1;
  ranges_ = {};
  fresh_.clear();
}

const KvPrefetcher::Range* KvPrefetcher::range_of(std::int64_t unit) const {
  const std::int64_t group = unit % step_.groups->count();
  if (group >= ranges_.groups) return nullptr;
  const auto range =
      static_cast<std::size_t>(unit / step_.groups->count() * ranges_.groups + group);
  return range < ranges_.of_units.size() ? &ranges_.of_units[range] : nullptr;
}

std::optional<std::int64_t> KvPrefetcher::take_pages(std::int64_t unit) {
  const auto index = static_cast<std::size_t>(unit);
  const std::int64_t groups = step_.groups->count();
  std::int64_t fresh =
      index < fresh_.size() ? fresh_[index] : step_.groups->at(unit % groups).pages;
  if (!store_->memory().shape().sets.on_host(LayerId(unit / groups))) fresh = 0;
  const Range* range = range_of(unit);
  if (range != nullptr && range->pages - range->filled >= fresh) {
    return range->first_page + range->filled;
  }
  return ring_.take(fresh, unit);
}

std::optional<std::int64_t> KvPrefetcher::place_next(std::int64_t reading) {
  if (placed_ >= (ahead_ ? units_ : reading + 1)) return std::nullopt;
  std::optional<std::int64_t> page = take_pages(placed_);
  if (!page && placed_ == reading && last_prefetched_unit_ >= 0) {
    // Prefetched blocks leave no room for the blocks that were added to the unit since.
    end_prefetched();
    ring_.reset(store_->memory().sizes().staging_pages);
    page = take_pages(placed_);
  }
  if (!page) return std::nullopt;
  ++placed_;
  return store_->memory().sizes().device_pages + *page;
}

void KvPrefetcher::give_back_before(std::int64_t reading) {
  if (last_prefetched_unit_ >= 0 && reading > last_prefetched_unit_) end_prefetched();
  ring_.give_back_before(reading);
}

// Copies to the host and back that are under way have finished when the next step begins.
void KvPrefetcher::foresee() {
  foreseen_ = true;
  next_rows_.clear();
  for (const BatchSegment& entry : step_.rows) {
    alone_ = alone_ && entry.decode;
    if (!entry.continues) continue;
    BatchSegment next = entry;
    next.first_position += entry.count;
    next.count = 1;
    next_rows_.push_back(next);
  }
  const KvBook& book = store_->book();
  next_entries_ = {
      .rows = next_rows_,
      .blocks = [&book,
                 this](std::size_t entry) { return book.table(next_rows_[entry].sequence).size(); },
      .is_offloaded =
          [&book, this](std::size_t entry, std::int64_t block) {
            const BlockPlace place = book.table(next_rows_[entry].sequence)[block].place;
            return place == BlockPlace::kHost || place == BlockPlace::kOffloading ||
                   place == BlockPlace::kRecomputable;
          }};
  const std::int64_t most = SequenceGroups::most_offloaded(next_entries_);
  // Nothing to load; or a sequence that will have to make room.
  done_ = most == 0 || most > store_->memory().sizes().staging_pages;
  if (done_) return;
  next_groups_.make(book, next_entries_, store_->memory().sizes().staging_pages);
  next_ranges_.groups = next_groups_.count();
}

// Blocks with cached hidden states may be discarded before the step begins.
bool KvPrefetcher::is_certain(const BatchSegment& rows, std::int64_t block) const {
  const KvBlock& of = store_->book().table(rows.sequence)[block];
  return of.place == BlockPlace::kHost && of.input_block < 0;
}

void KvPrefetcher::find_sources(LayerId layer, const SequenceGroup& group) {
  sources_.clear();
  const std::int64_t window = step_.windows[layer.index()];
  next_groups_.for_each_offloaded(
      store_->book(), next_entries_, group, [&](std::size_t entry, std::int64_t block) {
        const BatchSegment& rows = next_rows_[entry];
        if (block < store_->first_host_read(rows, layer, window)) return;
        if (!is_certain(rows, block)) return;
        const KvBlockTable blocks = store_->book().table(rows.sequence);
        const auto source = PrefetchedBlocks::source_of(blocks, layer, block);
        // Another group may have loaded a block that both share.
        if (source && !store_->prefetched().find(*source)) sources_.push_back(*source);
      });
}

void KvPrefetcher::load_sources(LayerId layer, std::int64_t first_page) {
  runs_.clear();
  PageId page(store_->memory().sizes().device_pages + first_page);
  for (const PrefetchedBlocks::Source& source : sources_) {
    store_->prefetched().add(source, page);
    runs_.push_back(store_->memory().block_run(page, source.host_block, layer));
    ++page.value;
  }
  store_->prefetched().end_range(
      store_->transfers()->move_tokens(Lane::kToDevice, store_->memory().geometry(), runs_));
}

// Requests that still compute their prompts need blocks that nobody can foresee: half of the ring
// is kept for these blocks.
bool KvPrefetcher::may_take(LayerId layer, std::int64_t pages) const {
  // A step prefetches nothing while its last layer reads prefetched blocks.
  if (layer.value + 1 >= std::ssize(step_.windows)) return false;
  return alone_ ||
         (layer.value == 0 && 2 * (taken_ + pages) <= store_->memory().sizes().staging_pages);
}

std::int64_t KvPrefetcher::prefetch(std::int64_t reading) {
  // Transfers that this step still needs come first.
  const bool last_layer = reading + step_.groups->count() >= units_;
  if (!ahead_ || !step_.reads_whole_blocks || !last_layer || placed_ < units_) return 0;
  if (last_prefetched_unit_ >= 0) return 0;
  if (!foreseen_) foresee();
  std::int64_t loaded = 0;
  while (!done_) {
    const std::int64_t unit = std::ssize(next_ranges_.of_units);
    const LayerId layer(unit / next_groups_.count());
    const SequenceGroup& group = next_groups_.at(unit % next_groups_.count());
    // Before the step begins, one more block of each sequence may be offloaded.
    const std::int64_t pages = group.pages + static_cast<std::int64_t>(group.count);
    done_ = !may_take(layer, pages);
    if (done_) break;
    find_sources(layer, group);
    done_ = sources_.empty();
    if (done_) break;
    // These pages are given back with the units of the next step.
    const std::optional<std::int64_t> first = ring_.take(pages, units_ + unit);
    if (!first) break;
    taken_ += pages;
    load_sources(layer, *first);
    const std::int64_t count = std::ssize(sources_);
    next_ranges_.of_units.push_back({*first, pages, count});
    loaded += count;
  }
  return loaded;
}

}  // namespace triphase
