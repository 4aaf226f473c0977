#include "memory/kv/sequence_groups.h"

#include <algorithm>

#include "base/error.h"
#include "scheduler/kv/group_pages.h"

namespace triphase {

std::int64_t SequenceGroups::most_offloaded(const Entries& entries) {
  std::int64_t most = 0;
  for (std::size_t entry = 0; entry < entries.rows.size(); ++entry) {
    const std::int64_t blocks = entries.blocks(entry);
    std::int64_t count = 0;
    for (std::int64_t block = 0; block < blocks; ++block) {
      if (entries.is_offloaded(entry, block)) ++count;
    }
    most = std::max(most, count);
  }
  return most;
}

void SequenceGroups::make_one(std::size_t entries) {
  groups_.clear();
  groups_.push_back({0, entries, 0});
  staging_ = false;
}

// Blocks that sequences share are loaded once for a group.
void SequenceGroups::make(const KvBook& book, const Entries& entries, std::int64_t pages) {
  const std::int64_t largest = most_offloaded(entries);
  if (largest == 0) {
    make_one(entries.rows.size());
    return;
  }
  staging_ = true;
  groups_.clear();
  TRIPHASE_CHECK(largest <= pages, "a sequence's blocks on the host exceed the staging pages");
  const std::int64_t room = group_pages(pages, largest);
  seen_.resize(static_cast<std::size_t>(book.pool().capacity()), -1);
  const auto pages_of = [&](std::size_t entry) {
    const std::int64_t blocks = entries.blocks(entry);
    std::int64_t count = 0;
    for (std::int64_t block = 0; block < blocks; ++block) {
      if (entries.is_offloaded(entry, block) && is_new(book, entries.rows[entry], block)) ++count;
    }
    return count;
  };
  for (std::size_t entry = 0; entry < entries.rows.size(); ++entry) {
    const std::optional<std::int64_t> chosen =
        entries.chosen_pages ? entries.chosen_pages(entry) : std::nullopt;
    bool begins = groups_.empty() || groups_.back().chooses != chosen.has_value();
    std::int64_t added = begins ? 0 : chosen ? *chosen : pages_of(entry);
    begins = begins || groups_.back().pages + added > room;
    if (begins) {
      groups_.push_back({.first = entry, .chooses = chosen.has_value()});
      begin_group();
      added = chosen ? *chosen : pages_of(entry);
    }
    groups_.back().pages += added;
    ++groups_.back().count;
  }
}

}  // namespace triphase
