#include "models/rope_rows.h"

#include <algorithm>

#include "base/error.h"

namespace triphase {

RopeRows::RopeRows(const RopeTable& table, std::int64_t rows)
    : table_(&table), rows_(rows), angles_(static_cast<std::size_t>(rows * table.rotary_dim())) {}

void RopeRows::set(std::int64_t row, std::uint64_t key, std::int64_t position) {
  TRIPHASE_CHECK(row < rows_, "a row beyond the buffers");
  const std::int64_t width = table_->rotary_dim();
  const std::span angles(angles_.data() + row * width, static_cast<std::size_t>(width));
  if (key < known_.size()) {
    std::ranges::copy(known(key, position), angles.begin());
  } else {
    table_->fill(key, position, angles);
  }
}

std::span<const float> RopeRows::known(std::uint64_t key, std::int64_t position) {
  std::vector<std::vector<float>>& stretches = known_[key];
  const auto width = static_cast<std::size_t>(table_->rotary_dim());
  const auto stretch = static_cast<std::size_t>(position / kStretch);
  if (stretches.size() <= stretch) stretches.resize(stretch + 1);
  std::vector<float>& angles = stretches[stretch];
  if (angles.empty()) {
    angles.resize(kStretch * width);
    for (std::size_t at = 0; at < kStretch; ++at) {
      table_->fill(key, static_cast<std::int64_t>(stretch * kStretch + at),
                   std::span(angles).subspan(at * width, width));
    }
  }
  return std::span(angles).subspan(static_cast<std::size_t>(position % kStretch) * width, width);
}

ConstMatrix RopeRows::send(std::int64_t rows, Ops& ops, Stream& stream) {
  const std::int64_t width = table_->rotary_dim();
  const float* sent =
      ops.send(std::span(angles_).first(static_cast<std::size_t>(rows * width)), stream);
  return {sent, DType::kF32, rows, width, width};
}

RopePositions::RopePositions(const RopeTable& table, std::int64_t positions, MemoryPool& pool)
    : device_(&pool.device()) {
  const std::int64_t width = table.rotary_dim();
  const auto size = static_cast<std::size_t>(bytes(width, positions));
  sent_from_ = HostBuffer(*device_, size);
  for (std::int64_t position = 0; position < positions; ++position) {
    table.fill(0, position,
               {sent_from_.as<float>() + position * width, static_cast<std::size_t>(width)});
  }
  angles_ = pool.allocate(size, MemoryTag::kActivations);
  all_ = {angles_.data(), DType::kF32, positions, width, width};
}

ConstMatrix RopePositions::send(Stream& stream) {
  if (!sent_) {
    device_->copy(angles_.data(), sent_from_.data(),
                  static_cast<std::size_t>(bytes(all_.cols, all_.rows)), stream);
  }
  sent_ = true;
  return all_;
}

}  // namespace triphase
