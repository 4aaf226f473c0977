#pragma once

// Rope angles: written by the host, read by the device. Of a call's rows, where the host goes on
// while a few calls' angles are on their way; and of positions, once for all calls.

#include <array>
#include <cstdint>
#include <memory>

#include "base/dtype.h"
#include "memory/memory_pool.h"
#include "models/rope.h"

namespace triphase {

class RopeRows {
 public:
  // For up to `rows` rows of a call; `table` and the pool must outlive this.
  RopeRows(const RopeTable& table, std::int64_t rows, MemoryPool& pool);
  // Device bytes that the constructor takes.
  [[nodiscard]] static std::uint64_t bytes(std::int64_t rotary_dim, std::int64_t rows) {
    return static_cast<std::uint64_t>(rows * rotary_dim) * sizeof(float);
  }

  // The angles of `position` under `key` for row `row` of the call that send() ends.
  void set(std::int64_t row, std::uint64_t key, std::int64_t position);
  // [rows, rotary_dim] on the device, for work queued on `stream` until the next send().
  [[nodiscard]] ConstMatrix send(std::int64_t rows, Stream& stream);

 private:
  struct Slot {
    HostBuffer angles;
    std::unique_ptr<Event> sent;
  };
  static constexpr std::size_t kSlots = 4;

  const RopeTable* table_;
  Device* device_;
  std::int64_t rows_;
  std::array<Slot, kSlots> slots_;
  std::size_t slot_ = 0;  // that the host writes
  Buffer angles_;
};

// The angles of positions [0, `positions`) under key 0.
class RopePositions {
 public:
  // Takes RopeRows::bytes() of so many rows.
  RopePositions(const RopeTable& table, std::int64_t positions, MemoryPool& pool);

  // [positions, rotary_dim] on the device; the first call sends them.
  [[nodiscard]] ConstMatrix send(Stream& stream);

 private:
  Device* device_;
  HostBuffer sent_from_;
  Buffer angles_;
  ConstMatrix all_;
  bool sent_ = false;
};

}  // namespace triphase
