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
    kv = pool.allocate(1'000, MemoryTag::kKv);
    EXPECT_EQ(pool.use(MemoryTag::kKv).now, 1'000u);
    EXPECT_EQ(pool.use(MemoryTag::kKv).peak, 6'000u);
  }
  EXPECT_EQ(pool.use().now, 0u);
  EXPECT_EQ(pool.use().peak, 10'000u);
}

TEST(MemoryPool, ForgottenPeaksCountFromThePresentUse) {
  HostDevice device;
  MemoryPool pool(device, MemoryTier::kDevice, 10'000);
  const Buffer weights = pool.allocate(4'000, MemoryTag::kWeights);
  { const Buffer kv = pool.allocate(5'000, MemoryTag::kKv); }
  pool.forget_peaks();
  EXPECT_EQ(pool.use().peak, 4'000u);
  EXPECT_EQ(pool.use(MemoryTag::kWeights).peak, 4'000u);
  EXPECT_EQ(pool.use(MemoryTag::kKv).peak, 0u);
  const Buffer kv = pool.allocate(1'000, MemoryTag::kKv);
  EXPECT_EQ(pool.use(MemoryTag::kKv).peak, 1'000u);
  EXPECT_EQ(pool.use().now, 5'000u);
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

// A device whose memory is counted and limited, and whose streams are said to run by themselves.
class CountedDevice final : public Device {
 public:
  [[nodiscard]] std::string_view name() const override { return "of a test"; }
  [[nodiscard]] void* allocate(std::size_t bytes) override {
    if (bytes > most - allocated) {
      throw Error(ErrorRole::kResources, "E-MEM-ALLOC", "device memory");
    }
    allocated += bytes;
    ++allocations;
    return device_.allocate(bytes);
  }
  void release(void* data, std::size_t bytes) noexcept override {
    allocated -= bytes;
    device_.release(data, bytes);
  }
  [[nodiscard]] void* allocate_host(std::size_t bytes) override {
    return device_.allocate_host(bytes);
  }
  void release_host(void* data, std::size_t bytes) noexcept override {
    device_.release_host(data, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream& stream) override {
    device_.copy(to, from, bytes, stream);
  }
  [[nodiscard]] std::unique_ptr<Stream> make_stream() override { return device_.make_stream(); }
  [[nodiscard]] std::unique_ptr<Event> make_event() override { return device_.make_event(); }

  std::size_t most = SIZE_MAX;
  std::size_t allocated = 0;
  int allocations = 0;

 private:
  HostDevice device_;
};

TEST(PoolDevice, ReleasedBlocksAreReused) {
  CountedDevice device;
  {
    MemoryPool pool(device, MemoryTier::kDevice, 10'000);
    PoolDevice reusing(pool, MemoryTag::kSelection, PoolDevice::Released::kReused);
    void* large = reusing.allocate(1'000);
    void* small = reusing.allocate(500);
    reusing.release(large, 1'000);
    reusing.release(small, 500);
    EXPECT_EQ(pool.use().now, 0u);
    // The smallest that will do, unless it is far too large.
    EXPECT_EQ(reusing.allocate(500), small);
    void* other = reusing.allocate(800);
    EXPECT_NE(other, large);
    EXPECT_EQ(reusing.allocate(900), large);
    EXPECT_EQ(pool.use(MemoryTag::kSelection).now, 500u + 800u + 1'000u);
    EXPECT_EQ(device.allocations, 3);
    // A block keeps its size, however little it was last taken for.
    reusing.release(large, 900);
    EXPECT_EQ(pool.use().now, 500u + 800u);
    EXPECT_EQ(reusing.allocate(1'000), large);
    reusing.release(large, 1'000);
    reusing.release(small, 500);
    reusing.release(other, 800);
    EXPECT_EQ(pool.use().now, 0u);
    EXPECT_EQ(device.allocated, 2'300u);
  }
  EXPECT_EQ(device.allocated, 0u);
}

TEST(PoolDevice, KeptBlocksGoWhereOthersNeedTheirBytes) {
  CountedDevice device;
  MemoryPool pool(device, MemoryTier::kDevice, 3'000);
  PoolDevice reusing(pool, MemoryTag::kSelection, PoolDevice::Released::kReused);
  for (const bool by_budget : {true, false}) {
    device.most = by_budget ? SIZE_MAX : 2'500;
    void* first = reusing.allocate(1'000);
    void* second = reusing.allocate(1'000);
    reusing.release(first, 1'000);
    EXPECT_EQ(pool.use().now, 1'000u);
    // One is in use, so that the other's bytes are needed.
    const Buffer buffer = pool.allocate(by_budget ? 1'500 : 600, MemoryTag::kKv);
    EXPECT_EQ(device.allocated, 1'000u + buffer.bytes());
    reusing.release(second, 1'000);
    EXPECT_EQ(reusing.allocate(1'000), second);
    EXPECT_THROW((void)pool.allocate(2'000, MemoryTag::kKv), Error);
    reusing.release(second, 1'000);
    EXPECT_EQ(pool.use().now, buffer.bytes());
  }
  EXPECT_EQ(pool.use().now, 0u);
}

// Launches that use a kept block may not have been handed to the device yet.
TEST(PoolDevice, KeptBlocksGoOnceTheirStreamIsDone) {
  class CountedStream final : public Stream {
   public:
    void synchronize() override {
      ++waits;
      allocated = device->allocated;
    }
    void wait_for(const Event&) override {}

    CountedDevice* device = nullptr;
    int waits = 0;
    std::size_t allocated = 0;
  };
  CountedDevice device;
  CountedStream stream;
  stream.device = &device;
  for (const bool by_budget : {true, false}) {
    MemoryPool pool(device, MemoryTier::kDevice, by_budget ? 1'500 : 10'000);
    device.most = by_budget ? SIZE_MAX : 1'500;
    PoolDevice reusing(pool, MemoryTag::kSelection, PoolDevice::Released::kReused);
    reusing.work_on(stream);
    stream.waits = 0;
    void* first = reusing.allocate(1'000);
    reusing.release(first, 1'000);
    void* larger = reusing.allocate(1'400);
    EXPECT_EQ(stream.waits, 1);
    EXPECT_EQ(stream.allocated, 1'000u) << "freed before";
    EXPECT_EQ(device.allocated, 1'400u);
    reusing.release(larger, 1'400);
    larger = reusing.allocate(1'400);
    reusing.release(larger, 1'400);
    EXPECT_EQ(stream.waits, 1) << "nothing had to go";
  }
}

TEST(PoolDevice, ADeviceThatRunsAtOnceFreesWhatIsReleased) {
  HostDevice device;
  MemoryPool pool(device, MemoryTier::kDevice, 1'000);
  PoolDevice reusing(pool, MemoryTag::kSelection, PoolDevice::Released::kReused);
  reusing.release(reusing.allocate(600), 600);
  EXPECT_EQ(pool.use().now, 0u);
  const Buffer buffer = pool.allocate(1'000, MemoryTag::kKv);
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
}

}  // namespace
}  // namespace triphase
