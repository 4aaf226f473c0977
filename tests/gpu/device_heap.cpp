// Linked into a program of kernel tests, makes what they allocate managed memory, and every launch
// wait: tests written for the emulator, whose kernels read and write vectors, run on a GPU as they
// are. Each test skips itself where there is no GPU.
//
// Between the tests, and before and after all of them, allocations are ordinary ones. The program
// ends without destructors, since what tests left behind may be gone with the device by then.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>

#include "kernels/cuda/cuda_check.h"
#include "tests/emulated/emulated_test.h"

namespace triphase {
namespace {

constexpr std::size_t kArenaBytes = std::size_t{4} << 30;
constexpr std::size_t kLeast = 256;  // bytes of a block, and what blocks are aligned to

// Blocks of powers of two, from a bump pointer or a list of freed ones. Trivial, so that it is
// there before anything is constructed and after all is destroyed.
struct Arena {
  std::mutex mutex;
  std::byte* begin = nullptr;
  std::size_t used = 0;
  bool open = false;
  std::array<void*, 64> freed{};  // by the size's exponent; the next one is in the block

  [[nodiscard]] bool holds(const void* data) const {
    const auto* at = static_cast<const std::byte*>(data);
    return begin != nullptr && at >= begin && at < begin + kArenaBytes;
  }
};
constinit Arena g_arena;

// A block's size stands in front of it.
struct Header {
  std::size_t bytes;
};

void* take(std::size_t bytes) {
  const std::lock_guard lock(g_arena.mutex);
  if (!g_arena.open) return nullptr;
  const std::size_t block = std::bit_ceil(std::max(bytes + kLeast, 2 * kLeast));
  void*& freed = g_arena.freed[static_cast<std::size_t>(std::countr_zero(block))];
  std::byte* start = nullptr;
  if (freed != nullptr) {
    start = static_cast<std::byte*>(freed);
    freed = *reinterpret_cast<void**>(start + kLeast);
  } else {
    if (block > kArenaBytes - g_arena.used) throw std::bad_alloc();
    start = g_arena.begin + g_arena.used;
    g_arena.used += block;
  }
  new (start) Header{block};
  return start + kLeast;
}

void give_back(void* data) noexcept {
  const std::lock_guard lock(g_arena.mutex);
  std::byte* start = static_cast<std::byte*>(data) - kLeast;
  const std::size_t block = reinterpret_cast<const Header*>(start)->bytes;
  void*& freed = g_arena.freed[static_cast<std::size_t>(std::countr_zero(block))];
  *static_cast<void**>(data) = freed;
  freed = start;
}

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (alignment <= kLeast) {
    if (void* data = take(bytes)) return data;
  }
  void* data = std::aligned_alloc(
      alignment, (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment * alignment);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

void release(void* data) noexcept {
  if (!g_arena.holds(data)) {
    std::free(data);
  } else if (g_arena.open) {
    give_back(data);
  }
}

class OnTheGpu final : public testing::EmptyTestEventListener {
 public:
  void OnTestProgramStart(const testing::UnitTest&) override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return;
    int concurrent = 0;
    check_cuda(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0),
               "cudaDeviceGetAttribute");
    if (concurrent == 0) return;  // the host may not touch it beside the GPU
    void* begin = nullptr;
    check_cuda(cudaMallocManaged(&begin, kArenaBytes), "cudaMallocManaged");
    g_arena.begin = static_cast<std::byte*>(begin);
  }
  void OnTestStart(const testing::TestInfo&) override {
    if (g_arena.begin == nullptr) {
      GTEST_SKIP() << "no CUDA device with managed memory on this machine";
    }
    g_arena.open = true;
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    // Faults show at the test that made them; all that follow fail too.
    if (!g_arena.open) return;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << test.name();
    g_arena.open = false;
  }
};

const bool g_listens = [] {
  ::setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  testing::UnitTest::GetInstance()->listeners().Append(new OnTheGpu);
  return true;
}();

}  // namespace

bool cuda::has_warpgroups() {
  int major = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0),
             "cudaDeviceGetAttribute");
  return major == 9;
}

}  // namespace triphase

void* operator new(std::size_t bytes) {
  return triphase::allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return triphase::allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* data) noexcept { triphase::release(data); }
void operator delete(void* data, std::size_t) noexcept { triphase::release(data); }
void operator delete(void* data, std::align_val_t) noexcept { triphase::release(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept {
  triphase::release(data);
}

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int code = RUN_ALL_TESTS();
  std::fflush(nullptr);
  std::_Exit(code);
}
