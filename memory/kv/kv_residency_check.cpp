// The invariants of the bookkeeping, counted anew from every sequence and block: for tests.

#include <algorithm>

#include "base/error.h"
#include "memory/kv/kv_residency.h"

namespace triphase {

void KvResidency::check() const {
  std::vector<std::int32_t> references(blocks_.size(), 0);
  std::int64_t reserved = 0;
  std::int64_t reserved_host = 0;
  std::int64_t reserved_inputs = 0;
  for (const Sequence& sequence : sequences_) {
    if (!sequence.live) continue;
    reserved += sequence.reserved_pages;
    reserved_host += sequence.reserved_host;
    reserved_inputs += sequence.reserved_inputs;
    TRIPHASE_CHECK(static_cast<std::int64_t>(sequence.blocks.size()) ==
                       (sequence.tokens + shape_.block_tokens - 1) / shape_.block_tokens,
                   "blocks against tokens");
    for (std::size_t position = 0; position < sequence.blocks.size(); ++position) {
      const auto index = static_cast<std::size_t>(sequence.blocks[position]);
      ++references[index];
      for (std::size_t layer = 0; layer < sequence.pages.size(); ++layer) {
        const Block& block = blocks_[index];
        TRIPHASE_CHECK(sequence.pages[layer][position] ==
                               (block.pages.empty() ? PageId() : block.pages[layer]) ||
                           block.place == BlockPlace::kReturning,
                       "page table");
      }
    }
  }
  TRIPHASE_CHECK(reserved == reserved_ && reserved_host == reserved_host_ &&
                     reserved_inputs == reserved_inputs_,
                 "reservation sum");
  std::vector<bool> seen(static_cast<std::size_t>(shape_.device_pages), false);
  const auto see = [&seen](PageId page) {
    TRIPHASE_CHECK(page.valid() && page.index() < seen.size() && !seen[page.index()],
                   "a page is held twice");
    seen[page.index()] = true;
  };
  std::vector<bool> seen_host(static_cast<std::size_t>(shape_.host_blocks), false);
  const auto see_host = [&seen_host](std::int32_t block) {
    const auto index = static_cast<std::size_t>(block);
    TRIPHASE_CHECK(block >= 0 && index < seen_host.size() && !seen_host[index],
                   "a host block is held twice");
    seen_host[index] = true;
  };
  std::vector<bool> seen_inputs(static_cast<std::size_t>(shape_.input_blocks), false);
  const auto see_inputs = [&seen_inputs](std::int32_t block) {
    const auto index = static_cast<std::size_t>(block);
    TRIPHASE_CHECK(block >= 0 && index < seen_inputs.size() && !seen_inputs[index],
                   "an input block is held twice");
    seen_inputs[index] = true;
  };
  std::int64_t evictable = 0;
  std::int64_t evictable_host = 0;
  std::int64_t evictable_inputs = 0;
  std::int64_t evictable_blocks = 0;
  std::int64_t mirrors = 0;
  for (std::size_t index = 0; index < blocks_.size(); ++index) {
    const Block& block = blocks_[index];
    TRIPHASE_CHECK(block.references == references[index], "reference count");
    TRIPHASE_CHECK(!block.live || block.references > 0 || block.findable, "a lost block");
    if (block.findable && block.references == 0) {
      ++evictable_blocks;
      evictable += block.place == BlockPlace::kDevice ? 1 : 0;
      evictable_host += block.place == BlockPlace::kHost ? 1 : 0;
      evictable_inputs += block.input_block != kNone ? 1 : 0;
    }
    TRIPHASE_CHECK(block.place != BlockPlace::kRecomputable || block.input_block != kNone,
                   "a block that nothing can bring back");
    const bool nowhere = block.place == BlockPlace::kRecomputable;
    if (block.input_block != kNone) see_inputs(block.input_block);
    const bool on_host = block.live && block.place != BlockPlace::kDevice && !nowhere;
    const bool mirrored = block.mirrored_for != kNone;
    mirrors += mirrored ? 1 : 0;
    TRIPHASE_CHECK(
        !mirrored || (block.place == BlockPlace::kDevice && block.copied && block.references > 0),
        "a mirror of a block that is not on the device");
    TRIPHASE_CHECK((block.host_block != kNone) == (on_host || mirrored),
                   "host block against place");
    TRIPHASE_CHECK(
        !block.live || block.pages.empty() == (block.place == BlockPlace::kHost || nowhere),
        "pages against place");
    for (const PageId page : block.pages) see(page);
    if (block.host_block != kNone) see_host(block.host_block);
  }
  for (const PageId page : free_) see(page);
  for (const std::int32_t block : free_host_) see_host(block);
  for (const std::int32_t block : free_inputs_) see_inputs(block);
  TRIPHASE_CHECK(std::ranges::all_of(seen_inputs, [](bool held) { return held; }),
                 "a lost input block");
  TRIPHASE_CHECK(std::ranges::all_of(seen_host, [](bool held) { return held; }),
                 "a lost host block");
  TRIPHASE_CHECK(std::ranges::all_of(seen, [](bool held) { return held; }), "a lost page");
  TRIPHASE_CHECK(evictable == evictable_blocks_ && evictable_host == evictable_host_blocks_ &&
                     evictable_inputs == evictable_inputs_ &&
                     evictable_blocks == static_cast<std::int64_t>(lru_.size()),
                 "evictable blocks");
  TRIPHASE_CHECK(free_pages() + evictable_pages() >= reserved_, "a promise that cannot be kept");
  TRIPHASE_CHECK(free_input_blocks() >= 0, "a promise of layer inputs that cannot be kept");
  std::int64_t counted = 0;
  for (const Sequence& sequence : sequences_) {
    TRIPHASE_CHECK(sequence.mirrors <= sequence.reserved_host, "mirrors beyond what is reserved");
    counted += sequence.mirrors;
  }
  TRIPHASE_CHECK(mirrors == mirrors_ && counted == mirrors_, "mirrors");
  TRIPHASE_CHECK(free_host_blocks() >= 0, "a host promise that cannot be kept");
}

}  // namespace triphase
