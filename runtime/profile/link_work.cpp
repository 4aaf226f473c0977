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

LinkWork::LinkWork(TransferEngine& transfers, Backend& backend, Lane lane, const LinkShape& shape,
                   std::int64_t places, std::int64_t most_record_bytes)
    : shape_(shape),
      places_(blocks_for(places, shape.block_tokens) * shape.block_tokens),
      most_record_bytes_(most_record_bytes),
      transfers_(transfers),
      lane_(lane),
      device_pool_(backend.device(), MemoryTier::kDevice, UINT64_MAX),
      host_pool_(backend.host(), MemoryTier::kHost, UINT64_MAX) {
  const auto bytes = static_cast<std::size_t>(places_ * most_record_bytes);
  device_ = device_pool_.allocate(bytes, MemoryTag::kStaging);
  host_ = host_pool_.allocate(bytes, MemoryTag::kStaging);
  std::memset(host_.data(), 1, bytes);
  backend.device().copy(device_.data(), host_.data(), bytes, backend.stream());
  backend.stream().synchronize();
}

void LinkWork::begin_records(std::int64_t bytes) {
  geometry_ = {.device_k = device_.data(),
               .device_v = device_.data() + device_.bytes() / 2,
               .host = host_.data(),
               .page_tokens = shape_.block_tokens,
               .kv_heads = shape_.kv_heads,
               .head_bytes = bytes / (2 * shape_.kv_heads)};
  runs_.clear();
}

void LinkWork::add_run(std::int64_t slot, std::int64_t record, std::int64_t count) {
  runs_.push_back({.slot = slot,
                   .record = record,
                   .count = static_cast<std::int32_t>(count),
                   .head_count = static_cast<std::int32_t>(shape_.kv_heads)});
}

void BlockCopyWork::begin(double x, double /*y*/) {
  begin_records(most_record_bytes_);
  const std::int64_t tokens = std::llround(x) / most_record_bytes_;
  for (std::int64_t token = 0; token < tokens; token += shape_.block_tokens) {
    add_run(token, token, std::min(shape_.block_tokens, tokens - token));
  }
}

void GatherWork::begin(double x, double y) {
  begin_records(std::llround(x));
  // The stride is a prime that does not divide the number of places: each is taken once.
  std::int64_t place = 0;
  for (std::int64_t i = 0; i < std::llround(y); ++i) {
    place = (place + kStride) % places_;
    add_run(place, places_ - 1 - place, 1);
  }
}

}  // namespace triphase
