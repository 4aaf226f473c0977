#include "scheduler/kv/kv_book.h"

#include <algorithm>

#include "base/error.h"

namespace triphase {

KvBook::KvBook(const Shape& shape)
    : shape_(shape),
      pool_(shape.device_blocks, shape.host_blocks, shape.input_blocks, shape.windows.blocks) {
  TRIPHASE_CHECK(shape.block_tokens > 0 && shape.device_blocks >= 0 && shape.host_blocks >= 0 &&
                     shape.input_blocks >= 0,
                 "shape of the KV book");
  TRIPHASE_CHECK((shape.windows.tokens > 0) == (shape.windows.blocks > 0) &&
                     (shape.windows.blocks == 0 || !shape.mirrored),
                 "windows of the KV book");
  windows().begin();
}

KvBook::Prefix KvBook::find_prefix(std::span<const TokenId> prompt, std::uint64_t context_key,
                                   std::optional<std::int64_t> most) const {
  const auto size = static_cast<std::size_t>(shape_.block_tokens);
  const auto limit = static_cast<std::size_t>(most.value_or(pool_.capacity()));
  Prefix prefix;
  std::int32_t parent = KvBlock::kNone;
  for (std::size_t end = size; end < prompt.size() && prefix.blocks.size() < limit; end += size) {
    const std::int32_t child =
        pool_.prefixes().find(parent, context_key, prompt.subspan(end - size, size));
    if (child == KvBlock::kNone) break;
    const KvBlock& found = pool_[child];
    if (found.preempted) break;
    if (found.references == 0 && found.place != BlockPlace::kDevice) {
      // A sequence's blocks on the host are before those on the device.
      const bool behind_device =
          parent != KvBlock::kNone && pool_[parent].place > BlockPlace::kHost;
      if (found.place != BlockPlace::kHost || behind_device) break;
    }
    prefix.blocks.push_back(child);
    parent = child;
  }
  if (shape_.windows.blocks > 0) prefix.blocks.resize(reached_by_windows(prefix.blocks));
  for (const std::int32_t number : prefix.blocks) {
    prefix.referenced += pool_[number].references > 0 ? 1 : 0;
    prefix.offloaded += pool_[number].place <= BlockPlace::kOffloading ? 1 : 0;
    const bool unheld = pool_[number].references == 0;
    prefix.unheld_on_host += unheld && pool_[number].place == BlockPlace::kHost ? 1 : 0;
  }
  return prefix;
}

std::size_t KvBook::reached_by_windows(std::span<const std::int32_t> blocks) const {
  std::size_t most = 0;
  std::size_t kept_from = 0;  // from here on all have window blocks
  for (std::size_t end = 1; end <= blocks.size(); ++end) {
    if (!pool_.has_windows(blocks[end - 1])) kept_from = end;
    const std::int64_t first =
        first_block_in_window(static_cast<std::int64_t>(end) * shape_.block_tokens,
                              shape_.windows.tokens, shape_.block_tokens);
    if (static_cast<std::int64_t>(kept_from) <= first) most = end;
  }
  return most;
}

KvBook::Admission KvBook::admit(std::span<const TokenId> prompt, std::int64_t max_tokens,
                                std::uint64_t context_key, const KvReservation& reservation) {
  TRIPHASE_CHECK(max_tokens > 0 && max_tokens >= std::ssize(prompt),
                 "admission of an empty or overlong prompt");
  const Prefix prefix = find_prefix(prompt, context_key, reservation.most_shared_blocks);
  const auto shared = std::ssize(prefix.blocks);
  const std::int64_t blocks = blocks_for(max_tokens, shape_.block_tokens);
  const std::int64_t own = blocks - shared;
  const std::int64_t device = std::min(own, reservation.device_blocks.value_or(own));
  // Shared blocks that are on the device may have to leave it.
  const std::int64_t host = std::min(blocks - prefix.offloaded, reservation.host_blocks);
  const std::int64_t inputs = std::min(own, reservation.input_blocks);
  KvTiers& tiers = pool_.tiers();
  const std::int64_t taken =
      shared - prefix.referenced - prefix.unheld_on_host + window_reservation(max_tokens);
  if (device > tiers.device.free() - taken || host + prefix.unheld_on_host > tiers.host.free() ||
      inputs > tiers.inputs.free()) {
    return {};
  }
  TRIPHASE_CHECK(inputs == 0 || shared == 0, "cached hidden states of shared blocks");

  const SequenceId id = sequences_.add();
  KvSequence& admitted = sequences_.at(id);
  admitted = {.live = true,
              .tokens = shared * shape_.block_tokens,
              .reserved_device = device,
              .reserved_host = host,
              .reserved_inputs = inputs,
              .max_blocks = blocks,
              .input_blocks = inputs,
              .published_blocks = shared,
              .context_key = context_key};
  tiers.device.reserve(device);
  tiers.host.reserve(host);
  tiers.inputs.reserve(inputs);
  // Room for the whole sequence now, so that a decode step never allocates.
  admitted.blocks.reserve(static_cast<std::size_t>(blocks));
  for (const std::int32_t number : prefix.blocks) {
    pool_.share(number);
    admitted.blocks.push_back(number);
  }
  windows().admit(id);
  return {id, admitted.tokens};
}

std::int64_t KvBook::append_room(SequenceId id) const {
  const KvSequence& of = sequence(id);
  // Slabs of blocks that are still being offloaded cannot be taken yet.
  const KvTier& device = tiers().device;
  const std::int64_t there = device.places() - device.used();
  const std::int64_t unreserved = std::max<std::int64_t>(there - device.reserved(), 0);
  std::int64_t more = std::min(of.reserved_device + unreserved, there);
  if (shape_.windows.blocks > 0) {
    const std::int64_t windows =
        std::max<std::int64_t>(of.window_room - of.windows(), 0) + window_store_;
    more = std::min({more, windows, there / (1 + shape_.windows.blocks)});
  }
  return (std::ssize(of.blocks) + more) * shape_.block_tokens - of.tokens;
}

void KvBook::append(SequenceId id, std::int64_t count) {
  KvSequence& to = sequences_.at(id);
  to.tokens += count;
  while (std::ssize(to.blocks) * shape_.block_tokens < to.tokens) {
    const auto position = std::ssize(to.blocks);
    TRIPHASE_CHECK(position < to.max_blocks, "append beyond the length of the admission");
    const std::int32_t number = pool_.add(to);
    if (shape_.mirrored && to.reserved_host > to.mirrors) {
      KvMirrors(pool_, sequences_).begin(number, id);
    }
    if (position < to.input_blocks) pool_.take_input(number, to);
    to.blocks.push_back(number);
    windows().add(id);
  }
}

void KvBook::advance_windows() {
  if (shape_.windows.blocks == 0) return;
  for (std::size_t index = 0; index < sequences_.all().size(); ++index) {
    if (sequences_.all()[index].live) {
      windows().advance(SequenceId(static_cast<std::int64_t>(index)));
    }
  }
}

void KvBook::publish(SequenceId id, std::span<const TokenId> tokens) {
  KvSequence& of = sequences_.at(id);
  TRIPHASE_CHECK(std::ssize(tokens) <= of.tokens, "publishing tokens that have no place");
  PrefixIndex& prefixes = pool_.prefixes();
  const auto size = static_cast<std::size_t>(shape_.block_tokens);
  auto position = static_cast<std::size_t>(of.published_blocks);
  for (; (position + 1) * size <= tokens.size(); ++position) {
    const std::span<const TokenId> own_tokens = tokens.subspan(position * size, size);
    const std::int32_t parent = position == 0 ? KvBlock::kNone : of.blocks[position - 1];
    const std::int32_t own = of.blocks[position];
    const std::int32_t existing = prefixes.find(parent, of.context_key, own_tokens);
    if (existing == KvBlock::kNone) {
      prefixes.add(own, parent, of.context_key, own_tokens);
      continue;
    }
    // Places are ordered by age, so that an own block that was offloaded stays.
    if (pool_[existing].preempted || pool_[own].place != BlockPlace::kDevice) break;
    KvMirrors(pool_, sequences_).drop(own);
    windows().replace(id, static_cast<std::int64_t>(position), existing);
    pool_.replace(own, existing);
    of.blocks[position] = existing;
  }
  of.published_blocks = static_cast<std::int64_t>(position);
}

void KvBook::release(SequenceId id, KvMoves& moves) {
  KvPlacer placer = this->placer(moves);
  placer.wait();  // nothing ends while it moves
  placer.drop_reservations(id);
  windows().end(id);
  const KvSequence& of = sequence(id);
  pool_.tiers().inputs.reserve(-of.reserved_inputs);
  // Last block first: eviction then meets children before their parents.
  for (std::size_t position = of.blocks.size(); position-- > 0;) {
    const std::int32_t number = of.blocks[position];
    const KvBlock& held = pool_[number];
    if (held.references == 1 && held.host_block != KvBlock::kNone) {
      moves.push_back({KvMove::Kind::kGiveUp, number, KvBlock::kNone, held.host_block});
    }
    pool_.let_go(number);
  }
  sequences_.end(id);
}

void KvBook::give_up() {
  finish_moves();
  KvMoves moves;
  for (std::size_t index = 0; index < sequences_.all().size(); ++index) {
    const bool live = sequences_.all()[index].live;
    if (live) release(SequenceId(static_cast<std::int64_t>(index)), moves);
  }
  pool_.evict_all();
}

}  // namespace triphase
