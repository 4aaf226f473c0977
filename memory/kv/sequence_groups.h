#pragma once

// The sequences of a step in groups that are attended one after another. A group's blocks on the
// host pass through staging pages, so a group is consecutive sequences whose blocks fit the group's
// part of these pages together. Kept between uses to reuse its memory.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "memory/kv/batch_segment.h"
#include "scheduler/kv/kv_book.h"

namespace triphase {

struct SequenceGroup {
  std::size_t first = 0;  // index into the entries
  std::size_t count = 0;
  std::int64_t pages = 0;  // in one layer: for blocks on the host, or for chosen tokens
  bool chooses = false;    // its rows' tokens are chosen, and looked up, on the device
};

class SequenceGroups {
 public:
  // Blocks of an entry, and whether a block is on the host or recomputable.
  struct Entries {
    std::span<const BatchSegment> rows;
    std::function<std::int64_t(std::size_t entry)> blocks;
    std::function<bool(std::size_t entry, std::int64_t block)> is_offloaded;
    // Pages for the tokens of an entry that chooses on the device. Nothing: its blocks are loaded.
    // A null function: all entries' blocks are loaded.
    std::function<std::optional<std::int64_t>(std::size_t entry)> chosen_pages;
  };
  // Most offloaded blocks that one entry has.
  [[nodiscard]] static std::int64_t most_offloaded(const Entries& entries);
  // Makes groups for `pages` staging pages, which each entry's offloaded blocks must fit; one group
  // where none are offloaded. Entries that choose on the device have groups of their own.
  void make(const KvBook& book, const Entries& entries, std::int64_t pages);

  // Makes one group of all `entries` entries, with nothing offloaded.
  void make_one(std::size_t entries);

  [[nodiscard]] const SequenceGroup& at(std::int64_t group) const { return groups_[group]; }
  [[nodiscard]] std::int64_t count() const { return std::ssize(groups_); }
  // Whether a block of some entry is offloaded.
  [[nodiscard]] bool staging() const { return staging_; }

  // Calls visit(entry, block) for the offloaded blocks of one group, each once.
  template <class Visit>
  void for_each_offloaded(const KvBook& book, const Entries& entries, const SequenceGroup& group,
                          Visit visit) {
    begin_group();
    for (std::size_t entry = group.first; entry < group.first + group.count; ++entry) {
      const std::int64_t blocks = entries.blocks(entry);
      for (std::int64_t block = 0; block < blocks; ++block) {
        if (entries.is_offloaded(entry, block) && is_new(book, entries.rows[entry], block)) {
          visit(entry, block);
        }
      }
    }
  }

 private:
  void begin_group() { ++stamp_; }
  // Marks the block as seen in this group; returns whether it is new.
  bool is_new(const KvBook& book, const BatchSegment& rows, std::int64_t block) {
    std::int64_t& seen = seen_[book.table(rows.sequence).number(block)];
    return std::exchange(seen, stamp_) != stamp_;
  }

  std::vector<SequenceGroup> groups_;
  std::vector<std::int64_t> seen_;  // by KvBlockTable::number: the last group's stamp
  std::int64_t stamp_ = 0;
  bool staging_ = false;
};

}  // namespace triphase
