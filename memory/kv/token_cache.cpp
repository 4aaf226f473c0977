#include "memory/kv/token_cache.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"

namespace triphase {

TokenCache::TokenCache(const Shape& shape) : shape_(shape) {
  if (empty()) return;
  sets_.resize(static_cast<std::size_t>(shape.layers * shape.parts));
  for (Set& set : sets_) set.slots.resize(static_cast<std::size_t>(shape.slots));
  blocks_.resize(static_cast<std::size_t>(shape.blocks));
}

TokenCache::Slot* TokenCache::find_for(std::int64_t step, std::int64_t layer, std::int64_t part,
                                       BlockKey block, std::int64_t offset, std::int32_t& at) {
  at = kNone;
  if (empty()) return nullptr;
  const Cached& cached = blocks_[static_cast<std::size_t>(block.index)];
  if (cached.id != block.id || cached.slots.empty()) return nullptr;
  at = cached.slots[cell(layer, part, offset)];
  if (at == kNone) return nullptr;
  Slot& slot = set_of(layer, part).slots[static_cast<std::size_t>(at)];
  if (slot.last_step < step) ++slot.uses;
  slot.last_step = std::max(slot.last_step, step);
  return &slot;
}

TokenCache::Hit TokenCache::look_up(std::int64_t layer, std::int64_t part, BlockKey block,
                                    std::int64_t offset) {
  Hit hit;
  Slot* slot = find_for(step_, layer, part, block, offset, hit.slot);
  if (slot == nullptr) return hit;
  hit.early = slot->early;
  set_early(*slot, false);
  return hit;
}

std::int32_t TokenCache::find(std::int64_t layer, std::int64_t part, BlockKey block,
                              std::int64_t offset) {
  return look_up(layer, part, block, offset).slot;
}

bool TokenCache::keep_for_next(std::int64_t layer, std::int64_t part, BlockKey block,
                               std::int64_t offset) {
  std::int32_t at = kNone;
  return find_for(step_ + 1, layer, part, block, offset, at) != nullptr;
}

std::int32_t TokenCache::add(std::int64_t layer, std::int64_t part, BlockKey block,
                             std::int64_t offset) {
  return add_for(step_, layer, part, block, offset);
}

std::int32_t TokenCache::add_for_next(std::int64_t layer, std::int64_t part, BlockKey block,
                                      std::int64_t offset) {
  const std::int32_t at = add_for(step_ + 1, layer, part, block, offset);
  if (at != kNone) set_early(set_of(layer, part).slots[static_cast<std::size_t>(at)], true);
  return at;
}

std::int32_t TokenCache::add_for(std::int64_t step, std::int64_t layer, std::int64_t part,
                                 BlockKey block, std::int64_t offset) {
  if (empty()) return kNone;
  Set& set = set_of(layer, part);
  if (set.leaving_step != step) list_leaving(set, step);
  std::int32_t at = kNone;
  while (at == kNone && !set.leaving.empty()) {
    // One that was listed may have been chosen since.
    const std::int32_t next = set.leaving.back();
    set.leaving.pop_back();
    if (set.slots[static_cast<std::size_t>(next)].last_step < step - 1) at = next;
  }
  if (at == kNone) return kNone;
  Slot& slot = set.slots[static_cast<std::size_t>(at)];
  unlist(layer, part, slot);
  set_early(slot, false);
  slot = {
      .block = block, .offset = static_cast<std::int32_t>(offset), .uses = 1, .last_step = step};
  Cached& cached = blocks_[static_cast<std::size_t>(block.index)];
  if (cached.id != block.id || cached.slots.empty()) {
    cached.id = block.id;
    cached.slots.assign(
        static_cast<std::size_t>(shape_.layers * shape_.parts * shape_.block_tokens), kNone);
  }
  cached.slots[cell(layer, part, offset)] = at;
  return at;
}

void TokenCache::unlist(std::int64_t layer, std::int64_t part, const Slot& slot) {
  if (slot.block.index < 0) return;
  Cached& cached = blocks_[static_cast<std::size_t>(slot.block.index)];
  if (cached.id == slot.block.id) cached.slots[cell(layer, part, slot.offset)] = kNone;
}

void TokenCache::end_early(std::int64_t layer, std::int64_t part, std::int32_t slot) {
  set_early(set_of(layer, part).slots[static_cast<std::size_t>(slot)], false);
}

void TokenCache::forget(std::int64_t layer, std::int64_t part, std::int32_t slot) {
  Slot& at = set_of(layer, part).slots[static_cast<std::size_t>(slot)];
  unlist(layer, part, at);
  set_early(at, false);
  at = {};
}

void TokenCache::list_leaving(Set& set, std::int64_t step) {
  set.leaving_step = step;
  set.leaving.clear();
  for (std::size_t at = 0; at < set.slots.size(); ++at) {
    if (set.slots[at].last_step < step - 1) set.leaving.push_back(static_cast<std::int32_t>(at));
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
  std::int64_t early = 0;
  for (const Set& set : sets_) early += std::ranges::count(set.slots, true, &Slot::early);
  TRIPHASE_CHECK(early == early_, "another number of tokens is early");
}

}  // namespace triphase
