#include "runtime/bench/check.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/rounding.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/sizing/attention_workspace.h"
#include "runtime/bench/bench_cache.h"

namespace triphase::bench {
namespace {

// What rounding activations to the weights' type before multiplying costs, as tensor cores do.
double input_rounding(Backend& backend, DType dtype) {
  if (backend.device().name() == "cpu" || dtype == DType::kF32) return 0.0;
  return dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
}

void compare(const std::vector<float>& actual, const std::vector<double>& expected,
             const std::vector<double>& magnitude, double factor, std::string_view what) {
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(static_cast<double>(actual[i]) - expected[i]);
    if (error <= factor * magnitude[i] + 1e-30) continue;
    TRIPHASE_CHECK(false, fmt::format("{}: element {} is {}, expected {} within {:.3g}: not timed",
                                      what, i, actual[i], expected[i], factor * magnitude[i]));
  }
}

// The same elements on the host and on the device.
struct Mirrored {
  std::vector<std::byte> host;
  Buffer device;
};

Mirrored random_elements(BenchMemory& memory, std::int64_t count, DType dtype, std::uint64_t seed) {
  Mirrored elements{{}, memory.random(count, dtype, seed)};
  elements.host.resize(elements.device.bytes());
  memory.copy(elements.host.data(), elements.device.data(), elements.host.size());
  return elements;
}

}  // namespace

void check_linear(Backend& backend, DType dtype) {
  constexpr std::int64_t kRows = 3;
  constexpr std::int64_t kDepth = 320;
  constexpr std::int64_t kColumns = 72;
  BenchMemory memory(backend);
  const Mirrored x = random_elements(memory, kRows * kDepth, DType::kF32, 1);
  const Mirrored w = random_elements(memory, kColumns * kDepth, dtype, 2);
  const Buffer y = memory.bytes(kRows * kColumns * sizeof(float));
  backend.ops().linear({x.device.data(), DType::kF32, kRows, kDepth, kDepth},
                       {w.device.data(), dtype, kColumns, kDepth, kDepth}, nullptr, false,
                       {y.data(), DType::kF32, kRows, kColumns, kColumns}, backend.stream());
  std::vector<float> actual(kRows * kColumns);
  memory.copy(actual.data(), y.data(), actual.size() * sizeof(float));
  const reference::Values expected =
      reference::linear({x.host.data(), DType::kF32, kRows, kDepth, kDepth},
                        {w.host.data(), dtype, kColumns, kDepth, kDepth}, nullptr, {});
  const double factor = static_cast<double>(kDepth + 4) * 0x1p-24 + input_rounding(backend, dtype);
  compare(actual, expected.value, expected.magnitude, factor,
          fmt::format("linear {}", dtype_name(dtype)));
}

void check_attention(Backend& backend, std::int64_t heads, std::int64_t kv_heads,
                     std::int64_t head_dim, DType dtype) {
  constexpr std::int64_t kPageTokens = 32;
  constexpr std::int64_t kContext = 301;
  constexpr std::int64_t kPages = ceil_div(kContext, kPageTokens);
  BenchMemory memory(backend);
  const std::int64_t columns = heads * head_dim;
  const Mirrored q = random_elements(memory, columns, DType::kF32, 3);
  const BenchCacheShape cache_shape{.dtype = dtype,
                                    .page_tokens = kPageTokens,
                                    .kv_heads = kv_heads,
                                    .head_dim = head_dim,
                                    .pages = kPages,
                                    .partial_pages = 1};
  BenchCache cache(memory, cache_shape);
  std::vector<PageId> pages;
  for (std::int64_t page = kPages - 1; page >= 0; --page) {
    pages.push_back(PageId{static_cast<std::int32_t>(page)});
  }
  std::vector<AttentionSegment> segments;
  add_segments(segments, cache_shape, pages, kContext - 1, kContext, 0, 0);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  const AttentionShape shape{heads, kv_heads, head_dim, 1, kContext, backend.threads().threads()};
  const Buffer scratch = memory.bytes(attention_workspace_bytes(shape));
  const Buffer out = memory.bytes(static_cast<std::size_t>(columns) * sizeof(float));
  backend.ops().attention({q.device.data(), DType::kF32, 1, columns, columns}, heads,
                          cache.layer(0), segments, scale,
                          {out.data(), DType::kF32, 1, columns, columns},
                          {scratch.data(), scratch.bytes()}, backend.stream());
  std::vector<float> actual(static_cast<std::size_t>(columns));
  memory.copy(actual.data(), out.data(), actual.size() * sizeof(float));
  const reference::AttentionValues expected =
      reference::attention({q.host.data(), DType::kF32, 1, columns, columns}, heads,
                           cache.on_host(memory), segments, scale);
  double largest = 0.0;
  for (const double magnitude : expected.score_magnitude) largest = std::max(largest, magnitude);
  // Scores off by a dot product's rounding; then sums over the tokens.
  const double factor = (2.1 * static_cast<double>(head_dim + 8) * largest +
                         2.0 * static_cast<double>(kContext) + 64.0) *
                        0x1p-24;
  compare(
      actual, expected.value, expected.magnitude, factor,
      fmt::format("attention {} {}/{} heads of {}", dtype_name(dtype), heads, kv_heads, head_dim));
}

}  // namespace triphase::bench
