#pragma once

// A byte budget over one device's memory, with use and peak by tag. Buffer is the move-only owner
// of one allocation and gives its bytes back to the pool it came from; the pool must outlive it.
// Thread safe.

#include <array>
#include <map>
#include <mutex>

#include "base/device.h"

namespace triphase {

class MemoryPool;

class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { reset(); }

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  template <class T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  void reset() noexcept;

 private:
  friend class MemoryPool;
  Buffer(MemoryPool& pool, MemoryTag tag, std::byte* data, std::size_t bytes)
      : pool_(&pool), tag_(tag), data_(data), bytes_(bytes) {}

  MemoryPool* pool_ = nullptr;
  MemoryTag tag_ = MemoryTag::kWorkspace;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

struct PoolUse {
  std::uint64_t now = 0;
  std::uint64_t peak = 0;
};

class MemoryPool {
 public:
  // `budget` in bytes for all tags together; the device's own limit applies beside it.
  MemoryPool(Device& device, MemoryTier tier, std::uint64_t budget)
      : device_(&device), tier_(tier), budget_(budget) {}
  ~MemoryPool() { free_kept(); }
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  // Throws E-MEM-BUDGET (exit 5) with tag, request, use and budget when it does not fit.
  [[nodiscard]] Buffer allocate(std::size_t bytes, MemoryTag tag);

  [[nodiscard]] std::uint64_t budget() const { return budget_; }
  [[nodiscard]] PoolUse use() const;
  [[nodiscard]] PoolUse use(MemoryTag tag) const;
  // Peaks count from the present use on.
  void forget_peaks();
  [[nodiscard]] Device& device() const { return *device_; }

 private:
  friend class Buffer;
  friend class PoolDevice;
  // As allocate(). `reuses`: a kept block will do. `stream`: where the next block is worked on; it
  // is waited for before kept ones are freed. Null: nothing is queued that uses them.
  void* take(std::size_t bytes, MemoryTag tag, bool reuses = false, Stream* stream = nullptr);
  // `keeps`: the block stays allocated for take(); it is freed when others need its bytes.
  void give_back(void* data, std::size_t bytes, MemoryTag tag, bool keeps = false) noexcept;
  // A kept block of at least so many bytes, and at most an eighth more; null: none.
  void* take_kept(std::size_t bytes, MemoryTag tag);
  void free_kept(Stream* stream);
  void free_kept() noexcept;
  void count(MemoryTag tag, std::int64_t bytes);

  Device* device_;
  MemoryTier tier_;
  std::uint64_t budget_;
  mutable std::mutex mutex_;
  PoolUse total_;  // without what is kept
  std::array<PoolUse, kMemoryTags> by_tag_{};
  std::multimap<std::size_t, void*> kept_;  // by bytes
  std::uint64_t kept_bytes_ = 0;
  std::map<void*, std::size_t> sizes_;  // of reused blocks in use, where larger than asked for
};

// The owner of memory from Device::allocate_host.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(Device& device, std::size_t bytes)
      : data_(static_cast<std::byte*>(device.allocate_host(bytes)), GiveBack{&device, bytes}) {}
  [[nodiscard]] std::byte* data() const { return data_.get(); }
  template <class T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  struct GiveBack {
    Device* device;
    std::size_t bytes;
    void operator()(std::byte* data) const noexcept { device->release_host(data, bytes); }
  };
  std::unique_ptr<std::byte, GiveBack> data_{nullptr, GiveBack{nullptr, 0}};
};

// The pool seen as a Device with one tag, for code that takes its memory from a Device.
class PoolDevice final : public Device {
 public:
  // What it releases: to free a GPU's memory waits for all work there, so that blocks which come
  // and go with requests are better reused. All work on such blocks must be on one stream.
  enum class Released : std::uint8_t { kFreed, kReused };

  PoolDevice(MemoryPool& pool, MemoryTag tag, Released released = Released::kFreed)
      : pool_(&pool),
        tag_(tag),
        reuses_(released == Released::kReused && !pool.device().runs_at_once()) {}
  // kReused: that stream, from the first block on.
  void work_on(Stream& stream) { stream_ = &stream; }

  [[nodiscard]] std::string_view name() const override { return pool_->device().name(); }
  [[nodiscard]] bool runs_at_once() const override { return pool_->device().runs_at_once(); }
  [[nodiscard]] void* allocate(std::size_t bytes) override {
    return pool_->take(bytes, tag_, reuses_, stream_);
  }
  void release(void* data, std::size_t bytes) noexcept override {
    pool_->give_back(data, bytes, tag_, reuses_);
  }
  [[nodiscard]] void* allocate_host(std::size_t bytes) override {
    return pool_->device().allocate_host(bytes);
  }
  void release_host(void* data, std::size_t bytes) noexcept override {
    pool_->device().release_host(data, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    pool_->device().copy(to, from, bytes, stream);
  }
  [[nodiscard]] std::unique_ptr<Stream> make_stream() override {
    return pool_->device().make_stream();
  }
  [[nodiscard]] std::unique_ptr<Event> make_event() override {
    return pool_->device().make_event();
  }

 private:
  MemoryPool* pool_;
  MemoryTag tag_;
  bool reuses_;
  Stream* stream_ = nullptr;
};

}  // namespace triphase
