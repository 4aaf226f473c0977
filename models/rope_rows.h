#pragma once

// Rope angles: made by the host, read by the device. Of a call's rows, and of positions, once for
// all calls.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "kernels/ops.h"
#include "memory/memory_pool.h"
#include "models/rope.h"

namespace triphase {

class RopeRows {
 public:
  // For up to `rows` rows of a call; `table` must outlive this. Angles are computed once: a step of
  // 16,384 prompt tokens would take the host longer than the device.
  RopeRows(const RopeTable& table, std::int64_t rows);

  // The angles of `position` under `key` for row `row` of the call that send() ends.
  void set(std::int64_t row, std::uint64_t key, std::int64_t position);
  // [rows, rotary_dim] where kernels read them (Ops::send).
  [[nodiscard]] ConstMatrix send(std::int64_t rows, Ops& ops, Stream& stream);

 private:
  static constexpr std::int64_t kStretch = 64;  // positions whose angles are made together

  [[nodiscard]] std::span<const float> known(std::uint64_t key, std::int64_t position);

  const RopeTable* table_;
  std::int64_t rows_;
  std::vector<float> angles_;
  // Under the keys that all prompts share, by stretch; empty: none of it came. A larger key is one
  // prompt's length.
  std::array<std::vector<std::vector<float>>, 2> known_;
};

// The angles of positions [0, `positions`) under key 0.
class RopePositions {
 public:
  // Takes bytes() of the pool.
  RopePositions(const RopeTable& table, std::int64_t positions, MemoryPool& pool);
  [[nodiscard]] static std::uint64_t bytes(std::int64_t rotary_dim, std::int64_t positions) {
    return static_cast<std::uint64_t>(positions * rotary_dim) * sizeof(float);
  }

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
