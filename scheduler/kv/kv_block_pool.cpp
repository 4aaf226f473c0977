#include "scheduler/kv/kv_block_pool.h"

#include <optional>
#include <utility>

#include "base/error.h"

namespace triphase {

KvBlockPool::KvBlockPool(std::int64_t device_blocks, std::int64_t host_blocks,
                         std::int64_t input_blocks, std::int64_t window_blocks)
    : tiers_{KvTier(device_blocks), KvTier(host_blocks), KvTier(input_blocks)},
      numbers_(device_blocks + host_blocks + input_blocks),
      window_blocks_(window_blocks) {}

void KvBlockPool::preallocate() {
  for (KvTier* tier : {&tiers_.device, &tiers_.host, &tiers_.inputs, &numbers_}) {
    tier->preallocate();
  }
  const auto blocks = static_cast<std::size_t>(capacity());
  blocks_.reserve(blocks);
  if (window_blocks_ == 0) return;
  windows_.reserve(blocks * static_cast<std::size_t>(window_blocks_));
  windows_let_go_.reserve(blocks);
}

std::int32_t KvBlockPool::new_block() {
  // There are as many numbers as places of all tiers, but evictable blocks may have them.
  const std::int32_t number = take(numbers_);
  if (static_cast<std::size_t>(number) == blocks_.size()) {
    blocks_.emplace_back();
    if (window_blocks_ > 0) {
      windows_.resize(windows_.size() + static_cast<std::size_t>(window_blocks_), kNone);
      windows_let_go_.emplace_back();
    }
  }
  at(number).id = ++last_id_;
  at(number).references = 1;
  return number;
}

std::int32_t KvBlockPool::add(KvSequence& payer) {
  const std::int32_t number = new_block();
  take_slab(number, payer);
  return number;
}

std::int32_t KvBlockPool::hold_windows(std::int32_t number) {
  if (!has_windows(number)) {
    for (std::int64_t index = 0; index < window_blocks_; ++index) {
      const std::int32_t window = new_block();
      at(window).window_of = number;
      at(window).slab = take(tiers_.device);
      windows_[first_window(number) + static_cast<std::size_t>(index)] = window;
    }
    return 0;
  }
  const std::int32_t before = at(windows(number).front()).references;
  if (before == 0) forget_unheld_windows(number);
  for (const std::int32_t window : windows(number)) ++at(window).references;
  return before;
}

std::int32_t KvBlockPool::let_go_windows(std::int32_t number) {
  for (const std::int32_t window : windows(number)) --at(window).references;
  const std::int32_t left = at(windows(number).front()).references;
  if (left > 0) return left;
  if (prefixes_.contains(number)) {
    const std::uint64_t now = prefixes_.now();
    windows_let_go_[number] = now;
    unheld_windows_.emplace(now, number);
    tiers_.device.count_evictable(window_blocks_);
  } else {
    free_windows(number);
  }
  return 0;
}

void KvBlockPool::move_windows(std::int32_t from, std::int32_t to) {
  for (std::int64_t index = 0; index < window_blocks_; ++index) {
    const std::int32_t window = std::exchange(windows_[first_window(from) + index], kNone);
    at(window).window_of = to;
    windows_[first_window(to) + index] = window;
  }
}

void KvBlockPool::forget_unheld_windows(std::int32_t number) {
  unheld_windows_.erase(windows_let_go_[number]);
  tiers_.device.count_evictable(-window_blocks_);
}

void KvBlockPool::free_windows(std::int32_t number) {
  for (std::int64_t index = 0; index < window_blocks_; ++index) {
    const std::size_t at_index = first_window(number) + static_cast<std::size_t>(index);
    const std::int32_t window = std::exchange(windows_[at_index], kNone);
    tiers_.device.give_back(at(window).slab);
    at(window) = KvBlock{};
    numbers_.give_back(window);
  }
}

void KvBlockPool::refer_to(std::int32_t number) {
  KvBlock& block = at(number);
  if (block.references++ == 0) {
    prefixes_.hold(number);
    tiers_.count_evictable(block, -1);
  }
}

void KvBlockPool::share(std::int32_t number) {
  refer_to(number);
  drop_unused_input(at(number));
}

void KvBlockPool::replace(std::int32_t own, std::int32_t equal) {
  refer_to(equal);
  KvBlock& from = at(own);
  KvBlock& to = at(equal);
  if (to.references == 1 && !to.on_device()) {
    if (to.host_block != kNone) drop_host(equal);
    to.slab = std::exchange(from.slab, kNone);
    to.place = BlockPlace::kDevice;
  }
  // Equal tokens after equal tokens have equal hidden states.
  if (from.input_block == kNone) {
    drop_unused_input(to);
  } else if (to.input_block == kNone) {
    to.input_block = std::exchange(from.input_block, kNone);
  }
  let_go(own);
}

void KvBlockPool::let_go(std::int32_t number) {
  KvBlock& block = at(number);
  if (--block.references != 0) return;
  TRIPHASE_CHECK(block.place != BlockPlace::kOffloading && block.place != BlockPlace::kLoading,
                 "a block is given up while it moves");
  TRIPHASE_CHECK(block.mirrored_for == kNone, "a block is given up with its mirror");
  block.preempted = false;
  if (prefixes_.contains(number)) {
    prefixes_.let_go(number);
    tiers_.count_evictable(block, 1);
  } else {
    free_block(number);
  }
}

void KvBlockPool::free_block(std::int32_t number) {
  if (has_windows(number)) {
    forget_unheld_windows(number);
    free_windows(number);
  }
  tiers_.give_back(at(number));
  at(number) = KvBlock{};
  numbers_.give_back(number);
}

void KvBlockPool::evict_one() {
  const std::optional<std::uint64_t> oldest = prefixes_.oldest();
  const auto windows = unheld_windows_.begin();
  if (windows != unheld_windows_.end() && (!oldest || windows->first < *oldest)) {
    const std::int32_t number = windows->second;
    forget_unheld_windows(number);
    free_windows(number);
    return;
  }
  const std::optional<std::int32_t> number = prefixes_.evict();
  TRIPHASE_CHECK(number, "a reservation promised a place that is not there");
  tiers_.count_evictable(at(*number), -1);
  free_block(*number);
}

void KvBlockPool::evict_all() {
  while (prefixes_.unheld() > 0 || !unheld_windows_.empty()) evict_one();
}

// Cached hidden states of an ended sequence count as free. A sequence that shares the block has no
// use for them, so they become free when it does.
void KvBlockPool::drop_unused_input(KvBlock& block) {
  if (block.references != 1 || block.input_block == kNone) return;
  tiers_.inputs.give_back(std::exchange(block.input_block, kNone));
}

std::int32_t KvBlockPool::take(KvTier& tier) {
  while (!tier.has_place()) evict_one();
  return tier.take();
}

void KvBlockPool::take_slab(std::int32_t number, KvSequence& payer) {
  if (payer.reserved_device > 0) {
    --payer.reserved_device;
    tiers_.device.reserve(-1);
  } else {
    TRIPHASE_CHECK(tiers_.device.free() > 0,
                   "a block beyond the reservation and beyond what is free");
  }
  at(number).slab = take(tiers_.device);
}

void KvBlockPool::take_input(std::int32_t number, KvSequence& payer) {
  --payer.reserved_inputs;
  tiers_.inputs.reserve(-1);
  at(number).input_block = take(tiers_.inputs);
}

void KvBlockPool::take_host(std::int32_t number) { at(number).host_block = take(tiers_.host); }

void KvBlockPool::drop_host(std::int32_t number) {
  tiers_.host.give_back(std::exchange(at(number).host_block, kNone));
}

void KvBlockPool::begin_move(std::int32_t number, BlockPlace place) {
  at(number).place = place;
  moving_.push_back(number);
  KvTier& from = place == BlockPlace::kOffloading ? tiers_.device : tiers_.host;
  from.count_moving(1);
}

void KvBlockPool::finish_moves() {
  for (const std::int32_t number : moving_) {
    KvBlock& block = at(number);
    if (block.place == BlockPlace::kOffloading) {
      block.place = BlockPlace::kHost;
      block.copied = false;
      tiers_.device.give_back(std::exchange(block.slab, kNone));
      tiers_.device.count_moving(-1);
    } else {
      block.place = BlockPlace::kDevice;
      drop_host(number);
      tiers_.host.count_moving(-1);
    }
  }
  moving_.clear();
}

}  // namespace triphase
