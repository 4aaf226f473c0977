#include "memory/kv/kv_store.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace triphase {
namespace {

// Elements of K (or V) of one page.
std::uint64_t page_elements(const KvStore::Shape& shape) {
  return static_cast<std::uint64_t>(shape.kv_heads * shape.block_tokens * shape.head_dim);
}

}  // namespace

std::uint64_t KvStore::page_bytes(const Shape& shape) {
  return 2 * page_elements(shape) * dtype_bytes(shape.dtype);
}

std::uint64_t KvStore::transposed_k_bytes(const Shape& shape) {
  return shape.transposed_k ? page_elements(shape) * dtype_bytes(shape.dtype) : 0;
}

std::uint64_t KvStore::partial_page_bytes(const Shape& shape) {
  return shape.quantized() ? 2 * page_elements(shape) * dtype_bytes(shape.partial_dtype) : 0;
}

std::uint64_t KvStore::scale_bytes(const Shape& shape) {
  if (!shape.quantized()) return 0;
  // K and V, each with lambda and zero per channel.
  return 4 * static_cast<std::uint64_t>(shape.kv_heads * shape.head_dim) * sizeof(float);
}

std::uint64_t KvStore::host_block_bytes(const Shape& shape) {
  return page_bytes(shape) * static_cast<std::uint64_t>(shape.layers);
}

std::uint64_t KvStore::input_bytes(const Shape& shape) {
  return static_cast<std::uint64_t>(shape.block_tokens) *
         (static_cast<std::uint64_t>(shape.input_width) + sizeof(float));
}

bool KvStore::page_holds_inputs(const Shape& shape, std::int64_t input_width) {
  const auto half = static_cast<std::int64_t>(page_bytes(shape) / 2) / shape.block_tokens;
  return input_width > 0 && input_width <= half && std::int64_t{sizeof(float)} <= half;
}

KvStore::KvStore(const Shape& shape, const Sizes& sizes, MemoryPool& device, MemoryPool* host,
                 TransferEngine* transfers)
    : shape_(shape),
      sizes_(sizes),
      transfers_(transfers),
      book_({.block_tokens = shape.block_tokens,
             .device_blocks = sizes.device_pages / shape.layers,
             .host_blocks = sizes.host_blocks,
             .input_blocks = sizes.input_blocks,
             .mirrored = shape.host_attention}),
      partial_pages_(sizes.partial_pages, shape.layers),
      written_(static_cast<std::size_t>(sizes.host_blocks + sizes.input_blocks), false) {
  book_.preallocate();
  const auto pages =
      static_cast<std::uint64_t>(sizes.device_pages + sizes.staging_pages + sizes.cache_pages);
  k_ = device.allocate(page_bytes(shape) / 2 * pages, MemoryTag::kKv);
  v_ = device.allocate(page_bytes(shape) / 2 * pages, MemoryTag::kKv);
  if (shape.transposed_k) {
    const std::int64_t column_bytes =
        shape.block_tokens * static_cast<std::int64_t>(dtype_bytes(shape.dtype));
    transposed_k_ =
        TransposedK(sizes.transposed_k_blocks, shape.layers, book_.pool().capacity(),
                    std::max<std::int64_t>(1, sizes.transposed_k_run_bytes / column_bytes));
    transposed_k_pages_ =
        device.allocate(transposed_k_bytes(shape) *
                            static_cast<std::uint64_t>(sizes.transposed_k_blocks * shape.layers),
                        MemoryTag::kTransposedK);
  }
  if (shape.quantized()) {
    TRIPHASE_CHECK(sizes.partial_pages > 0, "INT8 KV needs partial pages");
    const std::uint64_t open =
        partial_page_bytes(shape) / 2 * static_cast<std::uint64_t>(sizes.partial_pages);
    partial_k_ = device.allocate(open, MemoryTag::kKv);
    partial_v_ = device.allocate(open, MemoryTag::kKv);
    scales_ = device.allocate(
        scale_bytes(shape) * static_cast<std::uint64_t>(shape.layers * book_.pool().capacity()),
        MemoryTag::kKv);
  }
  if (sizes.host_blocks > 0) {
    TRIPHASE_CHECK(host != nullptr && transfers != nullptr, "a host tier without memory or link");
    host_ = host->allocate(host_block_bytes(shape) * static_cast<std::uint64_t>(sizes.host_blocks),
                           MemoryTag::kKv);
  }
  if (sizes.input_blocks > 0) {
    TRIPHASE_CHECK(sizes.host_blocks > 0 && page_holds_inputs(shape, shape.input_width),
                   "layer inputs are for blocks on the host, and pass through pages");
    host_inputs_ = host->allocate(
        input_bytes(shape) * static_cast<std::uint64_t>(shape.layers * sizes.input_blocks),
        MemoryTag::kInputs);
  }
}

KvStore::~KvStore() {
  // Others may move tokens or layer inputs of this store still, after a run that failed.
  if (transfers_ != nullptr) transfers_->drain();
}

void KvStore::fill_pages(SequenceId sequence, LayerId layer, std::vector<PageId>& table) const {
  const KvSequence& of = book_.sequence(sequence);
  table.clear();
  // Room for the whole sequence now, so that a decode step never allocates.
  table.reserve(static_cast<std::size_t>(of.max_blocks));
  for (const std::int32_t index : of.blocks) table.push_back(page(book_.pool()[index], layer));
}

KvGeometry KvStore::geometry() const {
  return {.device_k = k_.data(),
          .device_v = v_.data(),
          .host = host_.data(),
          .page_tokens = shape_.block_tokens,
          .kv_heads = shape_.kv_heads,
          .head_bytes = shape_.head_dim * static_cast<std::int64_t>(dtype_bytes(shape_.dtype))};
}

float* KvStore::scales(LayerId layer) const {
  if (!shape_.quantized()) return nullptr;
  return scales_.as<float>() + layer.value * book_.pool().capacity() *
                                   static_cast<std::int64_t>(scale_bytes(shape_) / sizeof(float));
}

std::int64_t KvStore::host_record(std::int32_t host_block, LayerId layer,
                                  std::int64_t offset) const {
  return (layer.value * sizes_.host_blocks + host_block) * shape_.block_tokens + offset;
}

void KvStore::forget_transposed_k(SequenceId sequence, LayerId layer, std::int64_t block) {
  if (transposed_k_.places() == 0) return;
  const std::int32_t place = transposed_k_.find(book_, sequence, block);
  if (place != TransposedK::kNone) transposed_k_.forget(transposed_k_.page(layer, place));
}

TokenRun KvStore::block_run(PageId page, std::int32_t host_block, LayerId layer) const {
  return {.slot = page.value * shape_.block_tokens,
          .record = host_record(host_block, layer, 0),
          .count = static_cast<std::int32_t>(shape_.block_tokens),
          .head_count = static_cast<std::int32_t>(shape_.kv_heads)};
}

std::byte* KvStore::saved_inputs(std::int32_t input_block, LayerId layer) const {
  const auto index =
      static_cast<std::uint64_t>(layer.value) * static_cast<std::uint64_t>(sizes_.input_blocks) +
      static_cast<std::uint64_t>(input_block);
  return host_inputs_.data() + index * input_bytes(shape_);
}

void KvStore::note_written(std::int32_t host_block) {
  if (sizes_.cache_pages == 0 || written_[static_cast<std::size_t>(host_block)]) return;
  written_[static_cast<std::size_t>(host_block)] = true;
  written_host_blocks_.push_back(host_block);
}

std::vector<std::int32_t> KvStore::take_written_host_blocks() {
  for (const std::int32_t block : written_host_blocks_) {
    written_[static_cast<std::size_t>(block)] = false;
  }
  return std::exchange(written_host_blocks_, {});
}

void KvStore::carry_out(std::span<const KvMove> moves) {
  for (const KvMove& move : moves) {
    if (move.kind == KvMove::Kind::kWait) wait_for_copies();
    if (move.kind == KvMove::Kind::kGiveUp) stop_reading_prefetched(move.block, move.host_block);
    const bool load = move.kind == KvMove::Kind::kLoad;
    if (move.kind != KvMove::Kind::kOffload && !load) continue;
    if (!load) note_written(move.host_block);
    runs_.clear();
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      runs_.push_back(
          block_run(PageId(move.slab * shape_.layers + layer), move.host_block, LayerId(layer)));
    }
    const Lane lane = load ? Lane::kToDevice : Lane::kToHost;
    copies_.push_back({transfers_->move_tokens(lane, geometry(), runs_), move.block});
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
  for (std::int64_t range = 0; range < prefetched_.ranges(); ++range)
    give_up(prefetched_.ticket(range));
  forget_prefetched();
  partial_pages_.forget_all();
  book_.give_up();
}

std::optional<PrefetchedBlocks::Source> KvStore::prefetch_source(LayerId layer, SequenceId sequence,
                                                                 std::int64_t block) const {
  const BlockPlace place = book_.table(sequence)[block].place;
  if (place != BlockPlace::kHost && place != BlockPlace::kLoading) return std::nullopt;
  return PrefetchedBlocks::Source{.layer = layer.value,
                                  .block_index = book_.table(sequence).number(block),
                                  .block_id = book_.table(sequence)[block].id,
                                  .host_block = book_.table(sequence)[block].host_block};
}

void KvStore::hold_prefetched(std::int64_t ranges) {
  ranges = std::min(ranges, prefetched_.ranges());
  for (; prefetched_held_ < ranges; ++prefetched_held_) {
    transfers_->hold(prefetched_.ticket(prefetched_held_));
  }
}

void KvStore::end_prefetched() {
  hold_prefetched(prefetched_.ranges());
  forget_prefetched();
}

void KvStore::forget_prefetched() {
  ended_prefetch_ = prefetch_use();
  prefetched_.clear();
  prefetched_held_ = 0;
}

void KvStore::stop_reading_prefetched(std::int32_t block_index, std::int32_t host_block) {
  if (prefetched_held_ < prefetched_.ranges() && prefetched_.reads(block_index, host_block)) {
    hold_prefetched(prefetched_.ranges());
  }
}

void KvStore::release(SequenceId sequence) {
  moves_.clear();
  book_.release(sequence, moves_);
  carry_out(moves_);
  partial_pages_.forget(sequence);
}

}  // namespace triphase
