// Dense decode and prefill attention over paged KV, every sequence with pages of its own.

#include <cmath>

#include "base/rounding.h"
#include "kernels/sizing/attention_workspace.h"
#include "runtime/bench/bench.h"
#include "runtime/bench/bench_cache.h"
#include "runtime/bench/check.h"

namespace triphase::bench {
namespace {

struct Cell {
  std::int64_t batch;
  std::int64_t context;
  std::int64_t queries;
  DType dtype;
};

// Key-value pairs that the queries of one sequence see, causally.
double pairs_seen(const Cell& cell) {
  const auto queries = static_cast<double>(cell.queries);
  return queries * (static_cast<double>(cell.context) - 0.5 * (queries - 1));
}

// K and V up to the last query, each once. INT8: codes and scales of blocks before the last one.
std::int64_t bytes_read(const AttentionGrid& grid, const Cell& cell) {
  const std::int64_t token = 2 * grid.kv_heads * grid.head_dim;
  if (cell.dtype != DType::kInt8) {
    return cell.batch * cell.context * token * static_cast<std::int64_t>(dtype_bytes(cell.dtype));
  }
  const std::int64_t blocks = (cell.context - 1) / grid.page_tokens;
  const std::int64_t own = cell.context - blocks * grid.page_tokens;
  return cell.batch * token *
         (blocks * (grid.page_tokens + std::int64_t{sizeof(KvScale)}) + 2 * own);
}

Row bench_cell(Backend& backend, const Ceilings& ceilings, const AttentionGrid& grid,
               const Cell& cell, const Effort& effort) {
  BenchMemory memory(backend);
  const std::int64_t page_tokens = grid.page_tokens;
  const std::int64_t pages = ceil_div(cell.context, page_tokens);
  // Blocks of a sequence that have queries.
  const std::int64_t own_pages = pages - (cell.context - cell.queries) / page_tokens;
  BenchCacheShape cache_shape{.dtype = cell.dtype,
                              .page_tokens = page_tokens,
                              .kv_heads = grid.kv_heads,
                              .head_dim = grid.head_dim,
                              .pages = cell.batch * pages,
                              .partial_pages = cell.batch * own_pages};
  // Layers in turn, so that none is in a cache when its turn comes again.
  cache_shape.layers = rotations(cache_shape.layer_bytes());
  const BenchCache cache(memory, cache_shape);

  const std::int64_t rows = cell.batch * cell.queries;
  const std::int64_t columns = grid.heads * grid.head_dim;
  const Buffer q = memory.random(rows * columns, DType::kF32, 3);
  const Buffer out = memory.bytes(q.bytes());
  const AttentionShape shape{grid.heads, grid.kv_heads, grid.head_dim,
                             rows,       cell.context,  backend.threads().threads()};
  const Buffer scratch = memory.bytes(attention_workspace_bytes(shape));

  // Pages of a sequence in reverse: allocation order must not matter.
  std::vector<std::vector<PageId>> page_lists;
  page_lists.reserve(static_cast<std::size_t>(cell.batch));
  std::vector<AttentionSegment> segments;
  for (std::int64_t row = 0; row < cell.batch; ++row) {
    std::vector<PageId>& table = page_lists.emplace_back();
    for (std::int64_t page = pages - 1; page >= 0; --page) {
      table.push_back(PageId{static_cast<std::int32_t>(row * pages + page)});
    }
    add_segments(segments, cache_shape, table, cell.context - cell.queries, cell.context,
                 row * cell.queries, row * own_pages);
  }
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(grid.head_dim)));
  const auto attend = [&](std::int64_t layer) {
    backend.ops().attention({q.data(), DType::kF32, rows, columns, columns}, grid.heads,
                            cache.layer(layer), segments, scale,
                            {out.data(), DType::kF32, rows, columns, columns},
                            {scratch.data(), scratch.bytes()}, backend.stream());
  };
  // As in a step of the decoder: what holds in every layer goes to the device once.
  SegmentTables tables;
  const auto make_tables = [&] {
    tables = backend.ops().make_tables(segments, {}, {}, cache.layer(0), backend.stream());
    for (std::size_t row = 0; row < segments.size() && tables.lengths != nullptr; ++row) {
      segments[row].tables = &tables;
      segments[row].table_row = static_cast<std::int64_t>(row);
    }
  };
  if (backend.ops().begin_step(backend.stream())) {
    make_tables();
    attend(0);
    backend.ops().end_announcing(backend.stream());
    make_tables();
  }
  const Timing timing =
      measure(backend, effort, [&](std::int64_t i) { attend(i % cache_shape.layers); });
  const double bytes = static_cast<double>(bytes_read(grid, cell));
  const double flops =
      4.0 * static_cast<double>(cell.batch * grid.heads * grid.head_dim) * pairs_seen(cell);
  return timed_row({{"op", "attention"},
                    {"method", "dense"},
                    {"kv_dtype", std::string(dtype_name(cell.dtype))},
                    {"batch", cell.batch},
                    {"heads", grid.heads},
                    {"kv_heads", grid.kv_heads},
                    {"head_dim", grid.head_dim},
                    {"queries", cell.queries},
                    {"context", cell.context}},
                   timing,
                   {{"GB/s", bytes / timing.median * 1e-9},
                    {"% of read", 100.0 * bytes / timing.median / ceilings.read_bytes_per_second},
                    {"% of copy", 100.0 * bytes / timing.median / ceilings.copy_bytes_per_second},
                    {"TFLOP/s", flops / timing.median * 1e-12},
                    {"% of FMA", 100.0 * flops / timing.median / ceilings.fma_flops}});
}

}  // namespace

void bench_attention(Backend& backend, const Ceilings& ceilings, const AttentionGrid& grid,
                     const Effort& effort, const OnRow& on_row) {
  for (const DType dtype : grid.dtypes) {
    check_attention(backend, grid.heads, grid.kv_heads, grid.head_dim, dtype);
    for (const std::int64_t queries : grid.queries) {
      for (const std::int64_t batch : grid.batches) {
        for (const std::int64_t context : grid.contexts) {
          if (queries > context) continue;
          on_row(bench_cell(backend, ceilings, grid, {batch, context, queries, dtype}, effort));
        }
      }
    }
  }
}

}  // namespace triphase::bench
