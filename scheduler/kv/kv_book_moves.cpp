// How blocks change their place: to the host and back, mirrored there, discarded.

#include <algorithm>

#include "base/error.h"
#include "scheduler/kv/kv_book.h"

namespace triphase {

// Who takes places that moves have not left yet waits for these moves.
void KvBook::wait(KvMoves& moves) {
  if (!moving()) return;
  finish_moves();
  moves.push_back({KvMove::Kind::kWait});
}

void KvBook::finish_moves() {
  for (const std::int32_t index : moving_) {
    KvBlock& block = blocks_[static_cast<std::size_t>(index)];
    if (block.place == BlockPlace::kOffloading) {
      block.place = BlockPlace::kHost;
      block.copied = false;
      device_.give_back(block.slab);
      device_.count_leaving(-1);
      block.slab = kNone;
    } else {
      block.place = BlockPlace::kDevice;
      host_.give_back(block.host_block);
      host_.count_leaving(-1);
      block.host_block = kNone;
    }
  }
  moving_.clear();
}

void KvBook::offload_block(KvSequence& payer, std::int32_t index, KvMoves& moves) {
  KvBlock& block = blocks_[static_cast<std::size_t>(index)];
  const bool mirrored = block.mirrored_for != kNone;
  if (mirrored) end_mirror(block);
  if (payer.reserved_host > payer.mirrors) {
    --payer.reserved_host;
    host_.reserve(-1);
  } else {
    // A mirror counts as taken already.
    TRIPHASE_CHECK(host_.free() >= (mirrored ? 0 : 1), "a block beyond the host's room");
  }
  if (!mirrored) block.host_block = take(host_);
  block.place = BlockPlace::kOffloading;
  moving_.push_back(index);
  device_.count_leaving(1);
  const auto kind = mirrored ? KvMove::Kind::kMirrored : KvMove::Kind::kOffload;
  moves.push_back({kind, index, block.slab, block.host_block});
}

void KvBook::load_block(KvSequence& payer, std::int32_t index, KvMoves& moves) {
  KvBlock& block = blocks_[static_cast<std::size_t>(index)];
  TRIPHASE_CHECK(block.place == BlockPlace::kHost, "the block is not on the host");
  take_slab(block, payer);
  block.place = BlockPlace::kLoading;
  moving_.push_back(index);
  host_.count_leaving(1);
  moves.push_back({KvMove::Kind::kLoad, index, block.slab, block.host_block});
}

void KvBook::offload(SequenceId id, std::int64_t count, KvMoves& moves) {
  if (host_.leaving() > 0) wait(moves);
  KvSequence& of = at(id);
  const std::int64_t first = away_blocks(id);
  TRIPHASE_CHECK(first + count <= of.tokens / shape_.block_tokens,
                 "only full blocks on the device can be offloaded");
  for (std::int64_t position = first; position < first + count; ++position) {
    offload_block(of, block_index(id, position), moves);
  }
}

void KvBook::load(SequenceId id, std::int64_t count, KvMoves& moves) {
  if (device_.leaving() > 0) wait(moves);
  KvSequence& of = at(id);
  const std::int64_t end = away_blocks(id);
  TRIPHASE_CHECK(count <= host_blocks(id), "the block is not on the host");
  check_no_hole(id, end - count, end);
  for (std::int64_t position = end - count; position < end; ++position) {
    load_block(of, block_index(id, position), moves);
  }
}

// A holder of some of the blocks [first, end) that has younger ones on the host would be left with
// a hole.
void KvBook::check_no_hole(SequenceId id, std::int64_t first, std::int64_t end) const {
  if (shared_blocks(id) <= first) return;
  const std::vector<std::int32_t>& own = sequence(id).blocks;
  for (const KvSequence& other : sequences_) {
    const auto [mine, theirs] = std::ranges::mismatch(own, other.blocks);
    const std::int64_t common = std::min<std::int64_t>(mine - own.begin(), end);
    if (common <= first || common == static_cast<std::int64_t>(other.blocks.size())) continue;
    const std::int32_t next = other.blocks[static_cast<std::size_t>(common)];
    TRIPHASE_CHECK(block(next).on_device(), "a sharing sequence has younger blocks on the host");
  }
}

void KvBook::discard(SequenceId id, std::int64_t count, KvMoves& moves) {
  const std::int64_t first = recomputable_blocks(id);
  const std::int64_t end = first + count;
  TRIPHASE_CHECK(end <= away_blocks(id), "only host blocks become recomputable");
  // What is only on its way to the host is waited for.
  if (end > blocks_up_to(id, BlockPlace::kHost)) wait(moves);
  for (std::int64_t position = first; position < end; ++position) {
    KvBlock& block = own_block(id, position);
    TRIPHASE_CHECK(block.input_block != kNone,
                   "only blocks with saved layer inputs become recomputable");
    moves.push_back({KvMove::Kind::kGiveUp, block_index(id, position), kNone, block.host_block});
    host_.give_back(block.host_block);
    block.host_block = kNone;
    block.place = BlockPlace::kRecomputable;
  }
}

void KvBook::preempt(SequenceId id, KvMoves& moves) {
  TRIPHASE_CHECK(shared_blocks(id) == 0, "only a sequence that shares nothing waits on the host");
  if (host_.leaving() > 0) wait(moves);
  drop_reservations(id);
  KvSequence& of = at(id);
  const auto first = static_cast<std::size_t>(away_blocks(id));
  for (std::size_t position = 0; position < of.blocks.size(); ++position) {
    const std::int32_t index = of.blocks[position];
    blocks_[static_cast<std::size_t>(index)].preempted = true;
    if (position >= first) offload_block(of, index, moves);
  }
}

void KvBook::resume(SequenceId id, std::int64_t count, KvMoves& moves) {
  wait(moves);
  for (const std::int32_t index : sequence(id).blocks) {
    blocks_[static_cast<std::size_t>(index)].preempted = false;
  }
  load(id, count, moves);
  wait(moves);
}

void KvBook::begin_mirror(KvBlock& block, SequenceId payer) {
  block.host_block = take(host_);
  block.mirrored_for = payer.value;
  block.copied = true;
  ++at(payer).mirrors;
  host_.reserve(-1);  // it is taken
}

void KvBook::end_mirror(KvBlock& block) {
  --sequences_[static_cast<std::size_t>(block.mirrored_for)].mirrors;
  host_.reserve(1);
  block.mirrored_for = kNone;
}

void KvBook::drop_mirror(KvBlock& block) {
  end_mirror(block);
  host_.give_back(block.host_block);
  block.host_block = kNone;
  block.copied = false;
}

void KvBook::drop_mirrors(SequenceId payer) {
  const KvSequence& of = sequence(payer);
  if (of.mirrors == 0) return;
  for (const std::int32_t index : of.blocks) {
    KvBlock& block = blocks_[static_cast<std::size_t>(index)];
    if (block.mirrored_for == payer.value) drop_mirror(block);
  }
}

}  // namespace triphase
