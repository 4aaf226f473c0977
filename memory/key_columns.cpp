#include "memory/key_columns.h"

#include <algorithm>

namespace triphase {

KeyColumns::KeyColumns(std::int64_t places, std::int64_t layers, std::int64_t capacity)
    : layers_(layers),
      owners_(static_cast<std::size_t>(places)),
      places_(static_cast<std::size_t>(capacity), kNone),
      ready_(static_cast<std::size_t>(places * layers), 0) {
  for (std::int64_t place = places; place-- > 0;) free_.push_back(static_cast<std::int32_t>(place));
}

std::int32_t KeyColumns::find(const KvResidency& residency, SequenceId sequence,
                              std::int64_t block) const {
  const std::int32_t index = residency.block_index(sequence, block);
  const std::int32_t place = places_[static_cast<std::size_t>(index)];
  if (place == kNone) return kNone;
  const Owner& owner = owners_[static_cast<std::size_t>(place)];
  const bool its = owner.index == index && owner.id == residency.block_id(sequence, block);
  return its ? place : kNone;
}

std::int32_t KeyColumns::take(const KvResidency& residency, SequenceId sequence,
                              std::int64_t block) {
  const std::int32_t found = find(residency, sequence, block);
  if (found != kNone) return found;
  if (free_.empty() && !collected_) collect(residency);
  if (free_.empty()) return kNone;
  const std::int32_t place = free_.back();
  free_.pop_back();
  const std::int32_t index = residency.block_index(sequence, block);
  owners_[static_cast<std::size_t>(place)] = {index, residency.block_id(sequence, block)};
  places_[static_cast<std::size_t>(index)] = place;
  for (std::int64_t layer = 0; layer < layers_; ++layer) forget(page(LayerId(layer), place));
  peak_ = std::max(peak_, places() - static_cast<std::int64_t>(free_.size()));
  return place;
}

void KeyColumns::collect(const KvResidency& residency) {
  collected_ = true;
  for (std::size_t place = 0; place < owners_.size(); ++place) {
    Owner& owner = owners_[place];
    if (owner.index == kNone || residency.id_at(owner.index) == owner.id) continue;
    owner = {};
    free_.push_back(static_cast<std::int32_t>(place));
  }
}

}  // namespace triphase
