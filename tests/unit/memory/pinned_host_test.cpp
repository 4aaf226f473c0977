// Pinned host memory with a pinning that records what it is asked, and one that refuses.

#include "memory/pinned_host.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "memory/host_device.h"
#include "memory/memory_pool.h"

namespace triphase {
namespace {

// What is pinned now, by address; refuses from the n-th request on.
struct FakePinning {
  std::map<const void*, std::size_t> pinned;
  int requests = 0;
  int refuse_from = 1 << 30;

  HostPinning pinning() {
    return {[this](void* data, std::size_t bytes) -> std::string {
              if (++requests >= refuse_from) return "refused for the test";
              pinned[data] = bytes;
              return {};
            },
            [this](void* data) { EXPECT_EQ(pinned.erase(data), 1U); }};
  }
};

TEST(PinnedHost, BlocksAreWritableZeroAndPinnedWhole) {
  HostDevice device;
  FakePinning fake;
  PinnedHostDevice host(device, fake.pinning(), 3);
  double seconds = 0.0;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{200} << 20}) {
    auto* data = static_cast<std::byte*>(host.allocate(bytes));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 4096, 0U);
    EXPECT_EQ(data[0], std::byte{0});
    EXPECT_EQ(data[bytes - 1], std::byte{0});
    std::memset(data, 0x5A, bytes);
    std::size_t covered = 0;
    for (const auto& [start, length] : fake.pinned) covered += length;
    EXPECT_GE(covered, bytes);
    EXPECT_TRUE(host.is_pinned(data, bytes));
    EXPECT_TRUE(host.is_pinned(data + bytes / 2, bytes - bytes / 2));
    EXPECT_FALSE(host.is_pinned(data + bytes / 2, bytes - bytes / 2 + 1));
    EXPECT_FALSE(host.is_pinned(data - 1, 1));
    EXPECT_FALSE(host.is_pinned(&fake, sizeof(fake)));
    EXPECT_EQ(host.use().pinned, bytes);
    EXPECT_GT(host.use().seconds, seconds) << "pinning took time";
    seconds = host.use().seconds;
    host.release(data, bytes);
    EXPECT_FALSE(host.is_pinned(data, bytes));
    EXPECT_TRUE(fake.pinned.empty());
    EXPECT_EQ(host.use().pinned, 0U);
  }
}

TEST(PinnedHost, RefusalLeavesUsableUnpinnedMemoryAndTheReason) {
  HostDevice device;
  FakePinning fake;
  fake.refuse_from = 1;
  PinnedHostDevice host(device, fake.pinning(), 1);
  constexpr std::size_t kBytes = 1 << 20;
  auto* data = static_cast<std::byte*>(host.allocate(kBytes));
  std::memset(data, 1, kBytes);
  EXPECT_FALSE(host.is_pinned(data, 1));
  EXPECT_EQ(host.use().unpinned, kBytes);
  EXPECT_EQ(host.use().pinned, 0U);
  EXPECT_EQ(host.use().refusal, "refused for the test");
  host.release(data, kBytes);
  EXPECT_EQ(host.use().unpinned, 0U);
}

// The second chunk's refusal undoes the first: half-pinned blocks break copies.
TEST(PinnedHost, RegistrationsEndAtChunkBoundariesAndAreUndoneTogether) {
  HostDevice device;
  FakePinning fake;
  constexpr std::size_t kChunk = std::size_t{16} << 20;
  PinnedHostDevice host(device, fake.pinning(), 2, kChunk);
  constexpr std::size_t kBytes = kChunk + (std::size_t{8} << 20);
  void* data = host.allocate(kBytes);
  EXPECT_EQ(fake.pinned.size(), 2U);
  for (const auto& [start, length] : fake.pinned) {
    const auto first = reinterpret_cast<std::uintptr_t>(start);
    EXPECT_EQ(first / kChunk, (first + length - 1) / kChunk);
  }
  host.release(data, kBytes);
  EXPECT_TRUE(fake.pinned.empty());

  fake.refuse_from = fake.requests + 2;
  data = host.allocate(kBytes);
  EXPECT_TRUE(fake.pinned.empty());
  EXPECT_FALSE(host.is_pinned(data, 1));
  host.release(data, kBytes);
}

TEST(PinnedHost, ServesAPoolWithItsBudget) {
  HostDevice device;
  FakePinning fake;
  PinnedHostDevice host(device, fake.pinning(), 1);
  MemoryPool pool(host, MemoryTier::kHost, 1 << 20);
  const Buffer buffer = pool.allocate(1 << 19, MemoryTag::kKv);
  EXPECT_EQ(host.use().pinned, 1U << 19);
  EXPECT_ANY_THROW((void)pool.allocate(1 << 20, MemoryTag::kKv));
}

}  // namespace
}  // namespace triphase
