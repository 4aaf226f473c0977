#pragma once

// The sequences that have KV: how long each is, which blocks it has and what it has reserved.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/ids.h"

namespace triphase {

struct KvSequence {
  bool live = false;
  std::int64_t tokens = 0;
  std::int64_t reserved_device = 0;  // blocks still to be taken
  std::int64_t reserved_host = 0;
  std::int64_t reserved_inputs = 0;
  std::int64_t mirrors = 0;       // of reserved_host, those that blocks on the device have
  std::int64_t max_blocks = 0;    // at its longest
  std::int64_t input_blocks = 0;  // leading ones whose hidden states are cached
  std::int64_t published_blocks = 0;
  // kv_windows.h: it holds the window blocks of its blocks from first_window on. For so many blocks
  // they are set aside, those that it holds included.
  std::int64_t first_window = 0;
  std::int64_t window_room = 0;
  std::uint64_t context_key = 0;
  std::vector<std::int32_t> blocks{};  // their numbers in the block pool, the oldest first

  // Blocks whose window blocks it holds.
  [[nodiscard]] std::int64_t windows() const { return std::ssize(blocks) - first_window; }
};

// The live sequences by id. Ids of ended sequences are used again.
class KvSequences {
 public:
  // Both throw an internal error when no live sequence has this id.
  [[nodiscard]] const KvSequence& operator[](SequenceId id) const {
    TRIPHASE_CHECK(is_live(id), "unknown sequence");
    return sequences_[id.index()];
  }
  [[nodiscard]] KvSequence& at(SequenceId id) {
    TRIPHASE_CHECK(is_live(id), "unknown sequence");
    return sequences_[id.index()];
  }
  // By id, those that ended included.
  [[nodiscard]] std::span<const KvSequence> all() const { return sequences_; }

  // A live sequence with nothing in it.
  [[nodiscard]] SequenceId add() {
    if (free_.empty()) {
      sequences_.push_back({.live = true});
      return SequenceId(std::ssize(sequences_) - 1);
    }
    const SequenceId id(free_.back());
    free_.pop_back();
    sequences_[id.index()].live = true;
    return id;
  }
  void end(SequenceId id) {
    at(id) = KvSequence{};
    free_.push_back(id.value);
  }

 private:
  [[nodiscard]] bool is_live(SequenceId id) const {
    return id.valid() && id.index() < sequences_.size() && sequences_[id.index()].live;
  }

  std::vector<KvSequence> sequences_;
  std::vector<std::int32_t> free_;
};

}  // namespace triphase
