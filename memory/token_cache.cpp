#include "memory/token_cache.h"

#include <algorithm>
#include <tuple>

#include "runtime/base/error.h"

namespace triphase {

TokenCache::TokenCache(const Shape& shape) : shape_(shape) {
  if (empty()) return;
  sets_.resize(static_cast<std::size_t>(shape.layers * shape.parts));
  for (Set& set : sets_) set.slots.resize(static_cast<std::size_t>(shape.slots));
  blocks_.resize(static_cast<std::size_t>(shape.blocks));
}

std::int32_t TokenCache::find(std::int64_t layer, std::int64_t part, BlockKey block,
                              std::int64_t offset) {
  if (empty()) return kNone;
  const Cached& cached = blocks_[static_cast<std::size_t>(block.index)];
  if (cached.id != block.id || cached.slots.empty()) return kNone;
  const std::int32_t at = cached.slots[cell(layer, part, offset)];
  if (at == kNone) return kNone;
  Slot& slot = set_of(layer, part).slots[static_cast<std::size_t>(at)];
  if (slot.last_step != step_) ++slot.uses;
  slot.last_step = step_;
  return at;
}

std::int32_t TokenCache::add(std::int64_t layer, std::int64_t part, BlockKey block,
                             std::int64_t offset) {
  if (empty()) return kNone;
  Set& set = set_of(layer, part);
  if (set.leaving_step != step_) list_leaving(set);
  std::int32_t at = kNone;
  while (at == kNone && !set.leaving.empty()) {
    // One that was listed may have been chosen since.
    const std::int32_t next = set.leaving.back();
    set.leaving.pop_back();
    if (set.slots[static_cast<std::size_t>(next)].last_step != step_) at = next;
  }
  if (at == kNone) return kNone;
  Slot& slot = set.slots[static_cast<std::size_t>(at)];
  if (slot.block.index >= 0) {
    Cached& old = blocks_[static_cast<std::size_t>(slot.block.index)];
    if (old.id == slot.block.id) old.slots[cell(layer, part, slot.offset)] = kNone;
  }
  slot = {block, static_cast<std::int32_t>(offset), 1, step_};
  Cached& cached = blocks_[static_cast<std::size_t>(block.index)];
  if (cached.id != block.id || cached.slots.empty()) {
    cached.id = block.id;
    cached.slots.assign(
        static_cast<std::size_t>(shape_.layers * shape_.parts * shape_.block_tokens), kNone);
  }
  cached.slots[cell(layer, part, offset)] = at;
  return at;
}

void TokenCache::list_leaving(Set& set) const {
  set.leaving_step = step_;
  set.leaving.clear();
  for (std::size_t at = 0; at < set.slots.size(); ++at) {
    if (set.slots[at].last_step < step_ - 1) set.leaving.push_back(static_cast<std::int32_t>(at));
  }
  std::ranges::sort(set.leaving, std::ranges::greater(), [&](std::int32_t at) {
    const Slot& slot = set.slots[static_cast<std::size_t>(at)];
    return std::tuple(slot.last_step, slot.uses, at);
  });
}

void TokenCache::check() const {
  std::int64_t listed = 0;
  for (std::int64_t layer = 0; layer < shape_.layers && !empty(); ++layer) {
    for (std::int64_t part = 0; part < shape_.parts; ++part) {
      const Set& set = sets_[static_cast<std::size_t>(layer * shape_.parts + part)];
      for (std::size_t at = 0; at < set.slots.size(); ++at) {
        const Slot& slot = set.slots[at];
        if (slot.block.index < 0) continue;
        const Cached& cached = blocks_[static_cast<std::size_t>(slot.block.index)];
        if (cached.id != slot.block.id) continue;  // of a block that is gone
        TRIPHASE_CHECK(
            cached.slots[cell(layer, part, slot.offset)] == static_cast<std::int32_t>(at),
            "a slot whose token is thought to be elsewhere");
        ++listed;
      }
    }
  }
  std::int64_t found = 0;
  for (const Cached& cached : blocks_) {
    found +=
        static_cast<std::int64_t>(cached.slots.size()) - std::ranges::count(cached.slots, kNone);
  }
  TRIPHASE_CHECK(found == listed, "tokens with slots that are not theirs");
}

}  // namespace triphase
