// `triphase bench attention|transfer|link|gemm|quantize`: microbenchmarks beside measured ceilings.

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "runtime/bench/bench.h"
#include "runtime/build_info.h"
#include "runtime/machine.h"
#include "runtime/refuse.h"
#include "tools/commands.h"

namespace triphase {
namespace {

using bench::Row;

constexpr int kCeilingRuns = 5;

std::vector<std::int64_t> integers(const OptionValues& values, std::string_view option,
                                   std::vector<std::int64_t> otherwise) {
  if (!values.has(option)) return otherwise;
  return integer_list(values, option, 1, std::int64_t{1} << 31);
}

// `int8`: of the KV cache alone.
std::vector<DType> dtypes(const OptionValues& values, bool int8) {
  if (!values.has("dtype")) return {DType::kF16};
  return option_list<DType>(values, "dtype",
                            int8 ? "fp16, bf16, fp32 or int8, separated by commas"
                                 : "fp16, bf16 or fp32, separated by commas",
                            [int8](std::string_view text) -> std::optional<DType> {
                              const std::optional<DType> dtype = dtype_from_name(text);
                              const bool known = dtype == DType::kF16 || dtype == DType::kBF16 ||
                                                 dtype == DType::kF32 ||
                                                 (int8 && dtype == DType::kInt8);
                              return known ? dtype : std::nullopt;
                            });
}

bench::AttentionGrid attention_grid(const OptionValues& values, bool on_cpu) {
  bench::AttentionGrid grid;
  grid.batches =
      integers(values, "batch-size",
               on_cpu ? std::vector<std::int64_t>{1, 16} : std::vector<std::int64_t>{64});
  grid.contexts = integers(
      values, "context",
      on_cpu ? std::vector<std::int64_t>{512, 2048} : std::vector<std::int64_t>{1024, 4096, 16384});
  grid.queries = integers(values, "queries", {1});
  grid.heads = values.integer("heads");
  grid.kv_heads = values.has("kv-heads") ? values.integer("kv-heads") : grid.heads;
  grid.head_dim = values.integer("head-dim");
  grid.page_tokens = on_cpu ? 32 : 128;
  grid.dtypes = dtypes(values, true);
  if (grid.heads % grid.kv_heads != 0) {
    refuse_option("--kv-heads", fmt::format("{}", grid.kv_heads),
                  fmt::format("a divisor of --heads, {}", grid.heads));
  }
  const std::int64_t fewest = std::ranges::min(grid.queries);
  const std::int64_t longest = std::ranges::max(grid.contexts);
  if (fewest > longest) {
    refuse_option("--queries", fmt::format("{}", fewest),
                  fmt::format("at most --context, {}, which counts them in", longest));
  }
  return grid;
}

bench::GemmGrid gemm_grid(const OptionValues& values, bool on_cpu) {
  return {integers(values, "rows",
                   on_cpu ? std::vector<std::int64_t>{1, 16, 256}
                          : std::vector<std::int64_t>{1, 16, 64, 256, 2048}),
          integers(values, "depth", {on_cpu ? 2048 : 4096}),
          integers(values, "columns", {on_cpu ? 2048 : 4096}), dtypes(values, false)};
}

std::vector<std::int64_t> sizes(const OptionValues& values, std::vector<std::int64_t> otherwise,
                                std::uint64_t gib) {
  if (!values.has("bytes")) return otherwise;
  return option_list<std::int64_t>(
      values, "bytes", fmt::format("sizes with units up to {}GiB, separated by commas", gib),
      [&](std::string_view text) -> std::optional<std::int64_t> {
        const auto bytes = read_size(text);
        if (!bytes || *bytes == 0 || *bytes > (gib << 30)) return std::nullopt;
        return static_cast<std::int64_t>(*bytes);
      });
}

bench::TransferGrid transfer_grid(const OptionValues& values) {
  return {sizes(values, {4 << 10, 16 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20}, 1)};
}

bench::LinkGrid link_grid(const OptionValues& values, bool on_cpu) {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  bench::LinkGrid grid;
  grid.pin_bytes = sizes(values, {kGiB, 2 * kGiB, 4 * kGiB, 8 * kGiB, 16 * kGiB}, 64);
  grid.record_bytes = {2 << 10, 4 << 10, 8 << 10, 16 << 10, 28 << 10};
  grid.blocks = on_cpu ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{4, 8, 16, 32, 64};
  return grid;
}

bench::QuantizeGrid quantize_grid(const OptionValues& values, bool on_cpu) {
  bench::QuantizeGrid grid;
  grid.batches = integers(values, "batch-size", {1, 64});
  grid.block_tokens = on_cpu ? 32 : 128;
  grid.kv_heads = values.has("kv-heads") ? values.integer("kv-heads") : values.integer("heads");
  grid.head_dim = values.integer("head-dim");
  return grid;
}

}  // namespace

int cmd_bench(const Arguments& arguments, std::unique_ptr<Log>& log) {
  const OptionValues values = begin_command("bench", arguments, log);
  const std::string kind = values.positionals().empty() ? "" : values.positionals().front();
  if (values.positionals().size() != 1 ||
      (kind != "attention" && kind != "transfer" && kind != "link" && kind != "gemm" &&
       kind != "quantize")) {
    refuse_option("benchmark",
                  values.positionals().empty()
                      ? "none"
                      : fmt::format("{}", fmt::join(values.positionals(), " ")),
                  "attention, transfer, link, gemm or quantize", "triphase bench --help");
  }
  const auto backend = Backend::open(values.text("device"), values.integer("threads"));
  const bool on_cpu = backend->device().name() == "cpu";
  const Ceilings ceilings = backend->measure_ceilings(kCeilingRuns);
  const std::string machine = fmt::format(
      "{}, {} threads: reads {:.1f} GB/s, copies {:.1f} GB/s (read + written), F32 multiply-add "
      "{:.3f} TFLOP/s (best of {})",
      backend->ops().name(), backend->threads().threads(), ceilings.read_bytes_per_second * 1e-9,
      ceilings.copy_bytes_per_second * 1e-9, ceilings.fma_flops * 1e-12, kCeilingRuns);
  log->info(machine);

  bench::Effort effort;
  effort.samples = static_cast<int>(values.integer("samples"));
  effort.seconds = values.seconds("seconds");
  std::vector<Row> rows;
  const bench::OnRow on_row = [&](Row row) {
    rows.push_back(std::move(row));
    std::string line = bench::format_report({rows.back()}, "jsonl");
    line.pop_back();
    log->debug(line);
  };
  if (kind == "attention") {
    bench::bench_attention(*backend, ceilings, attention_grid(values, on_cpu), effort, on_row);
  } else if (kind == "gemm") {
    bench::bench_gemm(*backend, ceilings, gemm_grid(values, on_cpu), effort, on_row);
  } else if (kind == "quantize") {
    bench::bench_quantize(*backend, ceilings, quantize_grid(values, on_cpu), effort, on_row);
  } else if (kind == "link") {
    bench::bench_link(*backend, link_grid(values, on_cpu), effort, on_row);
  } else {
    bench::bench_transfer(*backend, ceilings, transfer_grid(values), effort, on_row);
  }
  for (const std::string& note : bench::above_ceilings(rows)) log->warning(note);
  if (values.text("format") == "md") {  // the machine is said once, on stderr
    print(bench::readable_report(rows));
    return 0;
  }
  const std::string device(backend->ops().name());
  const std::string cpu = inspect_machine().cpu_name;
  for (Row& row : rows) {
    row.emplace_back("device", device);
    row.emplace_back("threads", std::int64_t{backend->threads().threads()});
    row.emplace_back("read GB/s", ceilings.read_bytes_per_second * 1e-9);
    row.emplace_back("copy GB/s", ceilings.copy_bytes_per_second * 1e-9);
    row.emplace_back("FMA TFLOP/s", ceilings.fma_flops * 1e-12);
    row.emplace_back("cpu", cpu);
    row.emplace_back("commit", std::string(build_commit()));
  }
  print(bench::format_report(rows, values.text("format")));
  return 0;
}

}  // namespace triphase
