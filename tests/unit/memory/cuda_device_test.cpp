// The CUDA device: with a GPU its copies, events and pinning; without one its refusals.

#include "memory/cuda/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/cuda_check.h"
#include "memory/host_device.h"
#include "memory/memory_pool.h"

namespace triphase {
namespace {

using testing::HasSubstr;

template <class Body>
Error error_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {ErrorRole::kInternal, "none", "none"};
}

TEST(CudaErrors, NameCallSizesAndCudasOwnText) {
  const Error fault =
      error_of([] { check_cuda(cudaErrorIllegalAddress, "gather_attn", "rows 64, d 128"); });
  EXPECT_EQ(fault.role(), ErrorRole::kDevice);
  EXPECT_EQ(fault.code(), "E-DEV-CUDA");
  EXPECT_THAT(fault.message(), HasSubstr("gather_attn, rows 64, d 128: "));
  EXPECT_THAT(fault.message(), HasSubstr("cudaErrorIllegalAddress"));

  const Error memory =
      error_of([] { check_cuda(cudaErrorMemoryAllocation, "cudaMalloc", "9 bytes"); });
  EXPECT_EQ(memory.role(), ErrorRole::kResources);
  EXPECT_EQ(memory.code(), "E-MEM-ALLOC");

  const Error driver =
      error_of([] { check_cuda(cudaErrorInsufficientDriver, "cudaGetDeviceCount"); });
  EXPECT_EQ(driver.role(), ErrorRole::kResources);
  EXPECT_EQ(driver.code(), "E-DEV-NONE");
}

TEST(CudaDevice, MissingDevicesAreRefusedByName) {
  const int count = cuda_device_count();
  const Error error = error_of([&] { const CudaDevice device(count); });
  EXPECT_EQ(error.code(), "E-DEV-NONE");
  EXPECT_EQ(exit_code(error.role()), 5);
}

TEST(CudaDevice, WithoutADriverThatIsSaid) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0) return;  // there is one
  const Error error = error_of([] { const CudaDevice device(0); });
  EXPECT_EQ(error.code(), "E-DEV-NONE");
  EXPECT_THAT(error.message(), HasSubstr("GPU driver: none on this machine"));
  EXPECT_EQ(cuda_problem(), "") << "nothing to warn of";
}

TEST(CudaDevice, StreamsOfOtherDevicesAreRefused) {
  HostDevice host;
  const auto stream = host.make_stream();
  EXPECT_THROW((void)cuda_stream(*stream), Error);
}

class CudaDeviceOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  }
};

TEST_F(CudaDeviceOnGpu, CopiesRoundTripFromPinnedMemory) {
  CudaDevice device(0);
  PinnedHostDevice host(device, cuda_host_pinning(), 4);
  MemoryPool device_pool(device, MemoryTier::kDevice, std::uint64_t{1} << 30);
  MemoryPool host_pool(host, MemoryTier::kHost, std::uint64_t{1} << 30);
  constexpr std::size_t kCount = 1 << 20;
  const Buffer from = host_pool.allocate(kCount * 4, MemoryTag::kStaging);
  const Buffer to = host_pool.allocate(kCount * 4, MemoryTag::kStaging);
  const Buffer on_device = device_pool.allocate(kCount * 4, MemoryTag::kKv);
  std::iota(from.as<std::uint32_t>(), from.as<std::uint32_t>() + kCount, 7U);
  const auto up = device.make_stream();
  const auto down = device.make_stream();
  CudaEvent arrived(0);
  device.copy(on_device.data(), from.data(), kCount * 4, *up);
  arrived.record(*up);
  down->wait_for(arrived);
  device.copy(to.data(), on_device.data(), kCount * 4, *down);
  down->synchronize();
  EXPECT_TRUE(arrived.done());
  EXPECT_EQ(std::memcmp(from.data(), to.data(), kCount * 4), 0);
}

TEST_F(CudaDeviceOnGpu, EventsTellTimeInBothDirectionsAcrossStreams) {
  CudaDevice device(0);
  const auto one = device.make_stream();
  const auto other = device.make_stream();
  CudaEvent first(0);
  CudaEvent second(0);
  first.record(*one);
  first.synchronize();
  second.record(*other);
  second.synchronize();
  EXPECT_GT(second.seconds_since(first), 0.0);
  EXPECT_LT(first.seconds_since(second), 0.0);
}

TEST_F(CudaDeviceOnGpu, CopiesAcrossAPinBoundary) {
  CudaDevice device(0);
  PinnedHostDevice host(device, cuda_host_pinning(), 8);
  constexpr std::size_t kBytes = kPinChunk + (std::size_t{1} << 20);
  auto* block = static_cast<std::byte*>(host.allocate(kBytes));
  constexpr std::size_t kAround = 1 << 19;
  std::byte* from = block + kPinChunk - kAround;
  std::memset(from, 0x3C, 2 * kAround);
  void* there = device.allocate(2 * kAround);
  const auto stream = device.make_stream();
  device.copy(there, from, 2 * kAround, *stream);
  stream->synchronize();
  std::memset(from, 0, 2 * kAround);
  device.copy(from, there, 2 * kAround, *stream);
  stream->synchronize();
  EXPECT_EQ(from[0], std::byte{0x3C});
  EXPECT_EQ(from[2 * kAround - 1], std::byte{0x3C});
  device.release(there, 2 * kAround);
  host.release(block, kBytes);
}

TEST_F(CudaDeviceOnGpu, RefusedAllocationsSayHowMuchIsFree) {
  CudaDevice device(0);
  const Error error = error_of([&] { (void)device.allocate(device.facts().total_bytes * 2); });
  EXPECT_EQ(error.code(), "E-MEM-ALLOC");
  EXPECT_THAT(error.message(), HasSubstr("are free"));
  EXPECT_THAT(error.message(), HasSubstr("--device-memory"));
}

}  // namespace
}  // namespace triphase
