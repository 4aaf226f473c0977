#include "models/tokenizer/vocabulary.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace triphase {

void Vocabulary::reserve(std::size_t entries, std::size_t end_id) {
  entries_.reserve(end_id);
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(16, 2 * entries + 2));
  if (slots > slots_.size()) grow_slots(slots);
}

void Vocabulary::grow_slots(std::size_t slots) {
  slots_.assign(slots, kNoToken);
  for (std::size_t id = 0; id < entries_.size(); ++id) {
    if (entries_[id].length == kAbsent) continue;
    const auto token = static_cast<TokenId>(id);
    slots_[slot_of(text(token))] = token;
  }
}

// The slot that holds `text`, or the free slot where it belongs.
std::size_t Vocabulary::slot_of(std::string_view wanted) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = std::hash<std::string_view>{}(wanted)&mask;
  while (slots_[slot] != kNoToken && text(slots_[slot]) != wanted) slot = (slot + 1) & mask;
  return slot;
}

bool Vocabulary::add(TokenId id, std::string_view text) {
  if (contains(id)) return false;
  if (2 * (size_ + 1) > slots_.size()) grow_slots(slots_.empty() ? 16 : 2 * slots_.size());
  const std::size_t slot = slot_of(text);
  if (slots_[slot] != kNoToken) return false;
  const auto index = static_cast<std::size_t>(id);
  if (index >= entries_.size()) entries_.resize(index + 1);
  entries_[index] = Entry{bytes_.size(), static_cast<std::uint32_t>(text.size())};
  bytes_.append(text);
  slots_[slot] = id;
  ++size_;
  return true;
}

TokenId Vocabulary::find(std::string_view text) const {
  if (slots_.empty()) return kNoToken;
  return slots_[slot_of(text)];
}

std::string_view Vocabulary::text(TokenId id) const {
  if (!contains(id)) return {};
  const Entry& entry = entries_[id];
  return std::string_view(bytes_).substr(entry.offset, entry.length);
}

}  // namespace triphase
