#include "models/zigzag_block.h"

#include <exception>
#include <utility>

#include "base/error.h"

namespace triphase {

ZigzagBlock::~ZigzagBlock() {
  for (Moves& moves : moves_) {
    for (Ticket* ticket : {&moves.left, &moves.came}) {
      try {
        wait(*ticket);
      } catch (const std::exception&) {
        // Nobody reads what this should have brought.
      }
    }
  }
}

std::uint64_t ZigzagBlock::host_bytes(std::int64_t rows, std::int64_t width) {
  return static_cast<std::uint64_t>(rows * width) * sizeof(float);
}

void ZigzagBlock::keep_on_host(std::int64_t rows, std::int64_t width, TransferEngine& transfers,
                               MemoryPool& host) {
  transfers_ = &transfers;
  host_ = host.allocate(host_bytes(rows, width), MemoryTag::kActivations);
}

void ZigzagBlock::wait(Ticket& ticket) const {
  const Ticket now = std::exchange(ticket, Ticket{});
  if (now.value != 0) transfers_->wait(now);
}

void ZigzagBlock::begin(std::span<const BatchSegment> segments, Matrix x) {
  for (Moves& moves : moves_) {  // of a step that failed
    wait(moves.left);
    wait(moves.came);
  }
  x_ = x;
  batches_.clear();
  std::int64_t sequences = 0;
  for (const BatchSegment& segment : segments) {
    if (batches_.empty() || (sequences_ > 0 && sequences == sequences_)) {
      batches_.push_back({segment.first_row, 0});
      sequences = 0;
    }
    batches_.back().count += segment.count;
    ++sequences;
  }
  moves_.assign(batches_.size(), {});
  TRIPHASE_CHECK(transfers_ == nullptr || host_bytes(x.rows, x.cols) <= host_.bytes(),
                 "room for the step's hidden states");
}

std::byte* ZigzagBlock::on_device(std::size_t batch) const {
  return reinterpret_cast<std::byte*>(static_cast<float*>(x_.data) +
                                      batches_[batch].first * x_.row_stride);
}

std::byte* ZigzagBlock::on_host(std::size_t batch) const {
  return host_.data() + static_cast<std::size_t>(batches_[batch].first * x_.cols) * sizeof(float);
}

std::size_t ZigzagBlock::bytes(std::size_t batch) const {
  return static_cast<std::size_t>(batches_[batch].count * x_.cols) * sizeof(float);
}

void ZigzagBlock::fetch(std::size_t batch) {
  if (batch >= batches_.size() || moves_[batch].left.value == 0) return;
  wait(moves_[batch].left);
  moves_[batch].came =
      transfers_->move_bytes(Lane::kToDevice, on_device(batch), on_host(batch), bytes(batch));
}

void ZigzagBlock::enter(std::size_t batch) {
  if (transfers_ == nullptr) return;
  if (batch == 0 || !prefetch_) fetch(batch);
  if (prefetch_) fetch(batch + 1);
  wait(moves_[batch].came);
}

void ZigzagBlock::leave(std::size_t batch, Stream& stream) {
  if (transfers_ == nullptr) return;
  stream.synchronize();
  moves_[batch].left =
      transfers_->move_bytes(Lane::kToHost, on_host(batch), on_device(batch), bytes(batch));
  moved_ += bytes(batch);
}

}  // namespace triphase
