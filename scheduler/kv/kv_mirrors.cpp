#include "scheduler/kv/kv_mirrors.h"

namespace triphase {

void KvMirrors::begin(std::int32_t number, SequenceId owner) {
  pool_->take_host(number);
  KvBlock& block = pool_->at(number);
  block.mirrored_for = owner.value;
  block.copied = true;
  ++sequences_->at(owner).mirrors;
  pool_->tiers().host.reserve(-1);  // it is taken
}

void KvMirrors::end(std::int32_t number) {
  KvBlock& block = pool_->at(number);
  --sequences_->at(SequenceId(block.mirrored_for)).mirrors;
  pool_->tiers().host.reserve(1);
  block.mirrored_for = KvBlock::kNone;
}

void KvMirrors::drop(std::int32_t number) {
  if (pool_->at(number).mirrored_for == KvBlock::kNone) return;
  end(number);
  pool_->drop_host(number);
  pool_->at(number).copied = false;
}

void KvMirrors::drop_all(SequenceId owner) {
  const KvSequence& of = (*sequences_)[owner];
  if (of.mirrors == 0) return;
  for (const std::int32_t number : of.blocks) {
    if ((*pool_)[number].mirrored_for == owner.value) drop(number);
  }
}

}  // namespace triphase
