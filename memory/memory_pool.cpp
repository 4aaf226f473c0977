#include "memory/memory_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace triphase {
namespace {

// A kept block may exceed what is asked for by this part of it.
constexpr std::size_t kReuseSlack = 8;

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

void* MemoryPool::take(std::size_t bytes, MemoryTag tag, bool reuses, Stream* stream) {
  {
    const std::lock_guard lock(mutex_);
    if (reuses) {
      if (void* kept = take_kept(bytes, tag)) return kept;
    }
    if (bytes > budget_ || total_.now > budget_ - bytes) {
      throw Error(ErrorRole::kResources, "E-MEM-BUDGET",
                  fmt::format("{} memory", memory_tier_name(tier_)))
          .found(fmt::format("{} needs {} bytes and {} of {} bytes are in use",
                             memory_tag_name(tag), bytes, total_.now, budget_))
          .expected("a request within the budget")
          .hint("raise --device-memory or lower --batch-size");
    }
    if (total_.now + kept_bytes_ > budget_ - bytes) free_kept(stream);
    count(tag, static_cast<std::int64_t>(bytes));
  }
  try {
    return device_->allocate(bytes);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    count(tag, -static_cast<std::int64_t>(bytes));
    if (kept_.empty()) throw;
    free_kept(stream);
  }
  return take(bytes, tag, reuses, stream);
}

void* MemoryPool::take_kept(std::size_t bytes, MemoryTag tag) {
  const auto found = kept_.lower_bound(bytes);
  if (found == kept_.end() || found->first - bytes > bytes / kReuseSlack) return nullptr;
  const auto [size, data] = *found;
  kept_.erase(found);
  kept_bytes_ -= size;
  if (size > bytes) sizes_[data] = size;
  count(tag, static_cast<std::int64_t>(size));
  return data;
}

void MemoryPool::give_back(void* data, std::size_t bytes, MemoryTag tag, bool keeps) noexcept {
  if (!keeps) device_->release(data, bytes);
  const std::lock_guard lock(mutex_);
  if (keeps) {
    if (const auto larger = sizes_.extract(data)) bytes = larger.mapped();
    kept_.emplace(bytes, data);
    kept_bytes_ += bytes;
  }
  count(tag, -static_cast<std::int64_t>(bytes));
}

void MemoryPool::free_kept(Stream* stream) {
  if (!kept_.empty() && stream != nullptr) stream->synchronize();
  free_kept();
}

void MemoryPool::free_kept() noexcept {
  for (const auto& [bytes, data] : kept_) device_->release(data, bytes);
  kept_.clear();
  kept_bytes_ = 0;
}

void MemoryPool::count(MemoryTag tag, std::int64_t bytes) {
  for (PoolUse* use : {&total_, &by_tag_[static_cast<std::size_t>(tag)]}) {
    use->now += static_cast<std::uint64_t>(bytes);
    use->peak = std::max(use->peak, use->now);
  }
}

Buffer MemoryPool::allocate(std::size_t bytes, MemoryTag tag) {
  return {*this, tag, static_cast<std::byte*>(take(bytes, tag)), bytes};
}

void MemoryPool::forget_peaks() {
  const std::lock_guard lock(mutex_);
  total_.peak = total_.now;
  for (PoolUse& use : by_tag_) use.peak = use.now;
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
