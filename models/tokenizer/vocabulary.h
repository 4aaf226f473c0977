#pragma once

// Token text <-> id with gaps allowed. Owns all text in one block, so that a vocabulary of 256k
// entries costs its bytes plus two flat tables. Filled once, then immutable and thread-safe.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace triphase {

inline constexpr TokenId kNoToken = -1;

class Vocabulary {
 public:
  // `entries` and `end_id` only size the tables. `id` must be >= 0 and is used as an index: callers
  // bound it first.
  void reserve(std::size_t entries, std::size_t end_id);
  // False, and nothing is added: the id or the text is there already.
  [[nodiscard]] bool add(TokenId id, std::string_view text);

  // kNoToken when the text is not a token.
  [[nodiscard]] TokenId find(std::string_view text) const;
  [[nodiscard]] bool contains(TokenId id) const {
    return id >= 0 && static_cast<std::size_t>(id) < entries_.size() &&
           entries_[id].length != kAbsent;
  }
  // Empty when there is no such id.
  [[nodiscard]] std::string_view text(TokenId id) const;

  [[nodiscard]] std::int64_t end_id() const {  // largest id + 1
    return std::ssize(entries_);
  }

 private:
  static constexpr std::uint32_t kAbsent = UINT32_MAX;
  struct Entry {
    std::uint64_t offset = 0;
    std::uint32_t length = kAbsent;
  };

  void grow_slots(std::size_t slots);
  [[nodiscard]] std::size_t slot_of(std::string_view text) const;

  std::string bytes_;
  std::vector<Entry> entries_;  // by id
  std::vector<TokenId> slots_;  // open addressing, a power of two, at most half full
  std::size_t size_ = 0;
};

}  // namespace triphase
