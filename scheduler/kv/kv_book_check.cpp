// The invariants of the book, counted anew from every sequence and block: for tests.

#include <algorithm>

#include "base/error.h"
#include "scheduler/kv/kv_book.h"

namespace triphase {
namespace {

// Whether every place of a tier is held by one block or free.
class TierCensus {
 public:
  explicit TierCensus(const KvTier& tier)
      : tier_(&tier), held_(static_cast<std::size_t>(tier.places()), false) {}

  void see(std::int32_t place) {
    if (place == KvBlock::kNone) return;
    const auto index = static_cast<std::size_t>(place);
    TRIPHASE_CHECK(place >= 0 && index < held_.size() && !held_[index], "a place is held twice");
    held_[index] = true;
  }
  void end() const {
    TRIPHASE_CHECK(std::ranges::count(held_, true) == tier_->taken(), "a lost place");
  }

 private:
  const KvTier* tier_;
  std::vector<bool> held_;
};

}  // namespace

void KvBook::check() const {
  check_sequences();
  pool_.check();
  TRIPHASE_CHECK(tiers().device.free() >= 0, "a promise that cannot be kept");
  TRIPHASE_CHECK(tiers().inputs.free() >= 0,
                 "a promise of cached hidden states that cannot be kept");
  TRIPHASE_CHECK(tiers().host.free() >= 0, "a host promise that cannot be kept");
}

void KvBook::check_sequences() const {
  std::vector<std::int32_t> references(pool_.all().size(), 0);
  std::int64_t device = 0;
  std::int64_t host = 0;
  std::int64_t inputs = 0;
  std::int64_t windows = window_store(shape_.windows, shape_.block_tokens);
  std::int64_t stored = windows;
  for (const KvSequence& of : sequences_.all()) {
    if (!of.live) continue;
    device += of.reserved_device;
    windows += of.window_room;
    if (shape_.windows.blocks > 0) {
      stored -= std::max<std::int64_t>(of.windows() - of.window_room, 0);
    }
    host += of.reserved_host - of.mirrors;
    inputs += of.reserved_inputs;
    TRIPHASE_CHECK(of.mirrors <= of.reserved_host, "mirrors beyond what is reserved");
    const SequenceId id(&of - sequences_.all().data());
    TRIPHASE_CHECK(of.mirrors == std::ranges::count_if(of.blocks,
                                                       [&](std::int32_t index) {
                                                         return pool_[index].mirrored_for ==
                                                                id.value;
                                                       }),
                   "mirrors");
    TRIPHASE_CHECK(std::ssize(of.blocks) == blocks_for(of.tokens, shape_.block_tokens),
                   "blocks against tokens");
    TRIPHASE_CHECK(std::ranges::is_sorted(of.blocks, {},
                                          [&](std::int32_t index) { return pool_[index].place; }),
                   "places are ordered by age");
    for (const std::int32_t index : of.blocks) ++references[index];
    TRIPHASE_CHECK(of.windows() >= 0, "windows behind the last block");
    for (std::int64_t position = of.first_window; position < std::ssize(of.blocks); ++position) {
      const std::int32_t index = of.blocks[position];
      TRIPHASE_CHECK(shape_.windows.blocks == 0 || pool_.has_windows(index), "a window's block");
      for (const std::int32_t window : pool_.windows(index)) {
        ++references[window];
      }
    }
  }
  TRIPHASE_CHECK(stored == window_store_, "window blocks of prompts");
  // Every window block that is held has been paid for.
  device += windows * shape_.windows.blocks;
  for (const KvBlock& block : pool_.all()) {
    if (block.window_of != KvBlock::kNone && block.references > 0) --device;
  }
  TRIPHASE_CHECK(device == tiers().device.reserved() && host == tiers().host.reserved() &&
                     inputs == tiers().inputs.reserved(),
                 "reservation sum");
  for (std::size_t index = 0; index < references.size(); ++index) {
    TRIPHASE_CHECK(pool_.all()[index].references == references[index], "reference count");
  }
}

void KvBlockPool::check() const {
  TierCensus slabs(tiers_.device);
  TierCensus hosts(tiers_.host);
  TierCensus inputs(tiers_.inputs);
  TierCensus numbers(numbers_);
  std::int64_t evictable_device = 0;
  std::int64_t evictable_host = 0;
  std::int64_t evictable_inputs = 0;
  std::int64_t unheld = 0;
  std::int64_t offloading = 0;
  std::int64_t loading = 0;
  for (std::size_t at = 0; at < blocks_.size(); ++at) {
    const auto index = static_cast<std::int32_t>(at);
    const KvBlock& block = blocks_[at];
    if (block.id == 0) continue;
    numbers.see(index);
    slabs.see(block.slab);
    hosts.see(block.host_block);
    inputs.see(block.input_block);
    const bool recomputable = block.place == BlockPlace::kRecomputable;
    const bool mirrored = block.mirrored_for != KvBlock::kNone;
    offloading += block.place == BlockPlace::kOffloading ? 1 : 0;
    loading += block.place == BlockPlace::kLoading ? 1 : 0;
    if (block.window_of != KvBlock::kNone) {
      TRIPHASE_CHECK(std::ranges::count(windows(block.window_of), index) == 1 &&
                         block.place == BlockPlace::kDevice && block.slab != KvBlock::kNone,
                     "a window block");
      const bool held = block.references > 0;
      const auto let_go = unheld_windows_.find(windows_let_go_[block.window_of]);
      TRIPHASE_CHECK(held || (let_go != unheld_windows_.end() && let_go->second == block.window_of),
                     "a lost window block");
      evictable_device += held ? 0 : 1;
      continue;
    }
    if (block.references == 0) {
      TRIPHASE_CHECK(prefixes_.contains(index), "a lost block");
      ++unheld;
      evictable_device += block.place == BlockPlace::kDevice ? 1 : 0;
      evictable_host += block.place == BlockPlace::kHost ? 1 : 0;
      evictable_inputs += block.input_block != KvBlock::kNone ? 1 : 0;
    }
    TRIPHASE_CHECK(!recomputable || block.input_block != KvBlock::kNone,
                   "a block that nothing can bring back");
    TRIPHASE_CHECK(!block.preempted || block.references == 1, "a shared block that waits");
    TRIPHASE_CHECK(
        !mirrored || (block.place == BlockPlace::kDevice && block.copied && block.references > 0),
        "a mirror of a block that is not on the device");
    TRIPHASE_CHECK((block.host_block == KvBlock::kNone) ==
                       (!mirrored && (block.place == BlockPlace::kDevice || recomputable)),
                   "host block against place");
    TRIPHASE_CHECK((block.slab == KvBlock::kNone) == (block.place <= BlockPlace::kHost),
                   "slab against place");
  }
  for (const TierCensus* census : {&slabs, &hosts, &inputs, &numbers}) census->end();
  TRIPHASE_CHECK(evictable_device == tiers_.device.evictable() &&
                     evictable_host == tiers_.host.evictable() &&
                     evictable_inputs == tiers_.inputs.evictable() && unheld == prefixes_.unheld(),
                 "evictable blocks");
  TRIPHASE_CHECK(offloading == tiers_.device.moving() && loading == tiers_.host.moving() &&
                     offloading + loading == std::ssize(moving_),
                 "blocks on their way");
}

}  // namespace triphase
