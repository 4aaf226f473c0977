#pragma once

// The microbenchmarks behind `triphase bench`. Each measures the machine's ceilings first, refuses
// to time an operation whose results do not agree with float64 arithmetic, and reports medians over
// rotating buffers beside the ceilings. Allocate from the backend's device; single-threaded
// callers.

#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/bench/measure.h"
#include "runtime/bench/report.h"

namespace triphase::bench {

// Gets each row as it is done.
using OnRow = std::function<void(Row row)>;

struct AttentionGrid {
  std::vector<std::int64_t> batches, contexts, queries;
  std::int64_t heads = 32;
  std::int64_t kv_heads = 32;
  std::int64_t head_dim = 128;
  std::int64_t page_tokens = 128;
  std::vector<DType> dtypes;
};
void bench_attention(Backend& backend, const Ceilings& ceilings, const AttentionGrid& grid,
                     const Effort& effort, const OnRow& on_row);

struct GemmGrid {
  std::vector<std::int64_t> rows, depths, columns;
  std::vector<DType> dtypes;
};
void bench_gemm(Backend& backend, const Ceilings& ceilings, const GemmGrid& grid,
                const Effort& effort, const OnRow& on_row);

// Ceiling of a direction between host and device: its own largest copy. On the device: half the
// copy ceiling, which counts bytes read and written.
struct TransferGrid {
  std::vector<std::int64_t> bytes;  // of one copy
};
void bench_transfer(Backend& backend, const Ceilings& ceilings, const TransferGrid& grid,
                    const Effort& effort, const OnRow& on_row);

// GB/s of one transfer by wall time, its submission included. "pin": memory mapped, touched and
// pinned; sizes that half of the free memory does not hold are left out.
struct LinkGrid {
  std::vector<std::int64_t> pin_bytes;
  std::vector<std::int64_t> record_bytes;  // of one gathered token; multiples of 512
  std::vector<std::int64_t> blocks;        // most thread blocks of a gather; 0: the engine's number
};
void bench_link(Backend& backend, const LinkGrid& grid, const Effort& effort, const OnRow& on_row);

// GB/s count F16 values read, and codes and scales written.
struct QuantizeGrid {
  std::vector<std::int64_t> batches;  // blocks quantized together
  std::int64_t block_tokens = 128;
  std::int64_t kv_heads = 32;
  std::int64_t head_dim = 128;
};
void bench_quantize(Backend& backend, const Ceilings& ceilings, const QuantizeGrid& grid,
                    const Effort& effort, const OnRow& on_row);

}  // namespace triphase::bench
