#include "memory/kv/kv_store.h"

#include <algorithm>

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

std::uint64_t KvStore::key_column_bytes(const Shape& shape) {
  return shape.key_columns ? page_elements(shape) * dtype_bytes(shape.dtype) : 0;
}

std::uint64_t KvStore::open_page_bytes(const Shape& shape) {
  return shape.quantized() ? 2 * page_elements(shape) * dtype_bytes(shape.open_dtype) : 0;
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

std::int64_t KvStore::open_pages_needed(const Shape& shape, std::int64_t sequences,
                                        std::int64_t rows) {
  if (!shape.quantized()) return 0;
  return shape.layers * sequences + rows / shape.block_tokens + 2 * sequences + 1;
}

KvStore::KvStore(const Shape& shape, const Sizes& sizes, MemoryPool& device, MemoryPool* host,
                 TransferEngine* transfers)
    : shape_(shape),
      sizes_(sizes),
      transfers_(transfers),
      residency_({.layers = shape.layers,
                  .block_tokens = shape.block_tokens,
                  .device_pages = sizes.device_pages,
                  .host_blocks = sizes.host_blocks,
                  .input_blocks = sizes.input_blocks,
                  .mirrored = shape.host_attention}),
      open_pages_(sizes.open_pages, shape.layers) {
  const auto pages =
      static_cast<std::uint64_t>(sizes.device_pages + sizes.staging_pages + sizes.cache_pages);
  k_ = device.allocate(page_bytes(shape) / 2 * pages, MemoryTag::kKv);
  v_ = device.allocate(page_bytes(shape) / 2 * pages, MemoryTag::kKv);
  if (shape.key_columns) {
    const std::int64_t column_bytes =
        shape.block_tokens * static_cast<std::int64_t>(dtype_bytes(shape.dtype));
    key_columns_ = KeyColumns(sizes.key_column_blocks, shape.layers, residency_.block_capacity(),
                              std::max<std::int64_t>(1, sizes.key_column_run_bytes / column_bytes));
    key_column_pages_ =
        device.allocate(key_column_bytes(shape) *
                            static_cast<std::uint64_t>(sizes.key_column_blocks * shape.layers),
                        MemoryTag::kKeyColumns);
  }
  if (shape.quantized()) {
    TRIPHASE_CHECK(sizes.open_pages > 0, "INT8 KV needs open pages");
    const std::uint64_t open =
        open_page_bytes(shape) / 2 * static_cast<std::uint64_t>(sizes.open_pages);
    open_k_ = device.allocate(open, MemoryTag::kKv);
    open_v_ = device.allocate(open, MemoryTag::kKv);
    scales_ = device.allocate(
        scale_bytes(shape) * static_cast<std::uint64_t>(shape.layers * residency_.block_capacity()),
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
  for (const Move& move : moves_) {
    try {
      transfers_->wait(move.ticket);
    } catch (const std::exception&) {
      // The store ends anyway; nobody reads what this move should have brought.
    }
  }
  // Others may move tokens or layer inputs of this store still, after a run that failed.
  if (transfers_ != nullptr) transfers_->drain();
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
  return scales_.as<float>() + layer.value * residency_.block_capacity() *
                                   static_cast<std::int64_t>(scale_bytes(shape_) / sizeof(float));
}

std::int64_t KvStore::host_record(std::int32_t host_block, LayerId layer,
                                  std::int64_t offset) const {
  return (layer.value * sizes_.host_blocks + host_block) * shape_.block_tokens + offset;
}

void KvStore::forget_key_columns(SequenceId sequence, LayerId layer, std::int64_t block) {
  if (key_columns_.places() == 0) return;
  const std::int32_t place = key_columns_.find(residency_, sequence, block);
  if (place != KeyColumns::kNone) key_columns_.forget(key_columns_.page(layer, place));
}

std::byte* KvStore::saved_inputs(std::int32_t input_block, LayerId layer) const {
  const auto index =
      static_cast<std::uint64_t>(layer.value) * static_cast<std::uint64_t>(sizes_.input_blocks) +
      static_cast<std::uint64_t>(input_block);
  return host_inputs_.data() + index * input_bytes(shape_);
}

TokenCache& KvStore::token_cache(std::int64_t parts) {
  if (token_cache_.shape().layers == 0 || token_cache_.shape().parts != parts) {
    end_early_tokens();
    token_cache_ = TokenCache({.layers = shape_.layers,
                               .parts = parts,
                               .block_tokens = shape_.block_tokens,
                               .slots = cache_slots(),
                               .blocks = residency_.block_capacity()});
  }
  return token_cache_;
}

void KvStore::offload(SequenceId sequence, std::int64_t first_block, std::int64_t count,
                      bool open) {
  for (std::int64_t block = first_block; block < first_block + count; ++block) {
    const KvResidency::Move move = residency_.begin_offload(sequence, block, open);
    if (move.there) {
      moves_.push_back({Ticket{}, sequence, block, /*to_host=*/true});
      continue;
    }
    runs_.clear();
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      runs_.push_back(
          {.slot = move.pages[static_cast<std::size_t>(layer)].value * shape_.block_tokens,
           .record = host_record(move.host_block, LayerId(layer), 0),
           .count = static_cast<std::int32_t>(shape_.block_tokens),
           .head_count = static_cast<std::int32_t>(shape_.kv_heads)});
    }
    moves_.push_back({transfers_->move_tokens(Lane::kToHost, geometry(), runs_), sequence, block,
                      /*to_host=*/true});
  }
}

void KvStore::reload(SequenceId sequence, std::int64_t first_block, std::int64_t count) {
  for (std::int64_t block = first_block; block < first_block + count; ++block) {
    const KvResidency::Move move = residency_.begin_reload(sequence, block);
    runs_.clear();
    for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
      runs_.push_back(
          {.slot = move.pages[static_cast<std::size_t>(layer)].value * shape_.block_tokens,
           .record = host_record(move.host_block, LayerId(layer), 0),
           .count = static_cast<std::int32_t>(shape_.block_tokens),
           .head_count = static_cast<std::int32_t>(shape_.kv_heads)});
    }
    moves_.push_back({transfers_->move_tokens(Lane::kToDevice, geometry(), runs_), sequence, block,
                      /*to_host=*/false});
  }
}

void KvStore::discard(SequenceId sequence, std::int64_t first_block, std::int64_t count) {
  const auto last = first_block + count;
  for (std::int64_t block = first_block; block < last; ++block) {
    stop_reading_early(sequence, block);
    if (residency_.block_place(sequence, block) == BlockPlace::kLeaving) settle(/*all=*/true);
    residency_.discard(sequence, block);
  }
}

void KvStore::settle(bool all) {
  std::size_t kept = 0;
  for (std::size_t index = 0; index < moves_.size(); ++index) {
    const Move move = moves_[index];
    if (!all && !transfers_->done(move.ticket)) {
      moves_[kept++] = move;
      continue;
    }
    try {
      transfers_->wait(move.ticket);
    } catch (...) {
      residency_.cancel_move(move.sequence, move.block);
      moves_.erase(moves_.begin() + static_cast<std::ptrdiff_t>(kept),
                   moves_.begin() + static_cast<std::ptrdiff_t>(index) + 1);
      throw;
    }
    if (move.to_host) {
      residency_.finish_offload(move.sequence, move.block);
    } else {
      residency_.finish_reload(move.sequence, move.block);
    }
  }
  moves_.resize(kept);
}

void KvStore::give_up_moves() noexcept {
  for (const Move& move : moves_) {
    try {
      transfers_->wait(move.ticket);
    } catch (const std::exception&) {
      // What ended the job has been said already.
    }
    residency_.cancel_move(move.sequence, move.block);
  }
  moves_.clear();
  const auto give_up = [this](Ticket ticket) {
    try {
      transfers_->wait(ticket);
    } catch (const std::exception&) {
      // The same.
    }
  };
  for (std::int64_t range = early_waited_; range < early_.ranges(); ++range) {
    give_up(early_.ticket(range));
  }
  for (std::int64_t range = early_tokens_waited_; range < early_tokens_.ranges(); ++range) {
    give_up(early_tokens_.ticket(range));
  }
  forget_early();
  forget_early_tokens(/*lost=*/true);
}

std::optional<EarlyBlocks::Source> KvStore::early_source(LayerId layer, SequenceId sequence,
                                                         std::int64_t block) const {
  const BlockPlace place = residency_.block_place(sequence, block);
  if (place != BlockPlace::kHost && place != BlockPlace::kReturning) return std::nullopt;
  return source_of(layer, sequence, block);
}

std::optional<EarlyBlocks::Source> KvStore::arrived_source(LayerId layer, SequenceId sequence,
                                                           std::int64_t block) const {
  const BlockPlace place = residency_.block_place(sequence, block);
  if (place == BlockPlace::kHost) return source_of(layer, sequence, block);
  if (place != BlockPlace::kLeaving) return std::nullopt;
  const auto move = std::ranges::find_if(moves_, [&](const Move& one) {
    return one.to_host && one.sequence == sequence && one.block == block;
  });
  if (move == moves_.end() || !transfers_->done(move->ticket)) return std::nullopt;
  return source_of(layer, sequence, block);
}

EarlyBlocks::Source KvStore::source_of(LayerId layer, SequenceId sequence,
                                       std::int64_t block) const {
  return {.layer = layer.value,
          .block_index = residency_.block_index(sequence, block),
          .block_id = residency_.block_id(sequence, block),
          .host_block = residency_.host_block(sequence, block)};
}

void KvStore::wait_for_early(std::int64_t ranges) {
  ranges = std::min(ranges, early_.ranges());
  for (; early_waited_ < ranges; ++early_waited_) transfers_->wait(early_.ticket(early_waited_));
}

void KvStore::end_early() {
  wait_for_early(early_.ranges());
  forget_early();
}

void KvStore::forget_early() {
  ended_early_ = early_use();
  early_.clear();
  early_waited_ = 0;
}

void KvStore::wait_for_early_tokens(std::int64_t ranges) {
  ranges = std::min(ranges, early_tokens_.ranges());
  for (; early_tokens_waited_ < ranges; ++early_tokens_waited_) {
    try {
      transfers_->wait(early_tokens_.ticket(early_tokens_waited_));
    } catch (...) {
      // Nothing more of them is written to the cache, nor read on the host, by then.
      transfers_->drain();
      forget_early_tokens(/*lost=*/true);
      throw;
    }
  }
}

void KvStore::end_early_tokens() {
  wait_for_early_tokens(early_tokens_.ranges());
  forget_early_tokens(/*lost=*/false);
}

void KvStore::forget_early_tokens(bool lost) {
  ended_early_ = early_use();
  for (const EarlyTokens::Slot& at : early_tokens_.slots()) {
    if (lost) {
      token_cache_.forget(at.layer, at.part, at.slot);
    } else {
      token_cache_.end_early(at.layer, at.part, at.slot);
    }
  }
  early_tokens_.clear();
  early_tokens_waited_ = 0;
}

std::uint64_t KvStore::waiting_early_bytes() const {
  const std::int64_t parts = std::max<std::int64_t>(token_cache_.shape().parts, 1);
  const auto part_bytes = static_cast<std::uint64_t>(geometry().record_bytes() / parts);
  return static_cast<std::uint64_t>(early_.unused()) * page_bytes(shape_) +
         static_cast<std::uint64_t>(token_cache_.early()) * part_bytes;
}

void KvStore::stop_reading_early(SequenceId sequence, std::int64_t block) {
  const std::int32_t index = residency_.block_index(sequence, block);
  const std::int32_t host_block = residency_.host_block(sequence, block);
  if (early_waited_ < early_.ranges() && early_.reads(index, host_block)) {
    wait_for_early(early_.ranges());
  }
  if (early_tokens_waited_ < early_tokens_.ranges() && early_tokens_.reads(index, host_block)) {
    wait_for_early_tokens(early_tokens_.ranges());
  }
}

void KvStore::release(SequenceId sequence) {
  // A block must not end while it moves. Shared blocks move under another sequence's name too.
  if (moving()) settle(/*all=*/true);
  for (std::int64_t block = 0; block < residency_.blocks(sequence); ++block) {
    if (!residency_.shared(sequence, block)) stop_reading_early(sequence, block);
  }
  open_pages_.forget(sequence);
  residency_.release(sequence);
}

}  // namespace triphase
