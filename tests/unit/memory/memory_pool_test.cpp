#include "memory/memory_pool.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "memory/host_device.h"

namespace triphase {
namespace {

TEST(MemoryPool, CountsUseAndPeakByTag) {
  HostDevice device;
  MemoryPool pool(device, MemoryTier::kDevice, 10'000);
  {
    const Buffer weights = pool.allocate(4'000, MemoryTag::kWeights);
    Buffer kv = pool.allocate(5'000, MemoryTag::kKv);
    EXPECT_EQ(pool.use().now, 9'000u);
    EXPECT_EQ(pool.room(), 1'000u);
    kv = pool.allocate(1'000, MemoryTag::kKv);
    EXPECT_EQ(pool.use(MemoryTag::kKv).now, 1'000u);
    EXPECT_EQ(pool.use(MemoryTag::kKv).peak, 6'000u);
  }
  EXPECT_EQ(pool.use().now, 0u);
  EXPECT_EQ(pool.use().peak, 10'000u);
}

TEST(MemoryPool, RefusesBeyondTheBudgetAndNamesTheNumbers) {
  HostDevice device;
  MemoryPool pool(device, MemoryTier::kDevice, 1'000);
  const Buffer held = pool.allocate(600, MemoryTag::kKv);
  try {
    (void)pool.allocate(401, MemoryTag::kWorkspace);
    FAIL() << "the budget did not hold";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), "E-MEM-BUDGET");
    EXPECT_EQ(error.role(), ErrorRole::kResources);
    EXPECT_NE(error.message().find("401"), std::string::npos);
    EXPECT_NE(error.message().find("1000"), std::string::npos);
  }
  EXPECT_EQ(pool.use().now, 600u);
}

TEST(MemoryPool, AFailedAllocationIsNotCounted) {
  HostDevice device;
  MemoryPool pool(device, MemoryTier::kDevice, UINT64_MAX);
  EXPECT_THROW((void)pool.allocate(std::size_t{1} << 62, MemoryTag::kKv), Error);
  EXPECT_EQ(pool.use().now, 0u);
}

TEST(HostDevice, AlignsAndKeepsBytes) {
  HostDevice device;
  const auto stream = device.make_stream();
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{100}, std::size_t{5} << 20}) {
    auto* a = static_cast<unsigned char*>(device.allocate(bytes));
    auto* b = static_cast<unsigned char*>(device.allocate(bytes));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % 64, 0u);
    a[0] = 7;
    a[bytes - 1] = 9;
    device.copy(b, a, bytes, *stream);
    EXPECT_EQ(b[bytes - 1], 9);
    device.release(a, bytes);
    device.release(b, bytes);
  }
  EXPECT_GT(host_memory().available, 0u);
  EXPECT_LE(host_memory().available, host_memory().total);
}

}  // namespace
}  // namespace triphase
