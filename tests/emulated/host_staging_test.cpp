#include "kernels/cuda/host_staging.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "memory/memory_pool.h"
#include "tests/emulated/emulated_device.h"

namespace triphase::cuda {
namespace {

// Pieces of the pinned block are handed out before it is filled again.
TEST(HostStaging, ArraysOfAnySizeArriveWhole) {
  emulated::EmulatedDevice device({.schedule = 3});
  emulated::EmulatedHost host(device, 1);
  MemoryPool pool(device, MemoryTier::kDevice, std::uint64_t{1} << 24);
  const auto stream = device.make_stream();
  HostStaging staging(device, host);
  for (const std::size_t count : {1U, 1000U, 262144U, 262145U, 900000U}) {
    std::vector<std::uint32_t> sent(count + 77);
    std::iota(sent.begin(), sent.end(), 7U);
    const Buffer buffer = pool.allocate(sent.size() * 4, MemoryTag::kStaging);
    auto* on_device = buffer.as<std::uint32_t>();
    device.copy(on_device, sent.data(), sent.size() * 4, *stream);
    std::vector<std::uint32_t> first(count);
    std::vector<std::uint32_t> second(77);
    const HostTransfer back[] = {{first.data(), on_device, count * 4},
                                 {second.data(), on_device + count, 77 * 4}};
    staging.to_host(back, *stream);
    first.insert(first.end(), second.begin(), second.end());
    EXPECT_EQ(first, sent) << count;
  }
}

}  // namespace
}  // namespace triphase::cuda
