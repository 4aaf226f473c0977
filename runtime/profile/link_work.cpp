#include "runtime/profile/link_work.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "scheduler/kv/block_tokens.h"

namespace triphase {
namespace {

// Records are chosen this far apart, so that neighbours in a transfer are strangers in memory.
constexpr std::int64_t kStride = 7919;

}  // namespace

BlockCopyWork::BlockCopyWork(TransferEngine& transfers, Backend& backend, Lane lane,
                             const LinkShape& shape, std::int64_t record_bytes,
                             std::int64_t most_bytes)
    : transfers_(transfers),
      lane_(lane),
      shape_(shape),
      device_pool_(backend.device(), MemoryTier::kDevice, UINT64_MAX),
      host_pool_(backend.host(), MemoryTier::kHost, UINT64_MAX) {
  const std::int64_t pages = blocks_for(most_bytes / record_bytes, shape.block_tokens);
  const auto bytes = static_cast<std::size_t>(pages * shape.block_tokens * record_bytes);
  device_ = device_pool_.allocate(bytes, MemoryTag::kStaging);
  host_ = host_pool_.allocate(bytes, MemoryTag::kStaging);
  std::memset(host_.data(), 1, bytes);
  backend.device().copy(device_.data(), host_.data(), bytes, backend.stream());
  backend.stream().synchronize();
  geometry_ = {.device_k = device_.data(),
               .device_v = device_.data() + bytes / 2,
               .host = host_.data(),
               .page_tokens = shape.block_tokens,
               .kv_heads = shape.kv_heads,
               .head_bytes = record_bytes / (2 * shape.kv_heads)};
}

void BlockCopyWork::begin(double x, double /*y*/) {
  runs_.clear();
  const std::int64_t tokens = std::llround(x) / geometry_.record_bytes();
  for (std::int64_t token = 0; token < tokens; token += shape_.block_tokens) {
    runs_.push_back(
        {.slot = token,
         .record = token,
         .count = static_cast<std::int32_t>(std::min(shape_.block_tokens, tokens - token)),
         .head_count = static_cast<std::int32_t>(shape_.kv_heads)});
  }
}

GatherWork::GatherWork(TransferEngine& transfers, Backend& backend, const LinkShape& shape,
                       std::int64_t most_record_bytes, std::int64_t most_records)
    : transfers_(transfers),
      shape_(shape),
      // Twice as many places as records, in whole pages; not a multiple of the stride.
      places_(blocks_for(2 * most_records, shape.block_tokens) * shape.block_tokens),
      device_pool_(backend.device(), MemoryTier::kDevice, UINT64_MAX),
      host_pool_(backend.host(), MemoryTier::kHost, UINT64_MAX) {
  const auto bytes = static_cast<std::size_t>(places_ * most_record_bytes);
  device_ = device_pool_.allocate(bytes, MemoryTag::kStaging);
  host_ = host_pool_.allocate(bytes, MemoryTag::kStaging);
  std::memset(host_.data(), 1, bytes);
  backend.device().copy(device_.data(), host_.data(), bytes, backend.stream());
  backend.stream().synchronize();
}

void GatherWork::begin(double x, double y) {
  const std::int64_t record = std::llround(x);
  geometry_ = {.device_k = device_.data(),
               .device_v = device_.data() + device_.bytes() / 2,
               .host = host_.data(),
               .page_tokens = shape_.block_tokens,
               .kv_heads = shape_.kv_heads,
               .head_bytes = record / (2 * shape_.kv_heads)};
  runs_.clear();
  // The stride is a prime that does not divide the number of places: each is taken once.
  std::int64_t place = 0;
  for (std::int64_t i = 0; i < std::llround(y); ++i) {
    place = (place + kStride) % places_;
    runs_.push_back({.slot = place,
                     .record = places_ - 1 - place,
                     .count = 1,
                     .head_count = static_cast<std::int32_t>(shape_.kv_heads)});
  }
}

}  // namespace triphase
