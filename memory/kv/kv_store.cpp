#include "memory/kv/kv_store.h"

#include <algorithm>
#include <exception>

#include "base/error.h"

namespace triphase {
namespace {

TransposedK transposed_k_places(const KvShape& shape, const KvSizes& sizes, std::int64_t numbers) {
  if (!shape.transposed_k) return {};
  const std::int64_t column_bytes =
      shape.block_tokens * static_cast<std::int64_t>(dtype_bytes(shape.dtype));
  return {sizes.transposed_k_blocks, shape.layers, numbers,
          std::max<std::int64_t>(1, sizes.transposed_k_run_bytes / column_bytes)};
}

}  // namespace

KvStore::KvStore(const KvShape& shape, const KvSizes& sizes, MemoryPool& device, MemoryPool* host,
                 TransferEngine* transfers)
    : transfers_(transfers),
      book_({.block_tokens = shape.block_tokens,
             .device_blocks = sizes.device_pages / shape.slab_pages(),
             .host_blocks = sizes.host_blocks,
             .input_blocks = sizes.input_blocks,
             .mirrored = shape.host_attention,
             .windows = {.tokens = shape.sets.window(),
                         .blocks = shape.sets.window_blocks(),
                         .step_tokens = sizes.step_tokens}}),
      memory_(shape, sizes, book_.pool().capacity(), device, host),
      partial_pages_(sizes.partial_pages, shape.layers),
      transposed_k_(transposed_k_places(shape, sizes, book_.pool().capacity())),
      written_(sizes.host_blocks, sizes.input_blocks, sizes.cache_pages > 0),
      prefetched_(transfers) {
  TRIPHASE_CHECK(sizes.host_blocks == 0 || transfers != nullptr,
                 "a host tier without memory or link");
  book_.preallocate();
}

KvStore::~KvStore() {
  // Others may move tokens or hidden states of this store still, after a run that failed.
  if (transfers_ != nullptr) transfers_->drain();
}

void KvStore::carry_out(std::span<const KvMove> moves) {
  for (const KvMove& move : moves) {
    if (move.kind == KvMove::Kind::kWait) wait_for_copies();
    if (move.kind == KvMove::Kind::kGiveUp) prefetched_.stop_reading(move.block, move.host_block);
    const bool load = move.kind == KvMove::Kind::kLoad;
    if (move.kind != KvMove::Kind::kOffload && !load) continue;
    if (!load) written_.note_host_block(move.host_block);
    runs_.clear();
    for (LayerId layer(0); layer.value < memory_.shape().layers; ++layer.value) {
      if (memory_.shape().sets.of(layer).set != 0) continue;
      runs_.push_back(
          memory_.block_run(memory_.slab_page(move.slab, layer), move.host_block, layer));
    }
    const Lane lane = load ? Lane::kToDevice : Lane::kToHost;
    copies_.push_back({transfers_->move_tokens(lane, memory_.geometry(), runs_), move.block});
  }
}

void KvStore::wait_for_copies() {
  for (const Copy& copy : copies_) transfers_->wait(copy.ticket);
  copies_.clear();
}

void KvStore::settle() {
  wait_for_copies();
  book_.finish_moves();
}

void KvStore::release(SequenceId sequence) {
  moves_.clear();
  book_.release(sequence, moves_);
  carry_out(moves_);
  partial_pages_.forget(sequence);
}

void KvStore::give_up() noexcept {
  const auto give_up = [this](Ticket ticket) {
    try {
      transfers_->wait(ticket);
    } catch (const std::exception&) {
      // What ended the job has been said already.
    }
  };
  for (const Copy& copy : copies_) give_up(copy.ticket);
  copies_.clear();
  for (std::int64_t range = 0; range < prefetched_.ranges(); ++range) {
    give_up(prefetched_.ticket(range));
  }
  prefetched_.clear();
  partial_pages_.forget_all();
  book_.give_up();
}

}  // namespace triphase
