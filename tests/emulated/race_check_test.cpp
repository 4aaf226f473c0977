// The race check must notice what it promises to notice, and nothing else. Kernels plant one defect
// each; the lines that the fault must name end with "// RACE " and the defect's name.

#include "tests/emulated/race_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "kernels/cuda/dialect.h"

namespace triphase::cuda {
namespace {

using emulated::Fault;
using emulated::Order;
using testing::HasSubstr;

constexpr std::uint64_t kOrders[] = {0, 1, 2, 3};
constexpr const char* kFile = "tests/emulated/race_check_test.cpp";

__device__ int thread() { return static_cast<int>(threadIdx.x); }

// "FILE:LINE" of each marked line; one that stands for both accesses is named twice.
std::vector<std::string> marked(const std::string& defect) {
  std::ifstream source(std::string(TRIPHASE_TEST_SOURCE_DIR "/") + kFile);
  std::vector<std::string> lines;
  int number = 0;
  for (std::string line; std::getline(source, line);) {
    ++number;
    if (line.ends_with("// RACE " + defect)) {
      lines.push_back(std::string(kFile) + ":" + std::to_string(number));
    }
  }
  if (lines.size() == 1) lines.push_back(lines[0]);
  return lines;
}

template <class Launch>
std::string fault_of(const Launch& launch) {
  try {
    launch();
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "no fault";
}

// In every order of blocks and threads: both lines, one after the other in either order.
template <class Launch>
void expect_race(const std::string& defect, const std::string& memory, const Launch& launch) {
  const std::vector<std::string> lines = marked(defect);
  ASSERT_EQ(lines.size(), 2U) << defect;
  for (const std::uint64_t seed : kOrders) {
    const Order order(seed);
    std::string text = fault_of(launch);
    EXPECT_THAT(text, HasSubstr("race: ")) << defect << ", order " << seed;
    EXPECT_THAT(text, HasSubstr(memory)) << defect << ", order " << seed;
    for (const std::string& line : lines) {
      const std::size_t at = text.find(line);
      EXPECT_NE(at, std::string::npos) << defect << ", order " << seed << ": no " << line << " in\n"
                                       << text;
      if (at != std::string::npos) text.erase(at, line.size());
    }
  }
}

template <class Launch>
void expect_no_fault(const Launch& launch) {
  for (const std::uint64_t seed : kOrders) {
    const Order order(seed);
    EXPECT_EQ(fault_of(launch), "no fault") << "order " << seed;
  }
}

enum class Between { kNothing, kShuffle, kBallot, kWarp, kBlock };

__device__ void order_by(Between between) {
  if (between == Between::kShuffle) (void)shuffle(thread(), 0);
  if (between == Between::kBallot) (void)ballot(true);
  if (between == Between::kWarp) sync_warp();
  if (between == Between::kBlock) __syncthreads();
}

__global__ void sum_of_warps(Between between, float* sum) {
  TRIPHASE_SHARED(float, warp_sums, 32);
  const float mine = warp_sum(static_cast<float>(thread()));
  if (lane_id() == 0) {
    warp_sums[warp_id()] = mine;  // RACE dropped barrier
  }
  order_by(between);
  if (thread() == 0) {
    float total = 0.0F;
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) {
      total += warp_sums[warp];  // RACE dropped barrier
    }
    *sum = total;
  }
}

TEST(RaceCheck, DroppedBarrier) {
  float sum = 0.0F;
  for (const Between between : {Between::kNothing, Between::kShuffle, Between::kWarp}) {
    expect_race("dropped barrier", "warp_sums (shared memory)",
                [&] { TRIPHASE_LAUNCH((sum_of_warps), 1, 128, 0, nullptr, between, &sum); });
  }
  expect_no_fault(
      [&] { TRIPHASE_LAUNCH((sum_of_warps), 1, 128, 0, nullptr, Between::kBlock, &sum); });
  EXPECT_EQ(sum, 127.0F * 128.0F / 2.0F);
}

__global__ void broadcast(Between between, int value, int* out) {
  TRIPHASE_DYNAMIC_SHARED(shared);
  int* const top = reinterpret_cast<int*>(shared) + warp_id();
  if (lane_id() == 0) {
    *top = value;  // RACE lane 0 writes, all read
  }
  order_by(between);
  out[thread()] = *top;  // RACE lane 0 writes, all read
}

TEST(RaceCheck, LaneZeroWritesForItsWarp) {
  std::vector<int> out(64);
  for (const Between between : {Between::kNothing, Between::kShuffle, Between::kBallot}) {
    expect_race("lane 0 writes, all read", "the launch's shared bytes (shared memory)",
                [&] { TRIPHASE_LAUNCH((broadcast), 1, 64, 8, nullptr, between, 7, out.data()); });
  }
  for (const Between between : {Between::kWarp, Between::kBlock}) {
    expect_no_fault(
        [&] { TRIPHASE_LAUNCH((broadcast), 1, 64, 8, nullptr, between, 7, out.data()); });
  }
  EXPECT_EQ(out, std::vector<int>(64, 7));
}

__global__ void count_blocks(bool atomic, unsigned* count) {
  if (thread() != 0) return;
  if (atomic) {
    (void)atomic_add(count, 1U);
  } else {
    *count = blockIdx.x;  // RACE two blocks write
  }
}

TEST(RaceCheck, TwoBlocksWriteOneWord) {
  unsigned count = 0;
  expect_race("two blocks write", "global memory",
              [&] { TRIPHASE_LAUNCH((count_blocks), 3, 32, 0, nullptr, false, &count); });
  count = 0;
  expect_no_fault([&] { TRIPHASE_LAUNCH((count_blocks), 3, 32, 0, nullptr, true, &count); });
  EXPECT_EQ(count, 12U);
}

__global__ void read_neighbour(int* values, int* out) {
  if (lane_id() == 0) {
    values[blockIdx.x] = 1;  // RACE another block's word
  }
  __syncthreads();
  if (lane_id() == 1) {
    out[blockIdx.x] = values[(blockIdx.x + 1) % gridDim.x];  // RACE another block's word
  }
}

TEST(RaceCheck, ReadOfWhatAnotherBlockWrites) {
  std::vector<int> values(4, 0);
  std::vector<int> out(4, 0);
  expect_race("another block's word", "global memory", [&] {
    TRIPHASE_LAUNCH((read_neighbour), 4, 32, 0, nullptr, values.data(), out.data());
  });
  // A block of its own, and one launch after another.
  expect_no_fault([&] {
    TRIPHASE_LAUNCH((read_neighbour), 1, 32, 0, nullptr, values.data(), out.data());
    TRIPHASE_LAUNCH((read_neighbour), 1, 32, 0, nullptr, values.data(), out.data());
  });
}

__global__ void count_then_read(unsigned* count, unsigned* out) {
  (void)atomic_add(count, 1U);  // RACE atomic and plain
  if (blockIdx.x > 0 && thread() == 0) {
    *out = *count;  // RACE atomic and plain
  }
}

TEST(RaceCheck, PlainReadOfAnAtomicWord) {
  unsigned count = 0;
  unsigned out = 0;
  expect_race("atomic and plain", "global memory",
              [&] { TRIPHASE_LAUNCH((count_then_read), 2, 32, 0, nullptr, &count, &out); });
}

__global__ void copy_unwaited(const float* from, float* to, bool neighbour) {
  TRIPHASE_DYNAMIC_SHARED(shared);
  auto* values = reinterpret_cast<float*>(shared);
  copy_async16(values + 4 * thread(), from + 4 * thread(), true);  // RACE unwaited copy
  copy_async_commit();
  __syncthreads();
  const int at = neighbour ? (thread() + 1) % 32 : thread();
  to[thread()] = values[4 * at];  // RACE unwaited copy
  __syncthreads();
  copy_async_wait<0>();
}

__global__ void copy_unsynced(const float* from, float* to, Between between) {
  TRIPHASE_DYNAMIC_SHARED(shared);
  auto* values = reinterpret_cast<float*>(shared);
  copy_async16(values + 4 * thread(), from + 4 * thread(), true);  // RACE copy without barrier
  copy_async_commit();
  copy_async_wait<0>();
  order_by(between);
  to[thread()] = values[4 * ((thread() + 32) % 64)];  // RACE copy without barrier
}

TEST(RaceCheck, AsynchronousCopies) {
  alignas(16) float from[256];
  for (int i = 0; i < 256; ++i) from[i] = static_cast<float>(i);
  std::vector<float> to(64);
  for (const bool neighbour : {false, true}) {
    expect_race("unwaited copy", "(shared memory)", [&] {
      TRIPHASE_LAUNCH((copy_unwaited), 1, 32, 512, nullptr, from, to.data(), neighbour);
    });
  }
  for (const Between between : {Between::kNothing, Between::kWarp}) {
    expect_race("copy without barrier", "(shared memory)", [&] {
      TRIPHASE_LAUNCH((copy_unsynced), 1, 64, 1024, nullptr, from, to.data(), between);
    });
  }
  expect_no_fault([&] {
    TRIPHASE_LAUNCH((copy_unsynced), 1, 64, 1024, nullptr, from, to.data(), Between::kBlock);
  });
  EXPECT_EQ(to[0], 128.0F);
}

__global__ void rotate(const int* values, int rounds, bool second_barrier, int* out) {
  TRIPHASE_SHARED(int, buffer, 64);
  int sum = 0;
  for (int round = 0; round < rounds; ++round) {
    buffer[thread()] = values[thread()] + round;  // RACE buffer reused
    __syncthreads();
    sum += buffer[63 - thread()];  // RACE buffer reused
    if (second_barrier) __syncthreads();
  }
  out[thread()] = sum;
}

TEST(RaceCheck, BufferReusedInALoop) {
  const std::vector<int> values(64, 5);
  std::vector<int> out(64);
  const auto launch = [&](int rounds, bool second_barrier) {
    TRIPHASE_LAUNCH((rotate), 1, 64, 0, nullptr, values.data(), rounds, second_barrier, out.data());
  };
  expect_race("buffer reused", "buffer (shared memory)", [&] { launch(2, false); });
  expect_no_fault([&] { launch(1, false); });
  expect_no_fault([&] { launch(3, true); });
  EXPECT_EQ(out[9], 18);
}

__global__ void write_half(std::uint32_t* words, std::uint32_t* out, int shift) {
  if (thread() == 0) {
    reinterpret_cast<std::uint16_t*>(words)[shift] = 3;  // RACE partial overlap
  }
  if (thread() == 32) {
    *out = words[1];  // RACE partial overlap
  }
}

TEST(RaceCheck, PartialOverlap) {
  std::vector<std::uint32_t> words(3);
  std::uint32_t out = 0;
  for (const int shift : {2, 3}) {
    expect_race("partial overlap", "global memory", [&] {
      TRIPHASE_LAUNCH((write_half), 1, 64, 0, nullptr, words.data(), &out, shift);
    });
  }
  for (const int shift : {1, 4}) {
    expect_no_fault(
        [&] { TRIPHASE_LAUNCH((write_half), 1, 64, 0, nullptr, words.data(), &out, shift); });
  }
}

__global__ void load_shifted(const unsigned char* bytes, bool by_dialect, unsigned* out) {
  if (by_dialect) {
    out[thread()] = load16(bytes).x;  // RACE shifted load
  } else {
    out[thread()] = reinterpret_cast<const uint4*>(bytes)->y;  // RACE shifted load
  }
}

TEST(RaceCheck, VectorsOutOfAlignment) {
  alignas(16) const unsigned char bytes[64] = {};
  std::vector<unsigned> out(32);
  const std::vector<std::string> lines = marked("shifted load");
  const auto launch = [&](int shift, bool by_dialect) {
    return fault_of([&] {
      TRIPHASE_LAUNCH((load_shifted), 1, 32, 0, nullptr, bytes + shift, by_dialect, out.data());
    });
  };
  EXPECT_THAT(launch(20, true), HasSubstr("16 bytes is not aligned at " + lines[0]));
  EXPECT_THAT(launch(18, false), HasSubstr("4 bytes is not aligned at " + lines[1]));
  EXPECT_EQ(launch(16, true), "no fault");
  EXPECT_EQ(launch(16, false), "no fault");
}

template <int kCount>
__global__ void overrun(int at, float* out) {
  TRIPHASE_SHARED(float, row, kCount);
  if (at < 0) {
    out[thread()] = row[thread() - at];  // RACE overrun
  } else {
    row[thread() + at] = 1.0F;  // RACE overrun
  }
}

TEST(RaceCheck, AccessBehindAStaticArray) {
  std::vector<float> out(32);
  const std::vector<std::string> lines = marked("overrun");
  const auto launch = [&](int at) {
    return fault_of([&] { TRIPHASE_LAUNCH((overrun<36>), 1, 32, 0, nullptr, at, out.data()); });
  };
  EXPECT_THAT(launch(-5),
              HasSubstr("reads behind the shared array row of 144 bytes at " + lines[0]));
  EXPECT_THAT(launch(5),
              HasSubstr("writes behind the shared array row of 144 bytes at " + lines[1]));
  EXPECT_EQ(launch(-4), "no fault");
  EXPECT_EQ(launch(4), "no fault");
}

}  // namespace
}  // namespace triphase::cuda
