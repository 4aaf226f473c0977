#include "models/sink_queries.h"

#include <algorithm>

#include "base/error.h"
#include "models/attention_runner.h"

namespace triphase {

SinkQueries::SinkQueries(const ModelConfig& config, std::int64_t rows, Ops& ops,
                         const RopeTable& rope, MemoryPool& pool)
    : heads_(config.heads),
      head_dim_(config.head_dim),
      ops_(&ops),
      rope_(&rope),
      device_(&pool.device()) {
  const auto take = [&](std::int64_t width) {
    return pool.allocate(static_cast<std::size_t>(rows * width) * sizeof(float),
                         MemoryTag::kActivations);
  };
  queries_ = take(config.q_width());
  results_ = take(config.q_width());
  angles_ = take(rope.rotary_dim());
  rows_.reserve(static_cast<std::size_t>(rows));
}

std::uint64_t SinkQueries::scratch_bytes(const ModelConfig& config, std::int64_t rows) {
  return static_cast<std::uint64_t>(rows * (2 * config.q_width() + config.rope->rotary_dim)) *
         sizeof(float);
}

void SinkQueries::begin(std::span<const BatchSegment> batch, AttentionRunner& attention,
                        Stream& stream) {
  rows_.clear();
  angles_there_.clear();
  for (const BatchSegment& segment : batch) {
    const std::int64_t context = segment.first_position + segment.count;
    if (!attention.decodes(segment.sequence, context)) continue;
    const std::int64_t position = attention.method().sink_position(context);
    if (position < 0) continue;
    TRIPHASE_CHECK(segment.count == 1 && rows_.size() < rows_.capacity(), "rows beyond the limit");
    rows_.push_back(static_cast<std::int32_t>(segment.first_row));
    angles_there_.resize(rows_.size() * static_cast<std::size_t>(rope_->rotary_dim()));
    rope_->fill(segment.rope_key, position,
                std::span(angles_there_).last(static_cast<std::size_t>(rope_->rotary_dim())));
  }
  if (rows_.empty()) return;
  device_->copy(angles_.data(), angles_there_.data(), angles_there_.size() * sizeof(float), stream);
}

void SinkQueries::take(ConstMatrix q, Stream& stream) {
  if (rows_.empty()) return;
  ops_->gather_rows(q, rows_, matrix(queries_), stream);
  const std::int64_t width = rope_->rotary_dim();
  ops_->rope(matrix(queries_), heads_, head_dim_, width,
             {angles_.data(), DType::kF32, static_cast<std::int64_t>(rows_.size()), width, width},
             stream);
}

std::int64_t SinkQueries::row_of(std::int64_t row) const {
  const auto at = std::ranges::lower_bound(rows_, row);
  TRIPHASE_CHECK(at != rows_.end() && *at == row, "a row without a query for its sinks");
  return at - rows_.begin();
}

}  // namespace triphase
