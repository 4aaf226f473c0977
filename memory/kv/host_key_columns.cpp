#include "memory/kv/host_key_columns.h"

#include <cstring>

#include "base/error.h"
#include "kernels/transpose_tokens.h"

namespace triphase {

HostKeyColumns::HostKeyColumns(const Shape& shape, std::int64_t places, MemoryPool& host)
    : shape_(shape),
      places_(places),
      buffer_(host.allocate(place_bytes(shape) * static_cast<std::uint64_t>(places),
                            MemoryTag::kKeyColumns)),
      ready_(static_cast<std::size_t>(shape.layers * places), 0) {}

std::uint64_t HostKeyColumns::place_bytes(const Shape& shape) {
  return static_cast<std::uint64_t>(shape.layers * shape.kv_heads * shape.head_dim *
                                    shape.block_tokens * shape.element_bytes);
}

void HostKeyColumns::make(LayerId layer, std::span<const Source> sources, ThreadPool* threads) {
  missing_.clear();
  for (const Source& source : sources) {
    std::uint8_t& ready = ready_[index(layer, source.place)];
    if (ready != 0) continue;
    missing_.push_back(source);
    ready = 1;
  }
  if (missing_.empty()) return;
  const auto one = [&](std::int64_t task, int /*worker*/) {
    const Source& source = missing_[static_cast<std::size_t>(task / shape_.kv_heads)];
    const std::int64_t head = task % shape_.kv_heads;
    switch (shape_.element_bytes) {
      case 1:
        transpose<std::uint8_t>(layer, head, source);
        return;
      case 2:
        transpose<std::uint16_t>(layer, head, source);
        return;
      default:
        transpose<std::uint32_t>(layer, head, source);
    }
  };
  const auto tasks = static_cast<std::int64_t>(missing_.size()) * shape_.kv_heads;
  if (threads != nullptr) {
    threads->parallel_for(tasks, one);
    return;
  }
  for (std::int64_t task = 0; task < tasks; ++task) one(task, 0);
}

template <class Bits>
void HostKeyColumns::transpose(LayerId layer, std::int64_t kv_head, const Source& source) const {
  const std::int64_t dim = shape_.head_dim;
  const Bits* from = reinterpret_cast<const Bits*>(source.records) + 2 * kv_head * dim;
  auto* to = reinterpret_cast<Bits*>(buffer_.data() + offset(layer, kv_head, 0, source.place));
  // A record holds keys and values of all heads; a channel's row, all places.
  transpose_tokens(from, 2 * shape_.kv_heads * dim, shape_.block_tokens, dim, to,
                   places_ * shape_.block_tokens);
}

void HostKeyColumns::forget(std::int32_t place) {
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    ready_[index(LayerId(layer), place)] = 0;
  }
}

void HostKeyColumns::copy(std::int32_t from, std::int32_t to) {
  for (std::int64_t number = 0; number < shape_.layers; ++number) {
    const LayerId layer(number);
    TRIPHASE_CHECK(is_ready(layer, from), "K^T that is copied has been made");
    ready_[index(layer, to)] = 1;
    for (std::int64_t row = 0; row < shape_.kv_heads * shape_.head_dim; ++row) {
      const std::int64_t head = row / shape_.head_dim;
      const std::int64_t channel = row % shape_.head_dim;
      std::memcpy(buffer_.data() + offset(layer, head, channel, to),
                  buffer_.data() + offset(layer, head, channel, from),
                  static_cast<std::size_t>(run_bytes()));
    }
  }
}

}  // namespace triphase
