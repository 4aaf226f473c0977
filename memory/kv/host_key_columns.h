#pragma once

// K^T of blocks that are on the host, on the host: [layer][kv_head][channel][place][block_tokens],
// so that one channel of blocks at neighbouring places is one piece for the link. Made from the
// blocks' host records, where somebody wants it. Owns the memory; not thread safe.

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/thread_pool.h"
#include "memory/memory_pool.h"

namespace triphase {

class HostKeyColumns {
 public:
  static constexpr std::int32_t kNone = -1;

  struct Shape {
    std::int64_t layers = 0;
    std::int64_t kv_heads = 0;
    std::int64_t head_dim = 0;
    std::int64_t block_tokens = 0;
    std::int64_t element_bytes = 0;  // 1, 2 or 4
  };
  // A place whose K^T is wanted, and the records of its block in one layer, block_tokens of them
  // (KvGeometry).
  struct Source {
    std::int32_t place = kNone;
    const std::byte* records = nullptr;
  };

  HostKeyColumns() = default;
  // Takes its memory from the pool (tag kt). Throws E-MEM-BUDGET.
  HostKeyColumns(const Shape& shape, std::int64_t places, MemoryPool& host);

  // Of one place, all layers.
  [[nodiscard]] static std::uint64_t place_bytes(const Shape& shape);
  [[nodiscard]] std::int64_t places() const { return places_; }

  // Writes K^T of those places that have none in this layer. `threads` share the work; null: the
  // caller alone does it.
  void make(LayerId layer, std::span<const Source> sources, ThreadPool* threads);
  [[nodiscard]] bool is_ready(LayerId layer, std::int32_t place) const {
    return ready_[index(layer, place)] != 0;
  }
  // Another block has the place, or will: nothing is written there.
  void forget(std::int32_t place);
  // What is written at a place, at another one too.
  void copy(std::int32_t from, std::int32_t to);

  // block_tokens values of one channel; those of the next place follow.
  [[nodiscard]] const std::byte* at(LayerId layer, std::int64_t kv_head, std::int64_t channel,
                                    std::int32_t place) const {
    return buffer_.data() + offset(layer, kv_head, channel, place);
  }
  [[nodiscard]] std::int64_t run_bytes() const {
    return shape_.block_tokens * shape_.element_bytes;
  }

 private:
  [[nodiscard]] std::size_t index(LayerId layer, std::int32_t place) const {
    return static_cast<std::size_t>(layer.value * places_ + place);
  }
  [[nodiscard]] std::size_t offset(LayerId layer, std::int64_t kv_head, std::int64_t channel,
                                   std::int32_t place) const {
    const std::int64_t row = (layer.value * shape_.kv_heads + kv_head) * shape_.head_dim + channel;
    return static_cast<std::size_t>((row * places_ + place) * run_bytes());
  }
  template <class Bits>
  void transpose(LayerId layer, std::int64_t kv_head, const Source& source) const;

  Shape shape_;
  std::int64_t places_ = 0;
  Buffer buffer_;
  std::vector<std::uint8_t> ready_;  // [layer][place]
  std::vector<Source> missing_;      // reused
};

}  // namespace triphase
