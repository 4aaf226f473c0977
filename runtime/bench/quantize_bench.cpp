// INT8 quantization of full KV blocks: from the open pool to codes and scales.

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "runtime/bench/bench.h"
#include "runtime/bench/bench_cache.h"

namespace triphase::bench {
namespace {

BenchCacheShape shape_of(const QuantizeGrid& grid, std::int64_t blocks) {
  return {.dtype = DType::kInt8,
          .page_tokens = grid.block_tokens,
          .kv_heads = grid.kv_heads,
          .head_dim = grid.head_dim,
          .pages = blocks,
          .partial_pages = blocks};
}

// lambda (code - zero) is within lambda / 2 of the value, for every element of one block.
void check_block(Backend& backend, const QuantizeGrid& grid) {
  BenchMemory memory(backend);
  const std::int64_t elements = grid.block_tokens * grid.kv_heads * grid.head_dim;
  BenchCache cache(memory, shape_of(grid, 1));
  const FullBlock block{PageId(0), PageId(0), PageId(0)};
  backend.ops().quantize_blocks({{&block, 1}}, cache.layer(0), backend.stream());
  const KvLayerView made = cache.on_host(memory);
  const auto* codes = static_cast<const std::uint8_t*>(made.v);
  const auto* values = static_cast<const std::uint16_t*>(made.partial_v);
  for (std::int64_t i = 0; i < elements; ++i) {
    const std::int64_t head = i / (grid.block_tokens * grid.head_dim);
    const KvScale scale = made.scales[(grid.kv_heads + head) * grid.head_dim + i % grid.head_dim];
    const double lambda = kv_lambda(scale.bits);
    const double value = f16_to_f32(values[i]);
    const double error = std::abs(lambda * (codes[i] - kv_zero(scale.bits)) - value);
    TRIPHASE_CHECK(error <= 0.501 * lambda + 1e-6 * std::abs(value),
                   fmt::format("quantize: element {} is off by {}, a step is {}: not timed", i,
                               error, lambda));
  }
}

}  // namespace

void bench_quantize(Backend& backend, const Ceilings& ceilings, const QuantizeGrid& grid,
                    const Effort& effort, const OnRow& on_row) {
  check_block(backend, grid);
  const std::int64_t elements = grid.block_tokens * grid.kv_heads * grid.head_dim;
  const std::int64_t scales_of_block = 2 * grid.kv_heads * grid.head_dim;
  for (const std::int64_t batch : grid.batches) {
    BenchMemory memory(backend);
    const std::int64_t turns = rotations(batch * elements * 6);
    const BenchCache cache(memory, shape_of(grid, turns * batch));
    std::vector<FullBlock> blocks;
    for (std::int64_t block = 0; block < turns * batch; ++block) {
      blocks.push_back({PageId(block), PageId(block), PageId(block)});
    }
    const Timing timing = measure(backend, effort, [&](std::int64_t i) {
      const auto first = static_cast<std::size_t>(i % turns * batch);
      backend.ops().quantize_blocks(
          {std::span(blocks).subspan(first, static_cast<std::size_t>(batch))}, cache.layer(0),
          backend.stream());
    });
    // K and V: F16 read, codes and scales written.
    const double bytes = static_cast<double>(batch) * (2.0 * 3.0 * static_cast<double>(elements) +
                                                       static_cast<double>(sizeof(KvScale)) *
                                                           static_cast<double>(scales_of_block));
    on_row(
        timed_row({{"op", "quantize"},
                   {"from", "fp16"},
                   {"blocks", batch},
                   {"block_tokens", grid.block_tokens},
                   {"kv_heads", grid.kv_heads},
                   {"head_dim", grid.head_dim}},
                  timing,
                  {{"GB/s", bytes / timing.median * 1e-9},
                   {"% of copy", 100.0 * bytes / timing.median / ceilings.copy_bytes_per_second}}));
  }
}

}  // namespace triphase::bench
