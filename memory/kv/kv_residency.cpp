#include "memory/kv/kv_residency.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace triphase {
namespace {

std::int64_t blocks_for(std::int64_t tokens, std::int64_t block_tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

std::uint64_t mix(std::uint64_t value) {
  value ^= value >> 30;
  value *= 0xBF58476D1CE4E5B9ULL;
  value ^= value >> 27;
  value *= 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

}  // namespace

KvResidency::KvResidency(const Shape& shape) : shape_(shape) {
  TRIPHASE_CHECK(shape.layers > 0 && shape.block_tokens > 0 && shape.device_pages >= 0,
                 "KV residency shape");
  free_.reserve(static_cast<std::size_t>(shape.device_pages));
  for (std::int64_t page = shape.device_pages; page-- > 0;) free_.emplace_back(page);
  TRIPHASE_CHECK(shape.host_blocks >= 0, "KV residency shape");
  free_host_.reserve(static_cast<std::size_t>(shape.host_blocks));
  for (std::int64_t block = shape.host_blocks; block-- > 0;) {
    free_host_.push_back(static_cast<std::int32_t>(block));
  }
  TRIPHASE_CHECK(shape.input_blocks >= 0, "KV residency shape");
  free_inputs_.reserve(static_cast<std::size_t>(shape.input_blocks));
  for (std::int64_t block = shape.input_blocks; block-- > 0;) {
    free_inputs_.push_back(static_cast<std::int32_t>(block));
  }
  // All blocks there can ever be, so that a decode step that needs one allocates nothing.
  const auto blocks = static_cast<std::size_t>(shape.device_pages / shape.layers +
                                               shape.host_blocks + shape.input_blocks);
  blocks_.resize(blocks);
  free_blocks_.reserve(blocks);
  for (std::size_t index = blocks; index-- > 0;) {
    blocks_[index].pages.reserve(static_cast<std::size_t>(shape.layers));
    free_blocks_.push_back(static_cast<BlockIndex>(index));
  }
}

std::uint64_t KvResidency::hash(BlockIndex parent, std::uint64_t context_key,
                                std::span<const TokenId> tokens) const {
  // Equality is decided on the tokens themselves, so a collision costs time, never correctness.
  std::uint64_t value =
      mix(context_key + 0x9E3779B97F4A7C15ULL * static_cast<std::uint64_t>(parent + 2));
  for (const TokenId token : tokens) value = mix(value + static_cast<std::uint32_t>(token) + 1);
  return value;
}

KvResidency::BlockIndex KvResidency::find_child(BlockIndex parent, std::uint64_t context_key,
                                                std::span<const TokenId> tokens) const {
  const auto [begin, end] = index_.equal_range(hash(parent, context_key, tokens));
  for (auto entry = begin; entry != end; ++entry) {
    const Block& block = blocks_[static_cast<std::size_t>(entry->second)];
    if (block.parent == parent && block.context_key == context_key &&
        std::ranges::equal(block.tokens, tokens)) {
      return entry->second;
    }
  }
  return kNoBlock;
}

void KvResidency::reference(BlockIndex index) {
  Block& block = blocks_[static_cast<std::size_t>(index)];
  if (block.references++ == 0 && block.findable) {
    lru_.erase(block.lru);
    count_evictable(block, -1);
  }
}

void KvResidency::dereference(BlockIndex index) {
  Block& block = blocks_[static_cast<std::size_t>(index)];
  if (--block.references != 0) return;
  TRIPHASE_CHECK(block.place != BlockPlace::kLeaving && block.place != BlockPlace::kReturning,
                 "a block is given up while it moves");
  if (block.mirrored_for != kNone) drop_mirror(block);
  if (block.findable) {
    block.lru = lru_.insert(lru_.end(), index);
    count_evictable(block, 1);
  } else {
    free_block(index);
  }
}

void KvResidency::count_evictable(const Block& block, std::int64_t change) {
  if (block.place == BlockPlace::kDevice) evictable_blocks_ += change;
  if (block.place == BlockPlace::kHost) evictable_host_blocks_ += change;
  if (block.input_block != kNone) evictable_inputs_ += change;
}

void KvResidency::make_unfindable(BlockIndex index) {
  Block& block = blocks_[static_cast<std::size_t>(index)];
  const auto [begin, end] = index_.equal_range(block.key);
  for (auto entry = begin; entry != end; ++entry) {
    if (entry->second == index) {
      index_.erase(entry);
      break;
    }
  }
  if (block.parent != kNoBlock) --blocks_[static_cast<std::size_t>(block.parent)].children;
  block.findable = false;
}

void KvResidency::free_block(BlockIndex index) {
  Block& block = blocks_[static_cast<std::size_t>(index)];
  free_.insert(free_.end(), block.pages.begin(), block.pages.end());
  block.pages.clear();
  if (block.host_block != kNone) free_host_.push_back(block.host_block);
  block.host_block = kNone;
  if (block.input_block != kNone) free_inputs_.push_back(block.input_block);
  block.input_block = kNone;
  block.place = BlockPlace::kDevice;
  block.tokens.clear();
  block.live = false;
  block.findable = false;
  block.parent = kNoBlock;
  free_blocks_.push_back(index);
}

void KvResidency::evict_one_block() {
  TRIPHASE_CHECK(!lru_.empty(), "a reservation promised a page that is not there");
  const BlockIndex index = lru_.front();
  // Whoever holds a block holds its parent too, so children always leave before their parent.
  TRIPHASE_CHECK(blocks_[static_cast<std::size_t>(index)].children == 0, "eviction order");
  lru_.pop_front();
  count_evictable(blocks_[static_cast<std::size_t>(index)], -1);
  make_unfindable(index);
  free_block(index);
}

void KvResidency::take_pages(BlockIndex index, SequenceId payer) {
  Sequence& sequence = at(payer);
  Block& block = blocks_[static_cast<std::size_t>(index)];
  if (sequence.reserved_pages >= shape_.layers) {
    sequence.reserved_pages -= shape_.layers;
    reserved_ -= shape_.layers;
  } else {
    TRIPHASE_CHECK(free_pages() + evictable_pages() - reserved_ >= shape_.layers,
                   "a block beyond the reservation and beyond what is free");
  }
  while (free_pages() < shape_.layers) evict_one_block();
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    block.pages.push_back(free_.back());
    free_.pop_back();
  }
  peak_ = std::max(peak_, used_pages() - evictable_pages());
}

std::int32_t KvResidency::take_host_block() {
  while (free_host_.empty()) evict_one_block();
  const std::int32_t block = free_host_.back();
  free_host_.pop_back();
  peak_host_ =
      std::max(peak_host_, shape_.host_blocks - static_cast<std::int64_t>(free_host_.size()) -
                               evictable_host_blocks_);
  return block;
}

KvResidency::BlockIndex KvResidency::new_block(SequenceId payer) {
  // Blocks of every tier together are as many as there are places, but evicted ones may be needed.
  while (free_blocks_.empty()) evict_one_block();
  const BlockIndex index = free_blocks_.back();
  free_blocks_.pop_back();
  blocks_[static_cast<std::size_t>(index)].live = true;
  blocks_[static_cast<std::size_t>(index)].id = ++last_block_id_;
  take_pages(index, payer);
  return index;
}

void KvResidency::push_block(Sequence& sequence, BlockIndex index) const {
  sequence.blocks.push_back(index);
  const Block& block = blocks_[static_cast<std::size_t>(index)];
  for (std::size_t layer = 0; layer < sequence.pages.size(); ++layer) {
    sequence.pages[layer].push_back(block.pages.empty() ? PageId() : block.pages[layer]);
  }
}

KvResidency::Sequence& KvResidency::at(SequenceId id) {
  TRIPHASE_CHECK(id.valid() && id.index() < sequences_.size() && sequences_[id.index()].live,
                 "unknown sequence");
  return sequences_[id.index()];
}

const KvResidency::Sequence& KvResidency::at(SequenceId id) const {
  TRIPHASE_CHECK(id.valid() && id.index() < sequences_.size() && sequences_[id.index()].live,
                 "unknown sequence");
  return sequences_[id.index()];
}

KvResidency::Prefix KvResidency::find_prefix(std::span<const TokenId> prompt,
                                             std::uint64_t context_key) const {
  const auto block_tokens = static_cast<std::size_t>(shape_.block_tokens);
  Prefix prefix;
  BlockIndex parent = kNoBlock;
  for (std::size_t begin = 0; begin + block_tokens <= prompt.size() - 1; begin += block_tokens) {
    const BlockIndex child = find_child(parent, context_key, prompt.subspan(begin, block_tokens));
    if (child == kNoBlock) break;
    const Block& block = blocks_[static_cast<std::size_t>(child)];
    // What ended prompts left on the host is not worth a trip.
    if (block.references == 0 && block.place != BlockPlace::kDevice) break;
    if (block.references > 0) ++prefix.held;
    prefix.blocks.push_back(child);
    parent = child;
  }
  return prefix;
}

KvResidency::Admission KvResidency::admit(std::span<const TokenId> prompt, std::int64_t max_tokens,
                                          std::uint64_t context_key,
                                          const Reservation& reservation) {
  TRIPHASE_CHECK(!prompt.empty() && max_tokens >= static_cast<std::int64_t>(prompt.size()),
                 "admission of an empty or overlong prompt");
  std::vector<BlockIndex> shared = find_prefix(prompt, context_key).blocks;
  if (reservation.most_shared_blocks) {
    shared.resize(
        std::min(shared.size(), static_cast<std::size_t>(*reservation.most_shared_blocks)));
  }
  std::int64_t newly_held = 0;
  for (const BlockIndex index : shared) {
    if (blocks_[static_cast<std::size_t>(index)].references == 0) ++newly_held;
  }
  const std::int64_t blocks = blocks_for(max_tokens, shape_.block_tokens);
  const std::int64_t own = blocks - static_cast<std::int64_t>(shared.size());
  const std::int64_t needed =
      std::min(own, reservation.device_blocks.value_or(own)) * shape_.layers;
  const std::int64_t room =
      free_pages() + (evictable_blocks_ - newly_held) * shape_.layers - reserved_;
  const std::int64_t needed_host = std::min(own, reservation.host_blocks);
  const std::int64_t needed_inputs = std::min(own, reservation.input_blocks);
  if (needed > room || needed_host > free_host_blocks() || needed_inputs > free_input_blocks()) {
    return {};
  }

  Admission admission;
  if (free_sequences_.empty()) {
    admission.sequence = SequenceId(static_cast<std::int64_t>(sequences_.size()));
    sequences_.emplace_back();
  } else {
    admission.sequence = SequenceId(free_sequences_.back());
    free_sequences_.pop_back();
  }
  Sequence& sequence = sequences_[admission.sequence.index()];
  sequence.live = true;
  sequence.context_key = context_key;
  sequence.reserved_pages = needed;
  reserved_ += needed;
  sequence.reserved_host = needed_host;
  sequence.max_blocks = blocks;
  reserved_host_ += needed_host;
  TRIPHASE_CHECK(needed_inputs == 0 || shared.empty(), "layer inputs of shared blocks");
  sequence.input_blocks = sequence.reserved_inputs = needed_inputs;
  reserved_inputs_ += needed_inputs;
  sequence.blocks.reserve(static_cast<std::size_t>(blocks));
  sequence.pages.resize(static_cast<std::size_t>(shape_.layers));
  // Room for the whole sequence now, so that a decode step never allocates.
  for (auto& table : sequence.pages) table.reserve(static_cast<std::size_t>(blocks));
  for (const BlockIndex index : shared) {
    reference(index);
    drop_unheld_inputs(index);
    push_block(sequence, index);
  }
  sequence.published_blocks = static_cast<std::int64_t>(shared.size());
  sequence.tokens = sequence.published_blocks * shape_.block_tokens;
  admission.shared_tokens = sequence.tokens;
  return admission;
}

std::int64_t KvResidency::append_room(SequenceId id) const {
  const Sequence& sequence = at(id);
  const std::int64_t unreserved =
      std::max<std::int64_t>(0, free_pages() + evictable_pages() - reserved_);
  const std::int64_t blocks = sequence.reserved_pages / shape_.layers + unreserved / shape_.layers;
  return (static_cast<std::int64_t>(sequence.blocks.size()) + blocks) * shape_.block_tokens -
         sequence.tokens;
}

void KvResidency::append(SequenceId id, std::int64_t count) {
  Sequence& sequence = at(id);
  sequence.tokens += count;
  while (static_cast<std::int64_t>(sequence.blocks.size()) * shape_.block_tokens <
         sequence.tokens) {
    TRIPHASE_CHECK(static_cast<std::int64_t>(sequence.blocks.size()) < sequence.max_blocks,
                   "append beyond the length of the admission");
    const BlockIndex index = new_block(id);
    blocks_[static_cast<std::size_t>(index)].references = 1;
    if (shape_.mirrored && sequence.reserved_host > sequence.mirrors) begin_mirror(index, id);
    if (static_cast<std::int64_t>(sequence.blocks.size()) < sequence.input_blocks) {
      take_input_block(index, sequence);
    }
    push_block(sequence, index);
  }
}

// Layer inputs that an ended sequence left behind count as free. Its block goes to one that has no
// use for them, so they become free.
void KvResidency::drop_unheld_inputs(BlockIndex index) {
  Block& block = blocks_[static_cast<std::size_t>(index)];
  if (block.references != 1 || block.input_block == kNone) return;
  free_inputs_.push_back(block.input_block);
  block.input_block = kNone;
}

// Equal tokens after equal tokens have equal layer inputs.
void KvResidency::take_over_inputs(BlockIndex from, BlockIndex to) {
  Block& own = blocks_[static_cast<std::size_t>(from)];
  Block& existing = blocks_[static_cast<std::size_t>(to)];
  if (own.input_block == kNone) {
    drop_unheld_inputs(to);
  } else if (existing.input_block == kNone) {
    existing.input_block = std::exchange(own.input_block, kNone);
  }
}

void KvResidency::take_input_block(BlockIndex index, Sequence& sequence) {
  while (free_inputs_.empty()) evict_one_block();
  --sequence.reserved_inputs;
  --reserved_inputs_;
  blocks_[static_cast<std::size_t>(index)].input_block = free_inputs_.back();
  free_inputs_.pop_back();
  peak_inputs_ =
      std::max(peak_inputs_, shape_.input_blocks - static_cast<std::int64_t>(free_inputs_.size()));
}

void KvResidency::publish(SequenceId id, std::span<const TokenId> tokens) {
  Sequence& sequence = at(id);
  TRIPHASE_CHECK(static_cast<std::int64_t>(tokens.size()) <= sequence.tokens,
                 "publishing tokens that have no place");
  const auto block_tokens = static_cast<std::size_t>(shape_.block_tokens);
  auto position = static_cast<std::size_t>(sequence.published_blocks);
  for (; (position + 1) * block_tokens <= tokens.size(); ++position) {
    const std::span<const TokenId> own = tokens.subspan(position * block_tokens, block_tokens);
    const BlockIndex parent = position == 0 ? kNoBlock : sequence.blocks[position - 1];
    const BlockIndex existing = find_child(parent, sequence.context_key, own);
    if (existing != kNoBlock) {
      // What an ended prompt left on the host stays there: adopting it could leave this sequence
      // with an older block on the device, and homes are ordered by age.
      const Block& found = blocks_[static_cast<std::size_t>(existing)];
      if (found.references == 0 && found.place != BlockPlace::kDevice) break;
      reference(existing);
      take_over_inputs(sequence.blocks[position], existing);
      dereference(sequence.blocks[position]);
      sequence.blocks[position] = existing;
      const Block& other = blocks_[static_cast<std::size_t>(existing)];
      for (std::size_t layer = 0; layer < sequence.pages.size(); ++layer) {
        sequence.pages[layer][position] = other.pages.empty() ? PageId() : other.pages[layer];
      }
      continue;
    }
    const BlockIndex index = sequence.blocks[position];
    Block& block = blocks_[static_cast<std::size_t>(index)];
    block.findable = true;
    block.parent = parent;
    block.context_key = sequence.context_key;
    block.key = hash(parent, sequence.context_key, own);
    block.tokens.assign(own.begin(), own.end());
    if (parent != kNoBlock) ++blocks_[static_cast<std::size_t>(parent)].children;
    index_.emplace(block.key, index);
  }
  sequence.published_blocks = static_cast<std::int64_t>(position);
}

void KvResidency::release(SequenceId id) {
  drop_mirrors(id);
  Sequence& sequence = at(id);
  reserved_ -= sequence.reserved_pages;
  reserved_host_ -= sequence.reserved_host;
  reserved_inputs_ -= sequence.reserved_inputs;
  // Last block first: eviction then meets children before their parents.
  for (std::size_t position = sequence.blocks.size(); position-- > 0;) {
    dereference(sequence.blocks[position]);
  }
  sequence = Sequence{};
  free_sequences_.push_back(id.value);
}

KvResidency::Block& KvResidency::block_at(SequenceId id, std::int64_t block) {
  Sequence& sequence = at(id);
  TRIPHASE_CHECK(block >= 0 && block < static_cast<std::int64_t>(sequence.blocks.size()),
                 "a block that is not there");
  return blocks_[static_cast<std::size_t>(sequence.blocks[static_cast<std::size_t>(block)])];
}

const KvResidency::Block& KvResidency::block_at(SequenceId id, std::int64_t block) const {
  const Sequence& sequence = at(id);
  TRIPHASE_CHECK(block >= 0 && block < static_cast<std::int64_t>(sequence.blocks.size()),
                 "a block that is not there");
  return blocks_[static_cast<std::size_t>(sequence.blocks[static_cast<std::size_t>(block)])];
}

// A shared block has the same position in every sequence that holds it.
void KvResidency::update_page_tables(BlockIndex index) {
  const Block& block = blocks_[static_cast<std::size_t>(index)];
  std::int32_t left = block.references;
  for (Sequence& sequence : sequences_) {
    if (left == 0) return;
    if (!sequence.live) continue;
    const auto entry = std::ranges::find(sequence.blocks, index);
    if (entry == sequence.blocks.end()) continue;
    const auto position = static_cast<std::size_t>(entry - sequence.blocks.begin());
    for (std::size_t layer = 0; layer < sequence.pages.size(); ++layer) {
      sequence.pages[layer][position] = block.pages.empty() ? PageId() : block.pages[layer];
    }
    --left;
  }
}

void KvResidency::drop_reservations(SequenceId id) {
  drop_mirrors(id);
  Sequence& sequence = at(id);
  reserved_ -= std::exchange(sequence.reserved_pages, 0);
  reserved_host_ -= std::exchange(sequence.reserved_host, 0);
}

std::int64_t KvResidency::input_blocks(SequenceId id) const {
  const Sequence& sequence = at(id);
  const auto there =
      std::min(sequence.input_blocks, static_cast<std::int64_t>(sequence.blocks.size()));
  // A block taken over from another sequence may lack them.
  for (std::int64_t block = 0; block < there; ++block) {
    if (block_at(id, block).input_block == kNone) return block;
  }
  return sequence.input_blocks;
}

std::int64_t KvResidency::blocks(SequenceId sequence) const {
  return static_cast<std::int64_t>(at(sequence).blocks.size());
}

BlockPlace KvResidency::block_place(SequenceId sequence, std::int64_t block) const {
  return block_at(sequence, block).place;
}

std::int32_t KvResidency::host_block(SequenceId sequence, std::int64_t block) const {
  return block_at(sequence, block).host_block;
}

std::int32_t KvResidency::block_index(SequenceId sequence, std::int64_t block) const {
  static_cast<void>(block_at(sequence, block));
  return at(sequence).blocks[static_cast<std::size_t>(block)];
}

std::int64_t KvResidency::tokens(SequenceId sequence) const { return at(sequence).tokens; }

std::span<const PageId> KvResidency::pages(SequenceId sequence, LayerId layer) const {
  return at(sequence).pages[layer.index()];
}

}  // namespace triphase
