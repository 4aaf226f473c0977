// How blocks change their place: to the host and back, mirrored there, discarded.

#include "base/error.h"
#include "memory/kv/kv_residency.h"

namespace triphase {

KvResidency::Move KvResidency::begin_offload(SequenceId id, std::int64_t position, bool open) {
  Sequence& sequence = at(id);
  Block& block = block_at(id, position);
  TRIPHASE_CHECK(block.place == BlockPlace::kDevice &&
                     (open || (position + 1) * shape_.block_tokens <= sequence.tokens),
                 "only closed blocks on the device can be offloaded");
  const bool mirrored = block.mirrored_for != kNone;
  if (mirrored) end_mirror(block);
  if (sequence.reserved_host > sequence.mirrors) {
    --sequence.reserved_host;
    --reserved_host_;
  } else {
    // A mirror counts as taken already.
    TRIPHASE_CHECK(free_host_blocks() >= (mirrored ? 0 : 1), "a block beyond the host's room");
  }
  if (!mirrored) block.host_block = take_host_block();
  block.place = BlockPlace::kLeaving;
  return {block.host_block, block.pages, mirrored};
}

void KvResidency::finish_offload(SequenceId id, std::int64_t position) {
  Block& block = block_at(id, position);
  TRIPHASE_CHECK(block.place == BlockPlace::kLeaving, "the block is not leaving");
  block.place = BlockPlace::kHost;
  block.copied = false;
  free_.insert(free_.end(), block.pages.begin(), block.pages.end());
  block.pages.clear();
  update_page_tables(at(id).blocks[static_cast<std::size_t>(position)]);
}

KvResidency::Move KvResidency::begin_reload(SequenceId id, std::int64_t position) {
  Block& block = block_at(id, position);
  TRIPHASE_CHECK(block.place == BlockPlace::kHost, "the block is not on the host");
  const BlockIndex index = at(id).blocks[static_cast<std::size_t>(position)];
  take_pages(index, id);
  block.place = BlockPlace::kReturning;
  return {block.host_block, block.pages};
}

void KvResidency::finish_reload(SequenceId id, std::int64_t position) {
  Block& block = block_at(id, position);
  TRIPHASE_CHECK(block.place == BlockPlace::kReturning, "the block is not returning");
  block.place = BlockPlace::kDevice;
  free_host_.push_back(block.host_block);
  block.host_block = kNone;
  update_page_tables(at(id).blocks[static_cast<std::size_t>(position)]);
}

void KvResidency::cancel_move(SequenceId id, std::int64_t position) {
  Block& block = block_at(id, position);
  if (block.place == BlockPlace::kLeaving) {
    block.place = BlockPlace::kDevice;
    free_host_.push_back(block.host_block);
    block.host_block = kNone;
    block.copied = false;
  } else if (block.place == BlockPlace::kReturning) {
    block.place = BlockPlace::kHost;
    free_.insert(free_.end(), block.pages.begin(), block.pages.end());
    block.pages.clear();
  }
}

void KvResidency::discard(SequenceId id, std::int64_t position) {
  Block& block = block_at(id, position);
  TRIPHASE_CHECK(block.place == BlockPlace::kHost && block.input_block != kNone,
                 "only host blocks with saved layer inputs become recomputable");
  free_host_.push_back(block.host_block);
  block.host_block = kNone;
  block.place = BlockPlace::kRecomputable;
}

void KvResidency::begin_mirror(BlockIndex index, SequenceId payer) {
  Block& block = blocks_[static_cast<std::size_t>(index)];
  block.host_block = take_host_block();
  block.mirrored_for = payer.value;
  block.copied = true;
  ++at(payer).mirrors;
  ++mirrors_;
}

void KvResidency::end_mirror(Block& block) {
  --sequences_[static_cast<std::size_t>(block.mirrored_for)].mirrors;
  --mirrors_;
  block.mirrored_for = kNone;
}

void KvResidency::drop_mirror(Block& block) {
  end_mirror(block);
  free_host_.push_back(block.host_block);
  block.host_block = kNone;
  block.copied = false;
}

void KvResidency::drop_mirrors(SequenceId payer) {
  const Sequence& sequence = at(payer);
  if (sequence.mirrors == 0) return;
  for (const BlockIndex index : sequence.blocks) {
    Block& block = blocks_[static_cast<std::size_t>(index)];
    if (block.mirrored_for == payer.value) drop_mirror(block);
  }
}

std::int32_t KvResidency::host_copy(SequenceId id, std::int64_t position) const {
  const Block& block = block_at(id, position);
  const bool there =
      block.copied || block.place == BlockPlace::kHost || block.place == BlockPlace::kReturning;
  return there ? block.host_block : -1;
}

}  // namespace triphase
