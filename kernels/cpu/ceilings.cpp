#include "kernels/cpu/ceilings.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/device_block.h"
#include "base/steady_seconds.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/ceilings.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// The sum keeps the compiler from dropping the loads.
float read_block(const float* data, std::size_t count) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d);
  auto b = a;
  auto c = a;
  auto e = a;
  std::size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    a = hn::Add(a, hn::LoadU(d, data + i));
    b = hn::Add(b, hn::LoadU(d, data + i + lanes));
    c = hn::Add(c, hn::LoadU(d, data + i + 2 * lanes));
    e = hn::Add(e, hn::LoadU(d, data + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

constexpr std::int64_t kFmaRounds = 2'000'000;
constexpr int kFmaChains = 12;

double fma_block() {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, 0.999F);
  auto a = hn::Set(d, 1.0F), b = a, c = a, e = a, f = a, g = a, h = a, i = a, j = a, k = a, l = a,
       m = a;
  for (std::int64_t round = 0; round < kFmaRounds; ++round) {
    a = hn::MulAdd(a, factor, factor);
    b = hn::MulAdd(b, factor, factor);
    c = hn::MulAdd(c, factor, factor);
    e = hn::MulAdd(e, factor, factor);
    f = hn::MulAdd(f, factor, factor);
    g = hn::MulAdd(g, factor, factor);
    h = hn::MulAdd(h, factor, factor);
    i = hn::MulAdd(i, factor, factor);
    j = hn::MulAdd(j, factor, factor);
    k = hn::MulAdd(k, factor, factor);
    l = hn::MulAdd(l, factor, factor);
    m = hn::MulAdd(m, factor, factor);
#if defined(__GNUC__) && HWY_TARGET != HWY_SCALAR
    // Keeps twelve chains: identical ones would be merged.
    asm volatile("" : "+x"(a.raw), "+x"(b.raw), "+x"(c.raw), "+x"(e.raw), "+x"(f.raw), "+x"(g.raw));
    asm volatile("" : "+x"(h.raw), "+x"(i.raw), "+x"(j.raw), "+x"(k.raw), "+x"(l.raw), "+x"(m.raw));
#endif
  }
  a = hn::Add(hn::Add(hn::Add(a, b), hn::Add(c, e)), hn::Add(hn::Add(f, g), hn::Add(h, i)));
  a = hn::Add(hn::Add(a, hn::Add(j, k)), hn::Add(l, m));
  return static_cast<double>(hn::GetLane(hn::SumOfLanes(d, a)));
}

double fma_operations() {
  return 2.0 * kFmaChains * static_cast<double>(kFmaRounds) *
         static_cast<double>(hn::Lanes(hn::ScalableTag<float>()));
}

}  // namespace
}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace triphase::cpu {
namespace {

HWY_EXPORT(read_block);
HWY_EXPORT(fma_block);
HWY_EXPORT(fma_operations);

std::atomic<double> sink;

double seconds_of(ThreadPool& pool, std::int64_t tasks, auto&& body) {
  const double start = now_seconds(pool);
  pool.parallel_for(tasks, body);
  return now_seconds(pool) - start;
}

}  // namespace

double now_seconds(const ThreadPool& pool) {
  if (pool.threads() == 1) {
    // The process's own clock only moves every few milliseconds where CPU time is limited.
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
  return steady_seconds();
}

double read_seconds(ThreadPool& pool, std::span<const std::byte> data, int runs) {
  constexpr std::size_t kBlock = 1 << 20;
  const auto blocks = static_cast<std::int64_t>(data.size() / kBlock);
  double best = 1e30;
  for (int run = 0; run < runs; ++run) {
    best = std::min(best, seconds_of(pool, blocks, [&](std::int64_t block, int) {
                      const auto* from = reinterpret_cast<const float*>(
                          data.data() + static_cast<std::size_t>(block) * kBlock);
                      sink = HWY_DYNAMIC_DISPATCH(read_block)(from, kBlock / sizeof(float));
                    }));
  }
  return best;
}

double peak_flops(ThreadPool& pool, int runs) {
  double best = 1e30;
  for (int run = 0; run < runs; ++run) {
    best = std::min(best, seconds_of(pool, pool.threads(), [&](std::int64_t, int) {
                      sink = HWY_DYNAMIC_DISPATCH(fma_block)();
                    }));
  }
  return pool.threads() * HWY_DYNAMIC_DISPATCH(fma_operations)() / best;
}

Ceilings measure_ceilings(ThreadPool& pool, Device& device, int runs) {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  constexpr std::size_t kBlock = 1 << 20;
  const DeviceBlock memory(device, kBytes);
  std::byte* const data = memory.data();
  pool.parallel_for(kBytes / kBlock, [&](std::int64_t block, int) {
    std::memset(data + static_cast<std::size_t>(block) * kBlock, 1, kBlock);
  });
  Ceilings ceilings;
  ceilings.read_bytes_per_second =
      static_cast<double>(kBytes) / read_seconds(pool, {data, kBytes}, runs);
  double copy = 1e30;
  for (int run = 0; run < runs; ++run) {
    copy = std::min(copy, seconds_of(pool, kBytes / 2 / kBlock, [&](std::int64_t block, int) {
                      std::byte* from = data + static_cast<std::size_t>(block) * kBlock;
                      std::memcpy(from + kBytes / 2, from, kBlock);
                    }));
  }
  ceilings.copy_bytes_per_second = static_cast<double>(kBytes) / copy;
  ceilings.fma_flops = peak_flops(pool, runs);
  return ceilings;
}

}  // namespace triphase::cpu
#endif
