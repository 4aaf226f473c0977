#include "models/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "base/error.h"

namespace triphase {
namespace {

// Below this many symbols a scan for the best pair beats a heap.
constexpr std::size_t kShort = 32;

std::uint64_t pair_key(TokenId left, TokenId right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
         static_cast<std::uint32_t>(right);
}

// Finalizer of a 64-bit mixing hash: neighbouring ids must not share neighbourhoods.
std::size_t mix(std::uint64_t key) {
  key ^= key >> 32;
  key *= 0x9E3779B97F4A7C15ULL;
  key ^= key >> 29;
  key *= 0xBF58476D1CE4E5B9ULL;
  key ^= key >> 32;
  return static_cast<std::size_t>(key);
}

}  // namespace

void MergeTable::reserve(std::size_t merges) {
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(16, 2 * merges + 2));
  if (slots > slots_.size()) grow(slots);
}

void MergeTable::grow(std::size_t slots) {
  std::vector<Slot> old(slots);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.key != kFree) slots_[slot_of(slot.key)] = slot;
  }
}

std::size_t MergeTable::slot_of(std::uint64_t key) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = mix(key) & mask;
  while (slots_[slot].key != key && slots_[slot].key != kFree) slot = (slot + 1) & mask;
  return slot;
}

void MergeTable::set(TokenId left, TokenId right, Merge merge) {
  if (2 * (size_ + 1) > slots_.size()) grow(slots_.empty() ? 16 : 2 * slots_.size());
  Slot& slot = slots_[slot_of(pair_key(left, right))];
  if (slot.key == kFree) ++size_;
  slot = Slot{pair_key(left, right), merge};
}

const Merge* MergeTable::find(TokenId left, TokenId right) const {
  if ((left | right) < 0 || slots_.empty()) return nullptr;
  const Slot& slot = slots_[slot_of(pair_key(left, right))];
  return slot.key == kFree ? nullptr : &slot.merge;
}

Merge BpeMerger::lookup(TokenId left, TokenId right) const {
  const Merge* merge = table_->find(left, right);
  return merge == nullptr ? Merge{kNoRank, -1} : *merge;
}

void BpeMerger::merge(std::vector<TokenId>& tokens, std::size_t begin) {
  const std::size_t count = tokens.size() - begin;
  if (count < 2) return;
  TRIPHASE_CHECK(count < static_cast<std::size_t>(INT32_MAX), "text too long for the merge engine");
  if (count <= kShort) {
    merge_short(tokens, begin);
  } else {
    merge_long(tokens, begin);
  }
}

void BpeMerger::merge_short(std::vector<TokenId>& tokens, std::size_t begin) {
  TokenId* symbols = tokens.data() + begin;
  std::size_t count = tokens.size() - begin;
  Merge pairs[kShort];
  for (std::size_t i = 0; i + 1 < count; ++i) pairs[i] = lookup(symbols[i], symbols[i + 1]);
  while (count >= 2) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNoRank) break;
    symbols[best] = pairs[best].merged;
    for (std::size_t i = best + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      pairs[i] = pairs[i + 1];
    }
    --count;
    if (best + 1 < count) pairs[best] = lookup(symbols[best], symbols[best + 1]);
    if (best > 0) pairs[best - 1] = lookup(symbols[best - 1], symbols[best]);
  }
  tokens.resize(begin + count);
}

void BpeMerger::merge_long(std::vector<TokenId>& tokens, std::size_t begin) {
  TokenId* symbols = tokens.data() + begin;
  const auto count = static_cast<std::int32_t>(tokens.size() - begin);
  const auto at = [](std::int32_t position) { return static_cast<std::size_t>(position); };
  pairs_.resize(at(count));
  next_.resize(at(count));
  previous_.resize(at(count));
  heap_.clear();
  const auto key = [this, at](std::int32_t position) {
    return (static_cast<std::uint64_t>(pairs_[at(position)].rank) << 32) |
           static_cast<std::uint32_t>(position);
  };
  for (std::int32_t i = 0; i < count; ++i) {
    previous_[at(i)] = i - 1;
    next_[at(i)] = i + 1 < count ? i + 1 : -1;
    pairs_[at(i)] = i + 1 < count ? lookup(symbols[i], symbols[i + 1]) : Merge{kNoRank, -1};
    if (pairs_[at(i)].rank != kNoRank) heap_.push_back(key(i));
  }
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>{});
  // An entry is out of date when the pair at its position has another rank by now.
  const auto renew = [&](std::int32_t position) {
    const std::int32_t right = next_[at(position)];
    pairs_[at(position)] =
        right < 0 ? Merge{kNoRank, -1} : lookup(symbols[position], symbols[right]);
    if (pairs_[at(position)].rank == kNoRank) return;
    heap_.push_back(key(position));
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>{});
  };
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>{});
    const std::uint64_t top = heap_.back();
    heap_.pop_back();
    const auto position = static_cast<std::int32_t>(top & UINT32_MAX);
    Merge& pair = pairs_[at(position)];
    if (pair.rank == kNoRank || pair.rank != static_cast<std::uint32_t>(top >> 32)) continue;
    const std::int32_t right = next_[at(position)];
    symbols[position] = pair.merged;
    pairs_[at(right)].rank = kNoRank;
    next_[at(position)] = next_[at(right)];
    previous_[at(right)] = -2;  // gone
    if (next_[at(position)] >= 0) previous_[at(next_[at(position)])] = position;
    renew(position);
    if (previous_[at(position)] >= 0) renew(previous_[at(position)]);
  }
  std::size_t kept = 0;
  for (std::int32_t i = 0; i >= 0; i = next_[at(i)]) symbols[kept++] = symbols[i];
  tokens.resize(begin + kept);
}

}  // namespace triphase
