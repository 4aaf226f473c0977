#include <xxhash.h>

#include "runtime/job/prompt_file.h"

namespace triphase {
namespace {

constexpr int kIndexBits = 40;  // 10^12 lines
constexpr std::uint64_t kIndexMask = (std::uint64_t{1} << kIndexBits) - 1;

}  // namespace

std::optional<std::uint64_t> SeenIds::insert(std::string_view id, std::uint64_t index) {
  // Full at 4/5: linear probing stays short and the table small.
  if ((size_ + 1) * 5 > slots_.size() * 4) grow();
  const XXH128_hash_t hash = XXH3_128bits(id.data(), id.size());
  const std::uint64_t tag = hash.low64 & ~kIndexMask;
  const std::uint64_t mask = slots_.size() - 1;
  for (std::uint64_t at = hash.high64 & mask;; at = (at + 1) & mask) {
    Slot& slot = slots_[at];
    if (slot.low == 0) {
      slot = {hash.high64, tag | ((index + 1) & kIndexMask)};
      ++size_;
      return std::nullopt;
    }
    if (slot.high == hash.high64 && (slot.low & ~kIndexMask) == tag) {
      return (slot.low & kIndexMask) - 1;
    }
  }
}

void SeenIds::grow() {
  std::vector<Slot> old(slots_.empty() ? 1024 : slots_.size() * 2);
  old.swap(slots_);
  const std::uint64_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.low == 0) continue;
    std::uint64_t at = slot.high & mask;
    while (slots_[at].low != 0) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

}  // namespace triphase
