#include "models/rope_rows.h"

#include "base/error.h"

namespace triphase {

RopeRows::RopeRows(const RopeTable& table, std::int64_t rows, MemoryPool& pool)
    : table_(&table), device_(&pool.device()), rows_(rows) {
  const auto size = static_cast<std::size_t>(bytes(table.rotary_dim(), rows));
  for (Slot& slot : slots_) {
    slot.angles = HostBuffer(*device_, size);
    slot.sent = device_->make_event();
  }
  angles_ = pool.allocate(size, MemoryTag::kActivations);
}

void RopeRows::set(std::int64_t row, std::uint64_t key, std::int64_t position) {
  TRIPHASE_CHECK(row < rows_, "a row beyond the buffers");
  const std::int64_t width = table_->rotary_dim();
  table_->fill(key, position,
               {slots_[slot_].angles.as<float>() + row * width, static_cast<std::size_t>(width)});
}

ConstMatrix RopeRows::send(std::int64_t rows, Stream& stream) {
  const std::int64_t width = table_->rotary_dim();
  Slot& slot = slots_[slot_];
  device_->copy(angles_.data(), slot.angles.data(), static_cast<std::size_t>(bytes(width, rows)),
                stream);
  slot.sent->record(stream);
  slot_ = (slot_ + 1) % kSlots;
  slots_[slot_].sent->synchronize();
  return {angles_.data(), DType::kF32, rows, width, width};
}

RopePositions::RopePositions(const RopeTable& table, std::int64_t positions, MemoryPool& pool)
    : device_(&pool.device()) {
  const std::int64_t width = table.rotary_dim();
  const auto size = static_cast<std::size_t>(RopeRows::bytes(width, positions));
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
                  static_cast<std::size_t>(RopeRows::bytes(all_.cols, all_.rows)), stream);
  }
  sent_ = true;
  return all_;
}

}  // namespace triphase
