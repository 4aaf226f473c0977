#include "scheduler/kv/kv_book.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace triphase {
namespace {

bool is_live(const std::vector<KvSequence>& sequences, SequenceId id) {
  return id.valid() && id.index() < sequences.size() && sequences[id.index()].live;
}

}  // namespace

KvBook::KvBook(const Shape& shape)
    : shape_(shape),
      device_(shape.device_blocks),
      host_(shape.host_blocks),
      inputs_(shape.input_blocks),
      numbers_(block_capacity()) {
  TRIPHASE_CHECK(shape.block_tokens > 0 && shape.device_blocks >= 0 && shape.host_blocks >= 0 &&
                     shape.input_blocks >= 0,
                 "shape of the KV book");
}

void KvBook::reserve() {
  for (KvTier* tier : {&device_, &host_, &inputs_, &numbers_}) tier->make_room();
  blocks_.reserve(static_cast<std::size_t>(block_capacity()));
}

KvSequence& KvBook::at(SequenceId id) {
  TRIPHASE_CHECK(is_live(sequences_, id), "unknown sequence");
  return sequences_[id.index()];
}

const KvSequence& KvBook::sequence(SequenceId id) const {
  TRIPHASE_CHECK(is_live(sequences_, id), "unknown sequence");
  return sequences_[id.index()];
}

std::int32_t KvBook::block_index(SequenceId id, std::int64_t block) const {
  const std::vector<std::int32_t>& blocks = sequence(id).blocks;
  TRIPHASE_CHECK(block >= 0 && block < static_cast<std::int64_t>(blocks.size()),
                 "a block that is not there");
  return blocks[static_cast<std::size_t>(block)];
}

std::int64_t KvBook::blocks_up_to(SequenceId id, BlockPlace place) const {
  const std::vector<std::int32_t>& blocks = sequence(id).blocks;
  return std::ranges::partition_point(
             blocks, [&](std::int32_t index) { return block(index).place <= place; }) -
         blocks.begin();
}

std::int64_t KvBook::shared_blocks(SequenceId id) const {
  // Whoever holds a block holds those before it too.
  const std::vector<std::int32_t>& blocks = sequence(id).blocks;
  return std::ranges::partition_point(
             blocks, [&](std::int32_t index) { return block(index).references > 1; }) -
         blocks.begin();
}

std::int64_t KvBook::input_blocks(SequenceId id) const {
  const KvSequence& of = sequence(id);
  const auto there = std::min(of.input_blocks, static_cast<std::int64_t>(of.blocks.size()));
  // A block taken over from another sequence may lack them.
  for (std::int64_t position = 0; position < there; ++position) {
    if (block(id, position).input_block == kNone) return position;
  }
  return of.input_blocks;
}

void KvBook::reference(std::int32_t index) {
  KvBlock& block = blocks_[static_cast<std::size_t>(index)];
  if (block.references++ == 0) {
    index_.hold(index);
    count_evictable(block, -1);
  }
}

void KvBook::dereference(std::int32_t index) {
  KvBlock& block = blocks_[static_cast<std::size_t>(index)];
  if (--block.references != 0) return;
  TRIPHASE_CHECK(block.place != BlockPlace::kOffloading && block.place != BlockPlace::kLoading,
                 "a block is given up while it moves");
  if (block.mirrored_for != kNone) drop_mirror(block);
  block.preempted = false;
  if (index_.contains(index)) {
    index_.let_go(index);
    count_evictable(block, 1);
  } else {
    free_block(index);
  }
}

void KvBook::count_evictable(const KvBlock& block, std::int64_t change) {
  if (block.place == BlockPlace::kDevice) device_.count_evictable(change);
  if (block.place == BlockPlace::kHost) host_.count_evictable(change);
  if (block.input_block != kNone) inputs_.count_evictable(change);
}

void KvBook::free_block(std::int32_t index) {
  KvBlock& block = blocks_[static_cast<std::size_t>(index)];
  if (block.slab != kNone) device_.give_back(block.slab);
  if (block.host_block != kNone) host_.give_back(block.host_block);
  if (block.input_block != kNone) inputs_.give_back(block.input_block);
  block = KvBlock{};
  numbers_.give_back(index);
}

void KvBook::evict_one_block() {
  const std::optional<std::int32_t> index = index_.evict();
  TRIPHASE_CHECK(index, "a reservation promised a place that is not there");
  count_evictable(block(*index), -1);
  free_block(*index);
}

std::int32_t KvBook::take(KvTier& tier) {
  while (!tier.has_place()) evict_one_block();
  return tier.take();
}

void KvBook::take_slab(KvBlock& block, KvSequence& payer) {
  if (payer.reserved_device > 0) {
    --payer.reserved_device;
    device_.reserve(-1);
  } else {
    TRIPHASE_CHECK(device_.free() > 0, "a block beyond the reservation and beyond what is free");
  }
  block.slab = take(device_);
}

std::int32_t KvBook::new_block(KvSequence& payer) {
  // As many as there are places of every tier together, but evicted ones may be needed.
  const std::int32_t index = take(numbers_);
  const auto at = static_cast<std::size_t>(index);
  if (at == blocks_.size()) blocks_.emplace_back();
  blocks_[at].id = ++last_block_id_;
  take_slab(blocks_[at], payer);
  return index;
}

SequenceId KvBook::new_sequence() {
  if (free_sequences_.empty()) {
    sequences_.emplace_back();
    return SequenceId(static_cast<std::int64_t>(sequences_.size()) - 1);
  }
  const SequenceId id(free_sequences_.back());
  free_sequences_.pop_back();
  return id;
}

KvBook::Prefix KvBook::find_prefix(std::span<const TokenId> prompt, std::uint64_t context_key,
                                   std::optional<std::int64_t> most) const {
  const auto size = static_cast<std::size_t>(shape_.block_tokens);
  const std::size_t limit = static_cast<std::size_t>(most.value_or(block_capacity()));
  Prefix prefix;
  std::int32_t parent = kNone;
  for (std::size_t end = size; end < prompt.size() && prefix.blocks.size() < limit; end += size) {
    const std::int32_t child = index_.find(parent, context_key, prompt.subspan(end - size, size));
    if (child == kNone) break;
    const KvBlock& found = block(child);
    // What ended prompts left on the host is not worth a trip.
    if (found.preempted || (found.references == 0 && found.place != BlockPlace::kDevice)) break;
    prefix.held += found.references > 0 ? 1 : 0;
    prefix.away += found.place <= BlockPlace::kOffloading ? 1 : 0;
    prefix.blocks.push_back(child);
    parent = child;
  }
  return prefix;
}

KvBook::Admission KvBook::admit(std::span<const TokenId> prompt, std::int64_t max_tokens,
                                std::uint64_t context_key, const Reservation& reservation) {
  TRIPHASE_CHECK(max_tokens > 0 && max_tokens >= static_cast<std::int64_t>(prompt.size()),
                 "admission of an empty or overlong prompt");
  const Prefix prefix = find_prefix(prompt, context_key, reservation.most_shared_blocks);
  const auto shared = static_cast<std::int64_t>(prefix.blocks.size());
  const std::int64_t blocks = (max_tokens + shape_.block_tokens - 1) / shape_.block_tokens;
  const std::int64_t own = blocks - shared;
  const std::int64_t device = std::min(own, reservation.device_blocks.value_or(own));
  const std::int64_t host = std::min(own, reservation.host_blocks);
  const std::int64_t inputs = std::min(own, reservation.input_blocks);
  if (device > device_.free() - (shared - prefix.held) || host > host_.free() ||
      inputs > inputs_.free()) {
    return {};
  }
  TRIPHASE_CHECK(inputs == 0 || shared == 0, "layer inputs of shared blocks");

  const SequenceId id = new_sequence();
  KvSequence& admitted = sequences_[id.index()];
  admitted = {.live = true,
              .tokens = shared * shape_.block_tokens,
              .reserved_device = device,
              .reserved_host = host,
              .reserved_inputs = inputs,
              .max_blocks = blocks,
              .input_blocks = inputs,
              .published_blocks = shared,
              .context_key = context_key};
  device_.reserve(device);
  host_.reserve(host);
  inputs_.reserve(inputs);
  // Room for the whole sequence now, so that a decode step never allocates.
  admitted.blocks.reserve(static_cast<std::size_t>(blocks));
  for (const std::int32_t index : prefix.blocks) {
    reference(index);
    drop_unheld_inputs(blocks_[static_cast<std::size_t>(index)]);
    admitted.blocks.push_back(index);
  }
  return {id, admitted.tokens};
}

std::int64_t KvBook::append_room(SequenceId id) const {
  const KvSequence& of = sequence(id);
  // Slabs of blocks that are still on their way to the host cannot be taken yet.
  const std::int64_t there = device_.places() - device_.used();
  const std::int64_t unreserved = std::max<std::int64_t>(there - device_.reserved(), 0);
  const std::int64_t more = std::min(of.reserved_device + unreserved, there);
  return (static_cast<std::int64_t>(of.blocks.size()) + more) * shape_.block_tokens - of.tokens;
}

void KvBook::append(SequenceId id, std::int64_t count) {
  KvSequence& to = at(id);
  to.tokens += count;
  while (static_cast<std::int64_t>(to.blocks.size()) * shape_.block_tokens < to.tokens) {
    const auto position = static_cast<std::int64_t>(to.blocks.size());
    TRIPHASE_CHECK(position < to.max_blocks, "append beyond the length of the admission");
    const std::int32_t index = new_block(to);
    KvBlock& added = blocks_[static_cast<std::size_t>(index)];
    added.references = 1;
    if (shape_.mirrored && to.reserved_host > to.mirrors) begin_mirror(added, id);
    if (position < to.input_blocks) {
      --to.reserved_inputs;
      inputs_.reserve(-1);
      added.input_block = take(inputs_);
    }
    to.blocks.push_back(index);
  }
}

// Layer inputs that an ended sequence left behind count as free. Its block goes to one that has no
// use for them, so they become free.
void KvBook::drop_unheld_inputs(KvBlock& block) {
  if (block.references != 1 || block.input_block == kNone) return;
  inputs_.give_back(std::exchange(block.input_block, kNone));
}

// Equal tokens after equal tokens have equal layer inputs.
void KvBook::take_over_inputs(KvBlock& from, KvBlock& to) {
  if (from.input_block == kNone) {
    drop_unheld_inputs(to);
  } else if (to.input_block == kNone) {
    to.input_block = std::exchange(from.input_block, kNone);
  }
}

void KvBook::publish(SequenceId id, std::span<const TokenId> tokens) {
  KvSequence& of = at(id);
  TRIPHASE_CHECK(static_cast<std::int64_t>(tokens.size()) <= of.tokens,
                 "publishing tokens that have no place");
  const auto size = static_cast<std::size_t>(shape_.block_tokens);
  auto position = static_cast<std::size_t>(of.published_blocks);
  for (; (position + 1) * size <= tokens.size(); ++position) {
    const std::span<const TokenId> own_tokens = tokens.subspan(position * size, size);
    const std::int32_t parent = position == 0 ? kNone : of.blocks[position - 1];
    const std::int32_t own = of.blocks[position];
    const std::int32_t existing = index_.find(parent, of.context_key, own_tokens);
    if (existing == kNone) {
      index_.add(own, parent, of.context_key, own_tokens);
      continue;
    }
    // What an ended prompt left on the host stays there: adopting it could leave this sequence
    // with an older block on the device, and places are ordered by age. So does one's own block
    // that has left the device.
    KvBlock& found = blocks_[static_cast<std::size_t>(existing)];
    const bool stays = found.references == 0 && found.place != BlockPlace::kDevice;
    if (stays || found.preempted || block(own).place != BlockPlace::kDevice) break;
    reference(existing);
    take_over_inputs(blocks_[static_cast<std::size_t>(own)], found);
    dereference(own);
    of.blocks[position] = existing;
  }
  of.published_blocks = static_cast<std::int64_t>(position);
}

void KvBook::drop_reservations(SequenceId id) {
  drop_mirrors(id);
  KvSequence& of = at(id);
  device_.reserve(-std::exchange(of.reserved_device, 0));
  host_.reserve(-std::exchange(of.reserved_host, 0));
}

void KvBook::release(SequenceId id, KvMoves& moves) {
  wait(moves);  // nothing ends while it moves
  drop_reservations(id);
  KvSequence& of = at(id);
  inputs_.reserve(-of.reserved_inputs);
  // Last block first: eviction then meets children before their parents.
  for (std::size_t position = of.blocks.size(); position-- > 0;) {
    const std::int32_t index = of.blocks[position];
    const KvBlock& held = block(index);
    if (held.references == 1 && held.host_block != kNone) {
      moves.push_back({KvMove::Kind::kGiveUp, index, kNone, held.host_block});
    }
    dereference(index);
  }
  of = KvSequence{};
  free_sequences_.push_back(id.value);
}

void KvBook::give_up() {
  finish_moves();
  KvMoves moves;
  for (std::size_t index = 0; index < sequences_.size(); ++index) {
    if (sequences_[index].live) release(SequenceId(static_cast<std::int64_t>(index)), moves);
  }
  while (index_.unheld() > 0) evict_one_block();
}

}  // namespace triphase
