#pragma once

// The merge engine of byte-pair encoding: of all adjacent pairs that have a merge, the one with the
// lowest rank goes first, the leftmost of equals. Serves Hugging Face merges (ranks by position in
// the list) and SentencePiece scores (ranks by score). O(n log n) in the number of symbols.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"

namespace triphase {

struct Merge {
  std::uint32_t rank = 0;
  TokenId merged = -1;
};

// (left, right) -> merge. Filled once, then immutable and thread-safe.
class MergeTable {
 public:
  void reserve(std::size_t merges);
  // A pair given twice keeps the last merge, as Hugging Face's table does. Ids are >= 0.
  void set(TokenId left, TokenId right, Merge merge);
  // nullptr when the pair has no merge; any ids are allowed.
  [[nodiscard]] const Merge* find(TokenId left, TokenId right) const;

 private:
  struct Slot {
    std::uint64_t key = kFree;
    Merge merge;
  };
  static constexpr std::uint64_t kFree = UINT64_MAX;

  [[nodiscard]] std::size_t slot_of(std::uint64_t key) const;
  void grow(std::size_t slots);

  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  std::size_t size_ = 0;
};

// Working memory of one thread's merges; reused from call to call.
class BpeMerger {
 public:
  explicit BpeMerger(const MergeTable& table) : table_(&table) {}

  // Merges tokens[begin..] in place until no pair is left; `tokens` shrinks. At most 2^31 - 1
  // symbols. Negative entries never merge.
  void merge(std::vector<TokenId>& tokens, std::size_t begin);

 private:
  static constexpr std::uint32_t kNoRank = UINT32_MAX;

  void merge_short(std::vector<TokenId>& tokens, std::size_t begin);
  void merge_long(std::vector<TokenId>& tokens, std::size_t begin);
  [[nodiscard]] Merge lookup(TokenId left, TokenId right) const;

  const MergeTable* table_;
  std::vector<Merge> pairs_;  // merge of symbol i with its right neighbour; kNoRank = none
  std::vector<std::int32_t> next_;
  std::vector<std::int32_t> previous_;
  std::vector<std::uint64_t> heap_;  // rank << 32 | position
};

}  // namespace triphase
