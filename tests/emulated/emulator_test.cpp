// The emulator must notice what it promises to notice: each test plants one defect.

#include "tests/emulated/emulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/warpgroup_products.h"

namespace triphase::cuda {
namespace {

using emulated::Fault;
using emulated::Order;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::uint64_t kOrders[] = {0, 1, 2, 3};

// Sums `count` values per block: warp sums, shared memory, a barrier.
template <bool kWithBarrier>
__global__ void block_sum(const float* values, int count, float* sums) {
  TRIPHASE_SHARED(float, warp_sums, 32);
  float sum = 0.0F;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    sum += values[static_cast<int>(blockIdx.x) * count + i];
  }
  sum = warp_sum(sum);
  if (lane_id() == 0) warp_sums[warp_id()] = sum;
  if constexpr (kWithBarrier) __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0.0F;
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) total += warp_sums[warp];
    sums[blockIdx.x] = total;
  }
}

TEST(Emulator, SumsInEveryOrder) {
  std::vector<float> values(3 * 300);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 17);
  for (const std::uint64_t seed : kOrders) {
    const Order order(seed);
    std::vector<float> sums(3, NAN);
    TRIPHASE_LAUNCH((block_sum<true>), 3, 128, 0, nullptr, values.data(), 300, sums.data());
    for (std::size_t block = 0; block < 3; ++block) {
      float expected = 0.0F;
      for (std::size_t i = 0; i < 300; ++i) expected += values[block * 300 + i];
      EXPECT_EQ(sums[block], expected) << "block " << block << " order " << seed;
    }
  }
}

__global__ void read_unwritten(float* out) {
  TRIPHASE_SHARED(float, row, 32);
  TRIPHASE_DYNAMIC_SHARED(bytes);
  out[threadIdx.x] = row[threadIdx.x];
  out[32 + threadIdx.x] = reinterpret_cast<float*>(bytes)[threadIdx.x];
}

TEST(Emulator, SharedMemoryNobodyWroteIsPoison) {
  std::vector<float> out(64, 0.0F);
  TRIPHASE_LAUNCH((read_unwritten), 1, 32, 128, nullptr, out.data());
  for (const float value : out) EXPECT_TRUE(std::isnan(value));
}

__global__ void write_behind(int at) {
  TRIPHASE_SHARED(unsigned char, row, 37);
  if (threadIdx.x < 2) row[at + static_cast<int>(threadIdx.x)] = 0xFF;
}

TEST(Emulator, WritesBehindAStaticArrayAreFaults) {
  const auto launch = [](int at) { TRIPHASE_LAUNCH((write_behind), 2, 32, 0, nullptr, at); };
  EXPECT_NO_THROW(launch(35));
  EXPECT_THAT([&] { launch(36); },
              ThrowsMessage<Fault>(HasSubstr("behind the shared array row of 37 bytes")));
  EXPECT_NO_THROW(launch(35)) << "every block starts anew";
}

__global__ void overflow(int* depth) {
  volatile char frame[1024];
  frame[0] = static_cast<char>(++*depth);
  if (*depth < 1024) overflow(depth);
  frame[1] = frame[0];
}

TEST(Emulator, StacksThatOverflowDie) {
  int depth = 0;
  EXPECT_DEATH(TRIPHASE_LAUNCH((overflow), 1, 32, 0, nullptr, &depth), "");
}

TEST(Emulator, MissingBarrierReadsPoison) {
  const std::vector<float> values(300, 1.0F);
  const Order ascending(0);  // thread 0 runs to its end before warp 1 has begun
  std::vector<float> sums(1, 0.0F);
  TRIPHASE_LAUNCH((block_sum<false>), 1, 128, 0, nullptr, values.data(), 300, sums.data());
  EXPECT_TRUE(std::isnan(sums[0]));
}

__global__ void half_the_block_waits(int unused) {
  (void)unused;
  if (threadIdx.x < 32) __syncthreads();
}
__global__ void two_barriers(int unused) {
  (void)unused;
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void half_a_warp_shuffles(int unused) {
  if (lane_id() < 16) (void)shuffle(unused, 0);
}
__global__ void mixed_collectives(int unused) {
  if (lane_id() < 16) {
    (void)shuffle(unused, 0);
  } else {
    (void)ballot(true);
  }
}

TEST(Emulator, SkippedBarriersAndCollectivesAreFaults) {
  for (const std::uint64_t seed : kOrders) {
    const Order order(seed);
    EXPECT_THAT([] { TRIPHASE_LAUNCH((half_the_block_waits), 1, 64, 0, nullptr, 0); },
                ThrowsMessage<Fault>(HasSubstr("waits at the barrier")));
    EXPECT_THAT([] { TRIPHASE_LAUNCH((two_barriers), 1, 64, 0, nullptr, 0); },
                ThrowsMessage<Fault>(HasSubstr("others are at line")));
    EXPECT_THAT([] { TRIPHASE_LAUNCH((half_a_warp_shuffles), 1, 32, 0, nullptr, 0); },
                ThrowsMessage<Fault>(HasSubstr("waits for its warp in shuffle")));
    EXPECT_THAT([] { TRIPHASE_LAUNCH((mixed_collectives), 1, 32, 0, nullptr, 0); },
                ThrowsMessage<Fault>(HasSubstr("while its warp calls")));
  }
}

__global__ void ten_kib_fixed(unsigned char* out) {
  TRIPHASE_SHARED(unsigned char, fixed, 10 * 1024);
  TRIPHASE_DYNAMIC_SHARED(dynamic);
  fixed[0] = dynamic[0] = out[0];
}

// 48 KiB without leave, with leave what was asked for, and never beyond 227 KiB: fixed and dynamic
// together.
TEST(Emulator, SharedMemoryIsThatOfAnH100) {
  unsigned char out = 0;
  const auto run = [&](std::size_t kib) {
    TRIPHASE_LAUNCH((ten_kib_fixed), 1, 32, kib * 1024, nullptr, &out);
  };
  const auto allow = [](std::size_t kib) {
    allow_shared_bytes(&ten_kib_fixed, kib * 1024, "ten_kib_fixed", [] { return ""; });
  };
  EXPECT_NO_THROW(run(38));
  EXPECT_THAT([&] { run(39); }, ThrowsMessage<Fault>(HasSubstr("10240 fixed and 39936 dynamic")));
  allow(39);
  EXPECT_NO_THROW(run(39));
  EXPECT_THROW(run(40), Fault);
  allow(217);
  allow(39);  // takes nothing back
  EXPECT_NO_THROW(run(217));
  allow(218);
  EXPECT_THROW(run(218), Fault);
  EXPECT_THROW(allow(228), Fault);
}

__global__ void copy_without_wait(const float* from, float* to, int pending) {
  TRIPHASE_DYNAMIC_SHARED(shared);
  auto* values = reinterpret_cast<float*>(shared);
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < 8) copy_async16(values + 4 * thread, from + 4 * thread, thread < 7);
  copy_async_commit();
  if (pending == 0) copy_async_wait<0>();
  if (pending == 1) copy_async_wait<1>();
  __syncthreads();
  to[thread] = values[thread];
  __syncthreads();
  copy_async_wait<0>();
}

TEST(Emulator, CopiesArriveOnlyWhenWaitedFor) {
  alignas(16) float from[32];
  for (int i = 0; i < 32; ++i) from[i] = static_cast<float>(i + 1);
  std::vector<float> to(32);
  TRIPHASE_LAUNCH((copy_without_wait), 1, 32, 128, nullptr, from, to.data(), 0);
  EXPECT_EQ(to[5], 6.0F);
  EXPECT_EQ(to[27], 28.0F);
  EXPECT_EQ(to[28], 0.0F) << "an invalid copy writes zeros";
  TRIPHASE_LAUNCH((copy_without_wait), 1, 32, 128, nullptr, from, to.data(), 1);
  EXPECT_TRUE(std::isnan(to[5]));
}

__global__ void unaligned(const float* from) { (void)load16(from + 1); }

__global__ void intrinsics(unsigned* out) {
  const auto lane = static_cast<unsigned>(lane_id());
  out[lane] = ballot(lane % 3 == 0);
  out[32 + lane] = byte_permute(0x33221100U, 0x77665544U, 0x7610U);
  out[64 + lane] = shuffle_xor(lane, 4);
  out[96 + lane] = pack2<Half>(1.0F, -2.0F) ^ pack2<BFloat16>(1.0F, -2.0F);
  const float2 pair = unpack2<Half>(pack2<Half>(0.5F, 65504.0F));
  out[128 + lane] = static_cast<unsigned>(pair.x * 2.0F + pair.y);
  (void)atomic_add(&out[160], 1U);
}

TEST(Emulator, IntrinsicsDoWhatCudaDocuments) {
  EXPECT_THAT(
      [] {
        alignas(16) const float values[8] = {};
        TRIPHASE_LAUNCH((unaligned), 1, 32, 0, nullptr, values);
      },
      ThrowsMessage<Fault>(HasSubstr("not aligned")));
  std::vector<unsigned> out(161, 0);
  TRIPHASE_LAUNCH((intrinsics), 1, 32, 0, nullptr, out.data());
  EXPECT_EQ(out[9], 0x49249249U);
  EXPECT_EQ(out[32], 0x77661100U);
  EXPECT_EQ(out[64 + 5], 1U);
  EXPECT_EQ(out[96], (0xC0003C00U ^ 0xC0003F80U));
  EXPECT_EQ(out[128], 65505U);
  EXPECT_EQ(out[160], 32U);
}

// One warp: C = A B from row-major matrices in shared memory, A [16][16], B [16][8] row-major and,
// with kByColumns, by columns; with kPortable through what runs on GPUs without the instructions.
template <class T, bool kByColumns, bool kPortable>
__global__ void multiply(const T* a, const T* b, float* c) {
  TRIPHASE_DYNAMIC_SHARED(bytes);
  constexpr int kPitch = 24;  // elements: rows stay 16-byte aligned
  auto* rows_a = reinterpret_cast<T*>(bytes);
  T* rows_b = rows_a + 16 * kPitch;
  const int lane = lane_id();
  for (int i = lane; i < 256; i += 32) rows_a[i / 16 * kPitch + i % 16] = a[i];
  for (int i = lane; i < 128; i += 32) {
    rows_b[kByColumns ? i % 8 * kPitch + i / 8 : i / 8 * kPitch + i % 8] = b[i];
  }
  sync_warp();
  unsigned words_a[4];
  unsigned words_b[4];
  const T* from_a = rows_a + (lane / 8 % 2 * 8 + lane % 8) * kPitch + lane / 16 * 8;
  // Tiles of B below one another (by columns: side by side); lanes 16 to 31 repeat them.
  const T* from_b = kByColumns ? rows_b + lane % 8 * kPitch + lane / 8 % 2 * 8
                               : rows_b + (lane / 8 % 2 * 8 + lane % 8) * kPitch;
  load_matrices(words_a, from_a);
  if constexpr (kByColumns) {
    load_matrices(words_b, from_b);
  } else {
    load_matrices_transposed(words_b, from_b);
  }
  float sums[4] = {1.0F, 2.0F, 3.0F, 4.0F};
  if constexpr (kPortable) {
    portable::multiply_tiles<T>(sums, words_a, {words_b[0], words_b[1]});
  } else {
    multiply_tiles<T>(sums, words_a, {words_b[0], words_b[1]});
  }
  for (int i = 0; i < 4; ++i) {
    c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sums[i] - static_cast<float>(1 + i);
  }
}

// Small whole numbers: every sum is exact, so any order of adding gives the same.
template <class T, bool kByColumns, bool kPortable>
void expect_product() {
  std::vector<T> a;
  std::vector<T> b;
  for (int i = 0; i < 256; ++i) a.push_back(from_float<T>(static_cast<float>(i * 7 % 23 - 11)));
  for (int i = 0; i < 128; ++i) b.push_back(from_float<T>(static_cast<float>(i * 5 % 19 - 9)));
  for (const std::uint64_t seed : kOrders) {
    const Order order(seed);
    std::vector<float> c(128, NAN);
    TRIPHASE_LAUNCH((multiply<T, kByColumns, kPortable>), 1, 32, (16 + 16) * 24 * 2, nullptr,
                    a.data(), b.data(), c.data());
    for (std::size_t row = 0; row < 16; ++row) {
      for (std::size_t column = 0; column < 8; ++column) {
        float expected = 0.0F;
        for (std::size_t k = 0; k < 16; ++k) {
          expected += to_float(a[row * 16 + k]) * to_float(b[k * 8 + column]);
        }
        ASSERT_EQ(c[row * 8 + column], expected) << "row " << row << " column " << column;
      }
    }
  }
}

TEST(Emulator, TensorCoreTilesHaveTheDocumentedLayout) {
  expect_product<Half, false, false>();
  expect_product<Half, true, false>();
  expect_product<BFloat16, false, false>();
  expect_product<BFloat16, true, false>();
}

TEST(Emulator, PortableTilesGiveTheSameProducts) {
  expect_product<Half, false, true>();
  expect_product<BFloat16, true, true>();
}

__global__ void load_misaligned(const unsigned short* rows) {
  unsigned words[4];
  load_matrices(words, rows + lane_id() % 8);
}

TEST(Emulator, MisalignedTileRowsAreReported) {
  alignas(16) std::vector<unsigned short> rows(64, 0);
  EXPECT_THAT([&] { TRIPHASE_LAUNCH((load_misaligned), 1, 32, 0, nullptr, rows.data()); },
              ThrowsMessage<Fault>(HasSubstr("device_check")));
}

enum class Defect {
  kNone,
  kNotBegun,
  kNotPublished,
  kNotWaitedFor,
  kReadTooEarly,
  kOverwritten,
  kOneWarpLess
};

// Scores of 64 rows of `a` and of `b`, then of what the scores weigh in `b`: 128 channels, 64
// columns each. `a`, `b`: [64][128], in FP16.
__global__ void warpgroup_products(const std::uint16_t* a, const std::uint16_t* b, float* scores,
                                   float* sums, Defect defect) {
  TRIPHASE_DYNAMIC_SHARED(bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(bytes);
  auto* panels = reinterpret_cast<Half*>(bytes + (0 - address) % kPanelAlignment);
  Half* others = panels + 64 * 128;
  const auto thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < 64 * 16; i += kWarpgroupThreads) {
    const int place = panel_place<64>(i / 16, i % 16 * 8);
    copy_async16(panels + place, a + i * 8, true);
    copy_async16(others + place, b + i * 8, true);
  }
  copy_async_commit();
  copy_async_wait<0>();
  if (defect != Defect::kNotPublished) publish_shared();
  __syncthreads();
  const SharedPanels<64> rows(panels);
  const SharedPanels<64> columns(others);
  float score[8][4];
  float sum[16][4];
  if (defect != Defect::kNotBegun) products_begin();
  for (int c = 0; c < 128; c += 16) {
    if (defect == Defect::kOneWarpLess && thread >= 96 && c == 112) continue;
    multiply_rows<Half>(score, rows.from_column(c), columns.from_column(c), c > 0);
  }
  products_commit();
  if (defect == Defect::kOverwritten && thread == 0) panels[0].bits ^= 0x8000U;
  if (defect == Defect::kNotWaitedFor) return;
  if (defect != Defect::kReadTooEarly) products_wait<0>(score);
  products_begin();
  for (int token = 0; token < 64; token += 16) {
    unsigned weights[4];
    for (int i = 0; i < 4; ++i) {
      const float* pair = score[token / 8 + i / 2] + i % 2 * 2;
      weights[i] = pack2<Half>(pair[0], pair[1]);
    }
    multiply_columns<Half>(sum, weights, columns.from_row(token), token > 0);
  }
  products_commit();
  products_wait<0>(score, sum);
  for (int n = 0; n < 16; ++n) {
    for (int i = 0; i < 4; ++i) {
      const int row = warp_id() * 16 + i / 2 * 8 + lane_id() / 4;
      const int column = n * 8 + lane_id() % 4 * 2 + i % 2;
      if (n < 8) scores[row * 64 + column] = score[n][i];
      sums[row * 128 + column] = sum[n][i];
    }
  }
}

// Whether all came out right. Small integers, so that FP16 and F32 hold every number exactly.
bool products_are_right(Defect defect) {
  std::vector<std::uint16_t> a(64 * 128);
  std::vector<std::uint16_t> b(64 * 128);
  const auto a_at = [](int i, int c) { return (i * 5 + c * 3) % 7 == 0 ? i % 3 - 1 : 0; };
  const auto b_at = [](int j, int c) { return (j * 3 + c * 7 + j / 8) % 5 - 2; };
  for (int i = 0; i < 64; ++i) {
    for (int c = 0; c < 128; ++c) {
      a[static_cast<std::size_t>(i * 128 + c)] = f32_to_f16(static_cast<float>(a_at(i, c)));
      b[static_cast<std::size_t>(i * 128 + c)] = f32_to_f16(static_cast<float>(b_at(i, c)));
    }
  }
  std::vector<float> scores(64 * 64, NAN);
  std::vector<float> sums(64 * 128, NAN);
  TRIPHASE_LAUNCH((warpgroup_products), 1, 128, 33 * 1024, nullptr, a.data(), b.data(),
                  scores.data(), sums.data(), defect);
  for (int i = 0; i < 64; ++i) {
    std::vector<int> row(64);
    for (int j = 0; j < 64; ++j) {
      for (int c = 0; c < 128; ++c) row[static_cast<std::size_t>(j)] += a_at(i, c) * b_at(j, c);
      if (scores[static_cast<std::size_t>(i * 64 + j)] !=
          static_cast<float>(row[static_cast<std::size_t>(j)])) {
        return false;
      }
    }
    for (int c = 0; c < 128; ++c) {
      int sum = 0;
      for (int j = 0; j < 64; ++j) sum += row[static_cast<std::size_t>(j)] * b_at(j, c);
      if (sums[static_cast<std::size_t>(i * 128 + c)] != static_cast<float>(sum)) return false;
    }
  }
  return true;
}

TEST(Emulator, WarpgroupProductsHaveTheDocumentedLayout) {
  for (const std::uint64_t seed : kOrders) {
    const Order order(seed);
    EXPECT_TRUE(products_are_right(Defect::kNone)) << "order " << seed;
  }
}

TEST(Emulator, WarpgroupProductsThatGoWrongAreNoticed) {
  const auto run = [](Defect defect) { return [defect] { (void)products_are_right(defect); }; };
  for (const std::uint64_t seed : kOrders) {
    const Order order(seed);
    EXPECT_THAT(run(Defect::kNotBegun),
                ThrowsMessage<Fault>(HasSubstr("without products_begin()")));
    EXPECT_THAT(run(Defect::kNotPublished), ThrowsMessage<Fault>(HasSubstr("are not published")));
    EXPECT_THAT(run(Defect::kOneWarpLess),
                ThrowsMessage<Fault>(HasSubstr("11 warpgroup products, not all 128 threads")));
    // Under a descending order they happen when they are begun.
    if (seed == 1) continue;
    EXPECT_THAT(run(Defect::kNotWaitedFor), ThrowsMessage<Fault>(HasSubstr("never waited for")));
    EXPECT_FALSE(products_are_right(Defect::kReadTooEarly));
    EXPECT_FALSE(products_are_right(Defect::kOverwritten));
  }
}

}  // namespace
}  // namespace triphase::cuda
