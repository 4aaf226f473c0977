#include "memory/kv/transposed_k.h"

#include <algorithm>

namespace triphase {

TransposedK::TransposedK(std::int64_t places, std::int64_t layers, std::int64_t capacity,
                         std::int64_t run)
    : layers_(layers),
      run_(run),
      owners_(static_cast<std::size_t>(places)),
      places_(static_cast<std::size_t>(capacity), kNone),
      taken_of_group_(static_cast<std::size_t>((places + run - 1) / run), 0),
      ready_(static_cast<std::size_t>(places * layers), 0) {}

std::int32_t TransposedK::find(const KvBook& book, SequenceId sequence, std::int64_t block) const {
  const std::int32_t index = book.table(sequence).number(block);
  const std::int32_t place = places_[index];
  if (place == kNone) return kNone;
  const Owner& owner = owners_[place];
  const bool its = owner.index == index && owner.id == book.pool()[index].id;
  return its ? place : kNone;
}

std::int32_t TransposedK::take(const KvBook& book, SequenceId sequence, std::int64_t block) {
  const std::int32_t found = find(book, sequence, block);
  if (found != kNone) return found;
  if (taken_ == places() && !collected_) collect(book);
  const std::int32_t place = choose(book, sequence, block);
  if (place == kNone) return kNone;
  const std::int32_t index = book.table(sequence).number(block);
  set_owner(place, {index, book.pool()[index].id});
  places_[index] = place;
  for (LayerId layer(0); layer.value < layers_; ++layer.value) ready(layer)[place] = 0;
  peak_ = std::max(peak_, taken_);
  return place;
}

void TransposedK::forget(const KvBook& book, SequenceId sequence, LayerId layer,
                         std::int64_t block) {
  if (places() == 0) return;
  const std::int32_t place = find(book, sequence, block);
  if (place == kNone) return;
  std::uint8_t& written = ready(layer)[place];
  forgotten_ += written;
  written = 0;
}

// Layers are written, and forgotten, one after the other: where the last has K^T, all have.
std::int64_t TransposedK::count_ready(std::span<const PageId> places, LayerId last) const {
  const auto missing = std::ranges::find_if(
      places, [&](PageId place) { return !place.valid() || !is_ready(last, place.value); });
  return missing - places.begin();
}

std::int32_t TransposedK::choose(const KvBook& book, SequenceId sequence, std::int64_t block) {
  if (taken_ == places()) return kNone;
  if (block > 0) {
    const std::int64_t next = std::int64_t{find(book, sequence, block - 1)} + 1;
    if (next % run_ != 0 && next < places() && is_free(next)) {
      return static_cast<std::int32_t>(next);
    }
  }
  const auto groups = std::ssize(taken_of_group_);
  while (free_group_ < groups && taken_of_group_[free_group_] > 0) {
    ++free_group_;
  }
  if (free_group_ < groups) return static_cast<std::int32_t>(free_group_ * run_);
  while (!is_free(free_place_)) ++free_place_;
  for (std::int64_t size = run_ / 2; size > 1; size /= 2) {
    for (std::int64_t first = free_place_ / size * size; first + size <= places(); first += size) {
      std::int64_t free = 0;
      while (free < size && is_free(first + free)) ++free;
      if (free == size) return static_cast<std::int32_t>(first);
    }
  }
  return static_cast<std::int32_t>(free_place_);
}

void TransposedK::set_owner(std::int32_t place, Owner owner) {
  owners_[place] = owner;
  const std::int32_t change = owner.index == kNone ? -1 : 1;
  std::int32_t& of_group = taken_of_group_[place / run_];
  taken_ += change;
  of_group += change;
  if (change > 0) return;
  free_place_ = std::min<std::int64_t>(free_place_, place);
  if (of_group == 0) free_group_ = std::min<std::int64_t>(free_group_, place / run_);
}

void TransposedK::collect(const KvBook& book) {
  collected_ = true;
  for (std::size_t place = 0; place < owners_.size(); ++place) {
    const Owner& owner = owners_[place];
    if (owner.index == kNone || book.pool()[owner.index].id == owner.id) continue;
    set_owner(static_cast<std::int32_t>(place), {});
  }
}

}  // namespace triphase
