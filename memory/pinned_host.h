#pragma once

// Host memory that a device can reach without a staging copy. A block is mapped, touched by several
// threads (the first touch decides the NUMA node and costs most of the time) and then pinned in
// chunks, because very large registrations fail on some drivers. When pinning is refused (memlock
// limits, containers) the block stays unpinned and the run goes on: copies still work, slower.
// Kernels may read and write pinned bytes alone: ask is_pinned. Thread safe.

#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "base/device.h"

namespace triphase {

// Blocks start on this boundary and no registration crosses one, so that a copy cut at multiples of
// it never spans two registrations.
inline constexpr std::size_t kPinChunk = std::size_t{1} << 30;

// How pages are pinned. `pin` returns an empty text, or the reason for the refusal.
struct HostPinning {
  std::function<std::string(void* data, std::size_t bytes)> pin;
  std::function<void(void* data)> unpin;
};

struct PinnedUse {
  std::uint64_t pinned = 0;    // bytes now
  std::uint64_t unpinned = 0;  // bytes now, in blocks whose pinning was refused
  double seconds = 0.0;        // that touching and pinning has taken so far
  std::string refusal;         // the first reason, for the log; empty: none
};

class PinnedHostDevice : public Device {
 public:
  // Copies and streams are those of `device`, which must outlive this. `threads` touch new blocks.
  // `chunk`, a power of two of at least a page, is the most that one registration holds.
  PinnedHostDevice(Device& device, HostPinning pinning, int threads, std::size_t chunk = kPinChunk);

  [[nodiscard]] std::string_view name() const override { return "host"; }
  // Throws E-MEM-ALLOC when the system refuses the memory itself.
  [[nodiscard]] void* allocate(std::size_t bytes) override;
  void release(void* data, std::size_t bytes) noexcept override;
  [[nodiscard]] void* allocate_host(std::size_t bytes) override {
    return device_->allocate_host(bytes);
  }
  void release_host(void* data, std::size_t bytes) noexcept override {
    device_->release_host(data, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override;
  [[nodiscard]] std::unique_ptr<Stream> make_stream() override;
  [[nodiscard]] std::unique_ptr<Event> make_event() override;

  [[nodiscard]] PinnedUse use() const;
  // Whether all these bytes lie in one pinned block of this device.
  [[nodiscard]] bool is_pinned(const void* data, std::size_t bytes) const;

 private:
  [[nodiscard]] std::string pin_all(std::byte* data, std::size_t bytes);
  void unpin(std::byte* data, std::size_t bytes) noexcept;

  Device* device_;
  HostPinning pinning_;
  int threads_;
  std::size_t chunk_;
  mutable std::mutex mutex_;
  PinnedUse use_;
  struct Block {
    std::size_t bytes = 0;
    bool pinned = false;
  };
  std::map<const std::byte*, Block> blocks_;  // by their start
};

}  // namespace triphase
