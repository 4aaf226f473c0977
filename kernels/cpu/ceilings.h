#pragma once

// What this machine can do at most: the ceilings that kernel speeds are given as a share of.
// Measured with the SIMD target the kernels use, on all threads of the pool.

#include <span>

#include "base/device.h"
#include "base/thread_pool.h"
#include "kernels/ceilings.h"

namespace triphase::cpu {

// Seconds since some moment. With one thread the processor time of the calling one, which computes
// then and which other work on a shared machine does not lengthen; with more, wall time.
[[nodiscard]] double now_seconds(const ThreadPool& pool);

// Seconds to read `data` once, every thread its own blocks; the best of `runs`.
[[nodiscard]] double read_seconds(ThreadPool& pool, std::span<const std::byte> data, int runs);

// F32 fused multiply-adds on registers only, in operations (two per lane) per second; best of
// `runs`.
[[nodiscard]] double peak_flops(ThreadPool& pool, int runs);

// Measures every ceiling, over 1 GiB of the device's memory. Takes the best of `runs`, because
// other work on the machine only ever makes a run slower.
[[nodiscard]] Ceilings measure_ceilings(ThreadPool& pool, Device& device, int runs);

}  // namespace triphase::cpu
