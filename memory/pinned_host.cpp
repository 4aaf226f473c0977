#include "memory/pinned_host.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/rounding.h"

namespace triphase {
namespace {

constexpr std::size_t kPage = 4096;
// Below this one thread touches a block sooner than others start.
constexpr std::size_t kTouchPart = std::size_t{64} << 20;

// Maps `bytes` at a multiple of `alignment`: more than needed, then the rest is given back.
std::byte* map_aligned(std::size_t bytes, std::size_t alignment) {
  const std::size_t mapped = bytes + alignment - kPage;
  void* block = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(block);
  const std::size_t skipped =
      (alignment - reinterpret_cast<std::uintptr_t>(begin) % alignment) % alignment;
  if (skipped > 0) (void)::munmap(begin, skipped);
  const std::size_t after = mapped - skipped - bytes;
  if (after > 0) (void)::munmap(begin + skipped + bytes, after);
  return begin + skipped;
}

void touch(std::byte* data, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kPage) {
    *static_cast<volatile std::byte*>(data + at) = std::byte{0};
  }
}

void touch_in_parallel(std::byte* data, std::size_t bytes, int threads) {
  const auto parts = static_cast<std::size_t>(std::max(1, threads));
  const std::size_t part = std::max(round_up(ceil_div(bytes, parts), kPage), kTouchPart);
  std::vector<std::jthread> workers;
  std::size_t begin = 0;
  try {
    for (; begin + part < bytes; begin += part) {
      workers.emplace_back([=] { touch(data + begin, part); });
    }
  } catch (const std::system_error&) {
    // No thread to be had: this one does the rest.
  }
  touch(data + begin, bytes - begin);
}

}  // namespace

PinnedHostDevice::PinnedHostDevice(Device& device, HostPinning pinning, int threads,
                                   std::size_t chunk)
    : device_(&device), pinning_(std::move(pinning)), threads_(threads), chunk_(chunk) {}

void* PinnedHostDevice::allocate(std::size_t bytes) {
  const auto start = std::chrono::steady_clock::now();
  const std::size_t rounded = round_up(std::max<std::size_t>(bytes, 1), kPage);
  std::byte* data = map_aligned(rounded, rounded > chunk_ / 2 ? chunk_ : kPage);
  if (data == nullptr) {
    throw Error(ErrorRole::kResources, "E-MEM-ALLOC", "host memory")
        .found(fmt::format("the system refused {} bytes", bytes))
        .expected("memory for the host tier")
        .hint("lower --host-memory, or raise the limit (ulimit -v, cgroup)");
  }
  touch_in_parallel(data, rounded, threads_);
  std::string refusal = pin_all(data, rounded);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  const std::lock_guard lock(mutex_);
  use_.seconds += taken.count();
  blocks_[data] = {bytes, refusal.empty()};
  if (refusal.empty()) {
    use_.pinned += bytes;
  } else {
    use_.unpinned += bytes;
    if (use_.refusal.empty()) use_.refusal = std::move(refusal);
  }
  return data;
}

// A small block may straddle a chunk boundary, so the cuts are at absolute addresses.
std::string PinnedHostDevice::pin_all(std::byte* data, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    const std::size_t to_boundary = chunk_ - reinterpret_cast<std::uintptr_t>(data + done) % chunk_;
    const std::size_t chunk = std::min(to_boundary, bytes - done);
    std::string refusal = pinning_.pin(data + done, chunk);
    if (!refusal.empty()) {
      // Half-pinned blocks would make copies fail that cross from one half to the other.
      unpin(data, done);
      return refusal;
    }
    done += chunk;
  }
  return {};
}

void PinnedHostDevice::unpin(std::byte* data, std::size_t bytes) noexcept {
  std::size_t done = 0;
  while (done < bytes) {
    pinning_.unpin(data + done);
    done += chunk_ - reinterpret_cast<std::uintptr_t>(data + done) % chunk_;
  }
}

void PinnedHostDevice::release(void* data, std::size_t bytes) noexcept {
  const std::size_t rounded = round_up(std::max<std::size_t>(bytes, 1), kPage);
  bool pinned = false;
  {
    const std::lock_guard lock(mutex_);
    const auto at = blocks_.find(static_cast<const std::byte*>(data));
    if (at == blocks_.end()) return;
    pinned = at->second.pinned;
    (pinned ? use_.pinned : use_.unpinned) -= bytes;
    blocks_.erase(at);
  }
  if (pinned) unpin(static_cast<std::byte*>(data), rounded);
  (void)::munmap(data, rounded);
}

void PinnedHostDevice::copy(void* to, const void* from, std::size_t bytes, Stream& stream) {
  device_->copy(to, from, bytes, stream);
}

std::unique_ptr<Event> PinnedHostDevice::make_event() { return device_->make_event(); }

std::unique_ptr<Stream> PinnedHostDevice::make_stream() { return device_->make_stream(); }

PinnedUse PinnedHostDevice::use() const {
  const std::lock_guard lock(mutex_);
  return use_;
}

bool PinnedHostDevice::is_pinned(const void* data, std::size_t bytes) const {
  const auto* first = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  auto block = blocks_.upper_bound(first);
  if (block == blocks_.begin()) return false;
  --block;
  const auto skipped = static_cast<std::size_t>(first - block->first);
  return block->second.pinned && skipped <= block->second.bytes &&
         bytes <= block->second.bytes - skipped;
}

}  // namespace triphase
