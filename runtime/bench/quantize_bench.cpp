// INT8 quantization of full KV blocks: from the open pool to codes and scales.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "runtime/bench/bench.h"

namespace triphase::bench {
namespace {

struct Pools {
  Buffer codes_k, codes_v, scales, partial_k, partial_v;
};

Pools make_pools(BenchMemory& memory, std::int64_t blocks, std::int64_t block_elements,
                 std::int64_t scales_of_block, DType partial_dtype) {
  const auto codes = static_cast<std::size_t>(blocks * block_elements);
  Pools pools;
  pools.codes_k = memory.bytes(codes);
  pools.codes_v = memory.bytes(codes);
  pools.scales = memory.bytes(static_cast<std::size_t>(blocks * scales_of_block) * sizeof(KvScale));
  pools.partial_k = memory.bytes(codes * dtype_bytes(partial_dtype));
  pools.partial_v = memory.bytes(codes * dtype_bytes(partial_dtype));
  memory.fill_random(pools.partial_k.data(), pools.partial_k.bytes(), partial_dtype, 1);
  memory.fill_random(pools.partial_v.data(), pools.partial_v.bytes(), partial_dtype, 2);
  return pools;
}

KvLayerView view_of(const Pools& pools, const QuantizeGrid& grid) {
  KvLayerView cache{pools.codes_k.data(), pools.codes_v.data(), DType::kInt8,
                    grid.block_tokens,    grid.kv_heads,        grid.head_dim};
  cache.scales = pools.scales.as<KvScale>();
  cache.partial_k = pools.partial_k.data();
  cache.partial_v = pools.partial_v.data();
  cache.partial_dtype = DType::kF16;
  return cache;
}

// lambda (code - zero) is within lambda / 2 of the value, for every element of one block.
void check_block(Backend& backend, const QuantizeGrid& grid) {
  BenchMemory memory(backend);
  const std::int64_t elements = grid.block_tokens * grid.kv_heads * grid.head_dim;
  const std::int64_t scales_of_block = 2 * grid.kv_heads * grid.head_dim;
  const Pools pools = make_pools(memory, 1, elements, scales_of_block, DType::kF16);
  const FullBlock block{PageId(0), PageId(0), PageId(0)};
  backend.ops().quantize_blocks({{&block, 1}}, view_of(pools, grid), backend.stream());
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(elements));
  std::vector<std::uint16_t> open(static_cast<std::size_t>(elements));
  std::vector<KvScale> scales(static_cast<std::size_t>(scales_of_block));
  memory.download(codes.data(), pools.codes_v.data(), codes.size());
  memory.download(open.data(), pools.partial_v.data(), open.size() * sizeof(std::uint16_t));
  memory.download(scales.data(), pools.scales.data(), scales.size() * sizeof(KvScale));
  for (std::int64_t i = 0; i < elements; ++i) {
    const std::int64_t head = i / (grid.block_tokens * grid.head_dim);
    const auto at =
        static_cast<std::size_t>((grid.kv_heads + head) * grid.head_dim + i % grid.head_dim);
    const double lambda = kv_lambda(scales[at].bits);
    const double zero = kv_zero(scales[at].bits);
    const double value = f16_to_f32(open[static_cast<std::size_t>(i)]);
    const double error = std::abs(lambda * (codes[static_cast<std::size_t>(i)] - zero) - value);
    TRIPHASE_CHECK(error <= 0.501 * lambda + 1e-6 * std::abs(value),
                   fmt::format("quantize: element {} is off by {}, a step is {}: not timed", i,
                               error, lambda));
  }
}

}  // namespace

std::vector<Row> bench_quantize(Backend& backend, const Ceilings& ceilings,
                                const QuantizeGrid& grid, const Effort& effort,
                                const OnRow& on_row) {
  check_block(backend, grid);
  const std::int64_t elements = grid.block_tokens * grid.kv_heads * grid.head_dim;
  const std::int64_t scales_of_block = 2 * grid.kv_heads * grid.head_dim;
  std::vector<Row> rows;
  for (const std::int64_t batch : grid.batches) {
    BenchMemory memory(backend);
    const auto batch_bytes = static_cast<std::size_t>(batch * elements) * 6;
    const auto turns =
        static_cast<std::int64_t>(std::clamp<std::size_t>(kRotateBytes / batch_bytes + 1, 2, 4096));
    const Pools pools = make_pools(memory, turns * batch, elements, scales_of_block, DType::kF16);
    const KvLayerView cache = view_of(pools, grid);
    std::vector<FullBlock> blocks;
    for (std::int64_t block = 0; block < turns * batch; ++block) {
      blocks.push_back({PageId(block), PageId(block), PageId(block)});
    }
    const Timing timing = measure(backend, effort, [&](std::int64_t i) {
      const auto first = static_cast<std::size_t>(i % turns * batch);
      backend.ops().quantize_blocks(
          {std::span(blocks).subspan(first, static_cast<std::size_t>(batch))}, cache,
          backend.stream());
    });
    // K and V: F16 read, codes and scales written.
    const double bytes = static_cast<double>(batch) * (2.0 * 3.0 * static_cast<double>(elements) +
                                                       static_cast<double>(sizeof(KvScale)) *
                                                           static_cast<double>(scales_of_block));
    rows.push_back(
        timed_row({{"op", "quantize"},
                   {"from", "fp16"},
                   {"blocks", batch},
                   {"block_tokens", grid.block_tokens},
                   {"kv_heads", grid.kv_heads},
                   {"head_dim", grid.head_dim}},
                  timing,
                  {{"GB/s", bytes / timing.median * 1e-9},
                   {"% of copy", 100.0 * bytes / timing.median / ceilings.copy_bytes_per_second}}));
    on_row(rows.back());
  }
  return rows;
}

}  // namespace triphase::bench
