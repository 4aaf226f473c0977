#include "scheduler/kv/kv_placer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace triphase {

void KvPlacer::wait() {
  if (!pool_->moving()) return;
  pool_->finish_moves();
  moves_->push_back({KvMove::Kind::kWait});
}

void KvPlacer::drop_reservations(SequenceId id) {
  KvMirrors(*pool_, *sequences_).drop_all(id);
  KvSequence& of = sequences_->at(id);
  pool_->tiers().device.reserve(-std::exchange(of.reserved_device, 0));
  pool_->tiers().host.reserve(-std::exchange(of.reserved_host, 0));
}

void KvPlacer::offload_block(KvSequence& payer, std::int32_t number) {
  const bool mirrored = (*pool_)[number].mirrored_for != KvBlock::kNone;
  if (mirrored) KvMirrors(*pool_, *sequences_).end(number);
  KvTier& host = pool_->tiers().host;
  if (payer.reserved_host > payer.mirrors) {
    --payer.reserved_host;
    host.reserve(-1);
  } else {
    // A mirror counts as taken already.
    TRIPHASE_CHECK(host.free() >= (mirrored ? 0 : 1), "a block beyond the host's room");
  }
  if (!mirrored) pool_->take_host(number);
  pool_->begin_move(number, BlockPlace::kOffloading);
  const KvBlock& block = (*pool_)[number];
  const auto kind = mirrored ? KvMove::Kind::kMirrored : KvMove::Kind::kOffload;
  moves_->push_back({kind, number, block.slab, block.host_block});
}

void KvPlacer::load_block(KvSequence& payer, std::int32_t number) {
  const KvBlock& block = (*pool_)[number];
  TRIPHASE_CHECK(block.place == BlockPlace::kHost, "the block is not on the host");
  pool_->take_slab(number, payer);
  pool_->begin_move(number, BlockPlace::kLoading);
  moves_->push_back({KvMove::Kind::kLoad, number, block.slab, block.host_block});
}

void KvPlacer::offload(SequenceId id, std::int64_t count) {
  if (pool_->tiers().host.moving() > 0) wait();
  KvSequence& of = sequences_->at(id);
  const std::int64_t first = table(id).offloaded();
  TRIPHASE_CHECK(first + count <= of.tokens / block_tokens_,
                 "only full blocks on the device can be offloaded");
  for (std::int64_t position = first; position < first + count; ++position) {
    offload_block(of, table(id).number(position));
  }
}

void KvPlacer::load(SequenceId id, std::int64_t count) {
  if (pool_->tiers().device.moving() > 0) wait();
  KvSequence& of = sequences_->at(id);
  const std::int64_t end = table(id).offloaded();
  TRIPHASE_CHECK(count <= table(id).on_host(), "the block is not on the host");
  check_no_hole(id, end - count, end);
  for (std::int64_t position = end - count; position < end; ++position) {
    load_block(of, table(id).number(position));
  }
}

// A sequence that has some of the blocks [first, end), and younger blocks on the host, would be
// left with a hole.
void KvPlacer::check_no_hole(SequenceId id, std::int64_t first, std::int64_t end) const {
  if (table(id).shared() <= first) return;
  const std::vector<std::int32_t>& own = (*sequences_)[id].blocks;
  for (const KvSequence& other : sequences_->all()) {
    const auto [mine, theirs] = std::ranges::mismatch(own, other.blocks);
    const std::int64_t common = std::min<std::int64_t>(mine - own.begin(), end);
    if (common <= first || common == std::ssize(other.blocks)) continue;
    const std::int32_t next = other.blocks[common];
    TRIPHASE_CHECK((*pool_)[next].on_device(), "a sharing sequence has younger blocks on the host");
  }
}

void KvPlacer::discard(SequenceId id, std::int64_t count) {
  const std::int64_t first = table(id).recomputable();
  const std::int64_t end = first + count;
  TRIPHASE_CHECK(end <= table(id).offloaded(), "only host blocks become recomputable");
  // Blocks that are still being offloaded are waited for.
  if (end > table(id).up_to(BlockPlace::kHost)) wait();
  for (std::int64_t position = first; position < end; ++position) {
    const std::int32_t number = table(id).number(position);
    KvBlock& block = pool_->at(number);
    TRIPHASE_CHECK(block.input_block != KvBlock::kNone,
                   "only blocks with cached hidden states become recomputable");
    moves_->push_back({KvMove::Kind::kGiveUp, number, KvBlock::kNone, block.host_block});
    pool_->drop_host(number);
    block.place = BlockPlace::kRecomputable;
  }
}

void KvPlacer::preempt(SequenceId id) {
  TRIPHASE_CHECK(table(id).shared() == 0, "only a sequence that shares nothing waits on the host");
  if (pool_->tiers().host.moving() > 0) wait();
  drop_reservations(id);
  KvSequence& of = sequences_->at(id);
  const auto first = static_cast<std::size_t>(table(id).offloaded());
  for (std::size_t position = 0; position < of.blocks.size(); ++position) {
    const std::int32_t number = of.blocks[position];
    pool_->at(number).preempted = true;
    if (position >= first) offload_block(of, number);
  }
}

void KvPlacer::resume(SequenceId id, std::int64_t count) {
  wait();
  for (const std::int32_t number : (*sequences_)[id].blocks) pool_->at(number).preempted = false;
  load(id, count);
  wait();
}

}  // namespace triphase
