#include "memory/memory_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace triphase {
namespace {

void add_use(PoolUse& use, std::uint64_t bytes) {
  use.now += bytes;
  use.peak = std::max(use.peak, use.now);
}

}  // namespace

Buffer::Buffer(Buffer&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      tag_(other.tag_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    reset();
    pool_ = std::exchange(other.pool_, nullptr);
    tag_ = other.tag_;
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void Buffer::reset() noexcept {
  if (data_ != nullptr) pool_->give_back(data_, bytes_, tag_);
  pool_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

void* MemoryPool::take(std::size_t bytes, MemoryTag tag) {
  {
    const std::lock_guard lock(mutex_);
    if (bytes > budget_ || total_.now > budget_ - bytes) {
      throw Error(ErrorRole::kResources, "E-MEM-BUDGET",
                  fmt::format("{} memory", memory_tier_name(tier_)))
          .found(fmt::format("{} needs {} bytes and {} of {} bytes are in use",
                             memory_tag_name(tag), bytes, total_.now, budget_))
          .expected("a request within the budget")
          .hint("raise --device-memory or lower --batch-size");
    }
    add_use(total_, bytes);
    add_use(by_tag_[static_cast<std::size_t>(tag)], bytes);
  }
  try {
    return device_->allocate(bytes);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    total_.now -= bytes;
    by_tag_[static_cast<std::size_t>(tag)].now -= bytes;
    throw;
  }
}

void MemoryPool::give_back(void* data, std::size_t bytes, MemoryTag tag) noexcept {
  device_->release(data, bytes);
  const std::lock_guard lock(mutex_);
  total_.now -= bytes;
  by_tag_[static_cast<std::size_t>(tag)].now -= bytes;
}

Buffer MemoryPool::allocate(std::size_t bytes, MemoryTag tag) {
  return {*this, tag, static_cast<std::byte*>(take(bytes, tag)), bytes};
}

std::uint64_t MemoryPool::room() const {
  const std::lock_guard lock(mutex_);
  return budget_ - total_.now;
}

PoolUse MemoryPool::use() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

PoolUse MemoryPool::use(MemoryTag tag) const {
  const std::lock_guard lock(mutex_);
  return by_tag_[static_cast<std::size_t>(tag)];
}

}  // namespace triphase
