#include <cmath>
#include <cstdint>
#include <string>

#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/ceiling_kernels.h"
#include "kernels/cuda/launch_check.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 8;   // 16-byte loads under way per thread
constexpr int kChains = 16;  // independent multiply-adds per thread
constexpr int kSteps = 16;   // of every chain in a round

__global__ void __launch_bounds__(kThreads)
    read_all_kernel(const uint4* data, std::int64_t count, float* sink) {
  TRIPHASE_SHARED(float, scratch, kBlockReduceWords);
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kThreads;
  std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  unsigned mixed = 0;
  for (; at + (kUnroll - 1) * threads < count; at += kUnroll * threads) {
    uint4 words[kUnroll];
    TRIPHASE_UNROLL
    for (int i = 0; i < kUnroll; ++i) words[i] = load16(data + at + i * threads);
    TRIPHASE_UNROLL
    for (int i = 0; i < kUnroll; ++i) {
      mixed ^= words[i].x ^ words[i].y ^ words[i].z ^ words[i].w;
    }
  }
  for (; at < count; at += threads) {
    const uint4 words = load16(data + at);
    mixed ^= words.x ^ words.y ^ words.z ^ words.w;
  }
  const float sum = block_sum(static_cast<float>(count_bits(mixed)), scratch);
  if (threadIdx.x == 0) sink[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) multiply_add_kernel(int rounds, float* sink) {
  TRIPHASE_SHARED(float, scratch, kBlockReduceWords);
  float chains[kChains];
  TRIPHASE_UNROLL
  for (int i = 0; i < kChains; ++i) chains[i] = static_cast<float>(threadIdx.x + i);
  const float factor = 0.999F + 1e-9F * static_cast<float>(blockIdx.x);
  for (int round = 0; round < rounds; ++round) {
    TRIPHASE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      TRIPHASE_UNROLL
      for (int i = 0; i < kChains; ++i) chains[i] = fma_rn(chains[i], factor, factor);
    }
  }
  float sum = 0.0F;
  TRIPHASE_UNROLL
  for (int i = 0; i < kChains; ++i) sum += chains[i];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) sink[blockIdx.x] = sum;
}

}  // namespace

void read_all(const void* data, std::size_t bytes, int blocks, float* sink, StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"bytes", static_cast<std::int64_t>(bytes)}, {"blocks", blocks}});
  };
  require(data != nullptr && sink != nullptr && blocks > 0 && bytes % 16 == 0, "read_all",
          "null pointer, no blocks, or bytes that are no multiple of 16", shape);
  TRIPHASE_LAUNCH((read_all_kernel), static_cast<unsigned>(blocks), kThreads, 0, stream,
                  static_cast<const uint4*>(data), static_cast<std::int64_t>(bytes / 16), sink);
  check_launched("read_all", shape);
}

void multiply_add(int rounds, int blocks, float* sink, StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"rounds", rounds}, {"blocks", blocks}}); };
  require(sink != nullptr && blocks > 0 && rounds > 0, "multiply_add",
          "null pointer, no blocks or no rounds", shape);
  TRIPHASE_LAUNCH((multiply_add_kernel), static_cast<unsigned>(blocks), kThreads, 0, stream, rounds,
                  sink);
  check_launched("multiply_add", shape);
}

double multiply_add_operations() { return 2.0 * kThreads * kChains * kSteps; }

}  // namespace triphase::cuda
