#include "runtime/profile/host_attention_work.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "scheduler/kv/block_tokens.h"

namespace triphase {
namespace {

KvShape shape_of(const ModelConfig& config, DType dtype) {
  KvShape shape = rig_kv_shape(config, AttentionOptions{}, dtype, dtype);
  shape.host_attention = true;
  return shape;
}

// Every sequence may leave its last block almost empty.
KvSizes sizes_of(const KvShape& shape, const ModelRigLimits& limits, std::int64_t tokens) {
  const std::int64_t blocks = (tokens + limits.batch) / shape.block_tokens + limits.batch + 1;
  return {.device_pages = blocks * shape.layers, .host_blocks = blocks};
}

}  // namespace

HostAttentionWork::HostAttentionWork(ModelRig& rig, TransferEngine& transfers, DType kv_dtype,
                                     std::int64_t tokens)
    : rig_(rig),
      host_pool_(rig.backend().host(), MemoryTier::kHost, UINT64_MAX),
      store_(shape_of(rig.config(), kv_dtype),
             sizes_of(shape_of(rig.config(), kv_dtype), rig.limits(), tokens), rig.pool(),
             &host_pool_, &transfers),
      attention_(rig.config(), rig.limits().batch, rig.limits().context,
                 rig.backend().threads().threads(), rig.backend().host_ops(), host_pool_),
      windows_(static_cast<std::size_t>(rig.config().layers), 0) {
  const auto bytes =
      static_cast<std::size_t>(rig.limits().batch * rig.config().q_width()) * sizeof(float);
  for (Buffer* buffer : {&q_, &out_}) {
    *buffer = rig.pool().allocate(bytes, MemoryTag::kWorkspace);
    fill_ordinary(rig.backend(), buffer->data(), bytes);
  }
  // Every page of the host is there before anything is timed.
  const KvMemory& memory = store_.memory();
  std::fill_n(
      memory.geometry().host,
      memory.shape().host_block_bytes() * static_cast<std::uint64_t>(memory.sizes().host_blocks),
      kOrdinary);
}

std::int64_t HostAttentionWork::context(double x, double y) {
  return std::max<std::int64_t>(std::llround(std::ceil(y / x)), 1);
}

bool HostAttentionWork::possible(double x, double y) const {
  return context(x, y) <= rig_.limits().context;
}

void HostAttentionWork::begin(double x, double y) {
  const std::int64_t tokens = context(x, y);
  const std::int64_t block_tokens = store_.memory().shape().block_tokens;
  const std::int64_t blocks = blocks_for(tokens, block_tokens);
  KvBook& book = store_.book();
  const TokenId any = 0;
  rows_.clear();
  for (std::int64_t row = 0; row < std::llround(x); ++row) {
    const SequenceId sequence =
        book.admit({&any, 1}, tokens, 0, {.device_blocks = {}, .host_blocks = blocks}).sequence;
    TRIPHASE_CHECK(sequence.valid(), "a cache that was made for this sequence");
    book.append(sequence, tokens);
    sequences_.push_back(sequence);
    rows_.push_back({.sequence = sequence,
                     .first_row = row,
                     .count = 1,
                     .first_position = tokens - 1,
                     .decode = true});
  }
  step_.begin(store_, rows_, windows_, nullptr, rig_.backend().stream());
}

void HostAttentionWork::run() {
  const ModelConfig& config = rig_.config();
  Stream& stream = rig_.backend().stream();
  const auto rows = std::ssize(rows_);
  const std::int64_t width = config.q_width();
  const auto matrix = [&](const Buffer& buffer) {
    return Matrix{buffer.data(), DType::kF32, rows, width, width};
  };
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  attention_.begin(store_, rows_, step_);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    attention_.send(LayerId(layer), matrix(q_));
    attention_.attend(LayerId(layer), 0, scale, matrix(out_), stream);
  }
  attention_.finish();
  TRIPHASE_CHECK(attention_.active(), "rows whose KV is on the host");
}

void HostAttentionWork::end() {
  for (const SequenceId sequence : sequences_) store_.release(sequence);
  sequences_.clear();
}

}  // namespace triphase
