#include "kernels/cuda/host_staging.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "memory/memory_pool.h"
#include "memory/pinned_host.h"
#include "tests/emulated/emulated_device.h"

namespace triphase::cuda {
namespace {

// Pieces of the pinned block are reused only after a wait, and sources may change at once.
TEST(HostStaging, ArraysOfAnySizeArriveWhole) {
  emulated::EmulatedDevice device({.schedule = 3});
  PinnedHostDevice host(device, device.pinning(), 1);
  MemoryPool pool(device, MemoryTier::kDevice, std::uint64_t{1} << 24);
  const auto stream = device.make_stream();
  HostStaging staging(device, host);
  for (const std::size_t count : {1U, 1000U, 262144U, 262145U, 900000U}) {
    std::vector<std::uint32_t> first(count);
    std::iota(first.begin(), first.end(), 7U);
    std::vector<std::uint32_t> second(77, static_cast<std::uint32_t>(count));
    const Buffer buffer = pool.allocate((count + 78) * 4, MemoryTag::kStaging);
    auto* on_device = buffer.as<std::uint32_t>();
    const HostTransfer there[] = {{on_device, first.data(), count * 4},
                                  {on_device + count, second.data(), 77 * 4}};
    staging.to_device(there, *stream);
    const std::vector<std::uint32_t> sent_first = first;
    const std::vector<std::uint32_t> sent_second = second;
    first.assign(count, 0);
    second.assign(77, 0);
    // Once more: the copies above may still be reading the block.
    const std::uint32_t mark = 5;
    std::uint32_t mark_back = 0;
    const HostTransfer one{on_device + count + 77, &mark, sizeof(mark)};
    staging.to_device({&one, 1}, *stream);
    const HostTransfer back[] = {{first.data(), on_device, count * 4},
                                 {second.data(), on_device + count, 77 * 4},
                                 {&mark_back, on_device + count + 77, 4}};
    staging.to_host(back, *stream);
    EXPECT_EQ(first, sent_first) << count;
    EXPECT_EQ(second, sent_second) << count;
    EXPECT_EQ(mark_back, mark);
  }
}

}  // namespace
}  // namespace triphase::cuda
