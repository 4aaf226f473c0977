#pragma once

// Queries of decoded rows at a second position: where positions are places among the kept tokens
// (StreamingLLM; lm-infinite.rope_mode=in_cache), the window's tokens are as far from the query as
// they were, but the sinks before it have come closer. Rotation depends on distances alone, so keys
// stay as they are stored, and sinks are attended by the query rotated to its place among the kept
// tokens; the two results are merged by their log-sum-exps (AttentionRunner::attend). Not thread
// safe; ops, rope and pool must outlive it.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "memory/memory_pool.h"
#include "models/config/model_config.h"
#include "models/forward_batch.h"
#include "models/rope.h"

namespace triphase {

class AttentionRunner;

class SinkQueries {
 public:
  // `rows`: decoded rows of one forward call, at most.
  SinkQueries(const ModelConfig& config, std::int64_t rows, Ops& ops, const RopeTable& rope,
              MemoryPool& pool);

  // Bytes that the constructor takes.
  [[nodiscard]] static std::uint64_t scratch_bytes(const ModelConfig& config, std::int64_t rows);

  // A step begins: finds the rows whose sinks' position is not their own.
  void begin(std::span<const BatchSegment> batch, AttentionRunner& attention, Stream& stream);
  // A layer's q [T, heads * head_dim], before it is rotated.
  void take(ConstMatrix q, Stream& stream);

  // For query `row` of q: its row of queries() and results(), which it must have.
  [[nodiscard]] std::int64_t row_of(std::int64_t row) const;
  [[nodiscard]] ConstMatrix queries() const { return matrix(queries_); }
  // Room for what they attend.
  [[nodiscard]] Matrix results() const { return matrix(results_); }

 private:
  [[nodiscard]] Matrix matrix(const Buffer& buffer) const {
    const std::int64_t width = heads_ * head_dim_;
    return {buffer.data(), DType::kF32, static_cast<std::int64_t>(rows_.size()), width, width};
  }

  std::int64_t heads_;
  std::int64_t head_dim_;
  Ops* ops_;
  const RopeTable* rope_;
  Device* device_;
  Buffer queries_, results_, angles_;
  std::vector<std::int32_t> rows_;   // of q, ascending
  std::vector<float> angles_there_;  // as angles_ has them
};

}  // namespace triphase
