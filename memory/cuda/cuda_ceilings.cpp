#include "memory/cuda/cuda_ceilings.h"

#include <algorithm>

#include "kernels/cuda/ceiling_kernels.h"
#include "memory/memory_pool.h"

namespace triphase::cuda {
namespace {

constexpr std::size_t kMostBytes = std::size_t{2} << 30;
constexpr int kBlocksPerMultiprocessor = 8;
constexpr int kRounds = 4000;

// Seconds of the fastest of `runs`, after one that is not counted.
template <class Work>
double best_seconds(CudaDevice& device, Stream& stream, int runs, const Work& work) {
  CudaEvent begin(device.index());
  CudaEvent end(device.index());
  double best = 1e30;
  for (int run = 0; run <= runs; ++run) {
    begin.record(stream);
    work();
    end.record(stream);
    end.synchronize();
    if (run > 0) best = std::min(best, end.seconds_since(begin));
  }
  return best;
}

}  // namespace

Ceilings measure_ceilings(CudaDevice& device, int runs) {
  const std::size_t bytes = std::min(kMostBytes, device.free_bytes() / 2) / (std::size_t{1} << 21)
                            << 21;
  MemoryPool pool(device, MemoryTier::kDevice, UINT64_MAX);
  const Buffer data = pool.allocate(bytes, MemoryTag::kWorkspace);
  const int blocks = device.facts().multiprocessors * kBlocksPerMultiprocessor;
  const Buffer sink =
      pool.allocate(static_cast<std::size_t>(blocks) * sizeof(float), MemoryTag::kWorkspace);
  const auto stream = device.make_stream();
  Ceilings ceilings;
  ceilings.read_bytes_per_second =
      static_cast<double>(bytes) / best_seconds(device, *stream, runs, [&] {
        read_all(data.data(), bytes, blocks, sink.as<float>(), stream->launches());
      });
  ceilings.copy_bytes_per_second =
      static_cast<double>(bytes) / best_seconds(device, *stream, runs, [&] {
        device.copy(data.data() + bytes / 2, data.data(), bytes / 2, *stream);
      });
  ceilings.fma_flops =
      multiply_add_operations() * kRounds * blocks / best_seconds(device, *stream, runs, [&] {
        multiply_add(kRounds, blocks, sink.as<float>(), stream->launches());
      });
  return ceilings;
}

}  // namespace triphase::cuda
