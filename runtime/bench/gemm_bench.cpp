// y = x w^T with stored weights, as the projections of a decoder layer.

#include "runtime/bench/bench.h"
#include "runtime/bench/check.h"

namespace triphase::bench {
namespace {

Row bench_cell(Backend& backend, const Ceilings& ceilings, std::int64_t rows, std::int64_t depth,
               std::int64_t columns, DType dtype, const Effort& effort) {
  BenchMemory memory(backend);
  const std::size_t weight_bytes = static_cast<std::size_t>(depth * columns) * dtype_bytes(dtype);
  const std::int64_t copies = rotations(static_cast<std::int64_t>(weight_bytes));
  const Buffer weights = memory.random(copies * depth * columns, dtype, 1);
  const Buffer x = memory.random(rows * depth, DType::kF32, 2);
  const Buffer y = memory.bytes(static_cast<std::size_t>(rows * columns) * sizeof(float));
  const Timing timing = measure(backend, effort, [&](std::int64_t i) {
    const std::size_t at = static_cast<std::size_t>(i % copies) * weight_bytes;
    backend.ops().linear({x.data(), DType::kF32, rows, depth, depth},
                         {weights.data() + at, dtype, columns, depth, depth}, nullptr, false,
                         {y.data(), DType::kF32, rows, columns, columns}, backend.stream());
  });
  const double flops = 2.0 * static_cast<double>(rows * depth * columns);
  const auto bytes = static_cast<double>(weight_bytes);
  return timed_row({{"op", "gemm"},
                    {"weights", std::string(dtype_name(dtype))},
                    {"rows", rows},
                    {"depth", depth},
                    {"columns", columns}},
                   timing,
                   {{"GB/s", bytes / timing.median * 1e-9},
                    {"% of read", 100.0 * bytes / timing.median / ceilings.read_bytes_per_second},
                    {"TFLOP/s", flops / timing.median * 1e-12},
                    {"% of FMA", 100.0 * flops / timing.median / ceilings.fma_flops}});
}

}  // namespace

void bench_gemm(Backend& backend, const Ceilings& ceilings, const GemmGrid& grid,
                const Effort& effort, const OnRow& on_row) {
  for (const DType dtype : grid.dtypes) {
    check_linear(backend, dtype);
    for (const std::int64_t depth : grid.depths) {
      for (const std::int64_t columns : grid.columns) {
        for (const std::int64_t count : grid.rows) {
          on_row(bench_cell(backend, ceilings, count, depth, columns, dtype, effort));
        }
      }
    }
  }
}

}  // namespace triphase::bench
