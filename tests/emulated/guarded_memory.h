#pragma once

// Two kinds of memory for the seams' tests: a device's, which only kernels and copies may touch,
// and the host's, which kernels may not. Whoever touches the other's dies of SIGSEGV at that line,
// as host code that reads a device pointer does with a GPU. Blocks end at unmapped pages, to within
// 64 bytes. Memory that is meant for both (pinned) is an ordinary HostDevice's. Without a watch on
// the emulator (on a GPU) host blocks are plain memory. One thread.

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "base/device.h"
#include "memory/host_device.h"
#include "tests/emulated/closed_pages.h"
#include "tests/emulated/emulator.h"

namespace triphase::cuda {

enum class Side : std::uint8_t { kDevice, kHost };

class GuardedMemory final : public emulated::Watch {
 public:
  static GuardedMemory& instance() {
    static GuardedMemory memory;
    return memory;
  }

  void* allocate(std::size_t bytes, Side side) {
    auto pages = std::make_unique<emulated::ClosedPages>(bytes, 64);
    pages->protect(at_rest(side));
    std::byte* const start = pages->data();
    blocks_[start] = {std::move(pages), side};
    return start;
  }
  void release(void* data) noexcept {
    if (data == nullptr) return;
    blocks_.erase(static_cast<std::byte*>(data));
  }

  // A copy, from and to anywhere.
  void copy(void* to, const void* from, std::size_t bytes) {
    protect_all(Side::kDevice, PROT_READ | PROT_WRITE);
    if (bytes > 0) std::memcpy(to, from, bytes);
    protect_all(Side::kDevice, PROT_NONE);
  }

  [[nodiscard]] bool is_device(const void* data) const {
    const auto* at = static_cast<const std::byte*>(data);
    return std::ranges::any_of(blocks_, [&](const auto& entry) {
      return entry.second.side == Side::kDevice && at >= entry.first &&
             at < entry.first + entry.second.pages->bytes();
    });
  }

  void kernel_begins() override {
    protect_all(Side::kDevice, PROT_READ | PROT_WRITE);
    protect_all(Side::kHost, PROT_NONE);
  }
  void kernel_ends() override {
    protect_all(Side::kDevice, PROT_NONE);
    protect_all(Side::kHost, PROT_READ | PROT_WRITE);
  }

 private:
  struct Block {
    std::unique_ptr<emulated::ClosedPages> pages;
    Side side = Side::kDevice;
  };

  static int at_rest(Side side) {
    return side == Side::kDevice ? PROT_NONE : PROT_READ | PROT_WRITE;
  }
  void protect_all(Side side, int protection) {
    for (const auto& [start, block] : blocks_) {
      if (block.side == side) block.pages->protect(protection);
    }
  }

  std::map<std::byte*, Block> blocks_;
};

class GuardedDevice : public Device {
 public:
  [[nodiscard]] std::string_view name() const override { return "guarded"; }
  [[nodiscard]] void* allocate(std::size_t bytes) override {
    ++allocations_;
    held_ += bytes;
    return GuardedMemory::instance().allocate(bytes, Side::kDevice);
  }
  void release(void* data, std::size_t bytes) noexcept override {
    held_ -= bytes;
    GuardedMemory::instance().release(data);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream&) override {
    GuardedMemory::instance().copy(to, from, bytes);
  }
  [[nodiscard]] std::unique_ptr<Stream> make_stream() override {
    return HostDevice().make_stream();
  }
  [[nodiscard]] std::unique_ptr<Event> make_event() override { return HostDevice().make_event(); }
  [[nodiscard]] void* allocate_host(std::size_t bytes) override {
    void* data = HostDevice().allocate(bytes);
    pinned_[static_cast<const std::byte*>(data)] = bytes;
    return data;
  }
  void release_host(void* data, std::size_t bytes) noexcept override {
    pinned_.erase(static_cast<const std::byte*>(data));
    HostDevice().release(data, bytes);
  }
  // Whether the bytes lie in a block of allocate_host().
  [[nodiscard]] bool is_pinned(const void* data, std::size_t bytes) const {
    const auto* first = static_cast<const std::byte*>(data);
    auto block = pinned_.upper_bound(first);
    if (block == pinned_.begin()) return false;
    --block;
    return first + bytes <= block->first + block->second;
  }
  [[nodiscard]] std::int64_t allocations() const { return allocations_; }
  [[nodiscard]] std::uint64_t held_bytes() const { return held_; }

 private:
  std::map<const std::byte*, std::size_t> pinned_;
  std::int64_t allocations_ = 0;
  std::uint64_t held_ = 0;
};

// For vectors that kernels must not touch.
template <class T>
struct HostOnly {
  using value_type = T;
  HostOnly() = default;
  template <class U>
  HostOnly(const HostOnly<U>&) {}  // NOLINT(google-explicit-constructor)
  T* allocate(std::size_t count) {
    return static_cast<T*>(GuardedMemory::instance().allocate(count * sizeof(T), Side::kHost));
  }
  void deallocate(T* data, std::size_t) noexcept { GuardedMemory::instance().release(data); }
  template <class U>
  bool operator==(const HostOnly<U>&) const {
    return true;
  }
};
template <class T>
using HostVector = std::vector<T, HostOnly<T>>;

// Elements in a device's memory, all bits set at first. Copies are done when a call returns; work
// that others queued on their streams is not waited for.
template <class T>
class DeviceArray {
 public:
  DeviceArray(Device& device, std::int64_t count)
      : device_(&device), count_(static_cast<std::size_t>(count)), stream_(device.make_stream()) {
    data_ = static_cast<T*>(device.allocate(std::max(bytes(), sizeof(T))));
    fill(0xFF);
  }
  DeviceArray(Device& device, const std::vector<T>& values)
      : DeviceArray(device, static_cast<std::int64_t>(values.size())) {
    copy(data_, values.data());
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { device_->release(data_, std::max(bytes(), sizeof(T))); }

  void fill(unsigned char byte) {
    const std::vector<unsigned char> values(bytes(), byte);
    copy(data_, values.data());
  }
  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::vector<T> host() const {
    std::vector<T> values(count_);
    copy(values.data(), data_);
    return values;
  }

 private:
  [[nodiscard]] std::size_t bytes() const { return count_ * sizeof(T); }
  void copy(void* to, const void* from) const {
    if (count_ == 0) return;
    device_->copy(to, from, bytes(), *stream_);
    stream_->synchronize();
  }

  Device* device_;
  std::size_t count_;
  std::unique_ptr<Stream> stream_;
  T* data_ = nullptr;
};

}  // namespace triphase::cuda
