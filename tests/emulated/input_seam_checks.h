#pragma once

// What a CUDA InputOps must do: the CPU's bits. Run on the emulator, with guarded memory, and on a
// GPU.

#include "base/thread_pool.h"
#include "kernels/cpu/cpu_input_ops.h"
#include "kernels/ops.h"
#include "tests/emulated/emulated_test.h"
#include "tests/emulated/filled_cache.h"
#include "tests/emulated/guarded_memory.h"

namespace triphase::cuda {

// Rows of every kind: ordinary, halves of a step, all zeros, subnormal, NaN, infinity, very large.
inline std::vector<float> input_rows(std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  std::mt19937 random(31);
  std::vector<float> x = random_floats(random, rows * stride, 3.0F);
  for (std::int64_t row = 0; row < rows; ++row) {
    float* to = x.data() + row * stride;
    for (std::int64_t c = 0; c < cols; ++c) {
      if (row % 7 == 1) to[c] = 0.5F * static_cast<float>(c % 255 - 127);
      if (row % 7 == 2) to[c] = 0.0F;
      if (row % 7 == 3) to[c] *= 0x1p-147F;
      if (row % 7 == 6) to[c] *= 0x1p125F;
    }
    if (row % 7 == 4) to[cols / 2] = std::numeric_limits<float>::quiet_NaN();
    if (row % 7 == 5) to[cols - 1] = -std::numeric_limits<float>::infinity();
    for (std::int64_t c = cols; c < stride; ++c) to[c] = std::numeric_limits<float>::quiet_NaN();
  }
  return x;
}

inline void check_input_codes(InputOps& inputs, Device& device, Stream& stream) {
  struct Coded {
    std::vector<std::int8_t> codes;
    std::vector<float> scales, restored;
  };
  ThreadPool pool(1);
  HostDevice host;
  const auto cpu = make_cpu_input_ops(pool);
  const auto host_stream = host.make_stream();
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{14, 300}, {7, 37}, {1, 1}, {0, 5}}) {
    const Matrix shape{nullptr, DType::kF32, rows, cols, cols + 3};
    const auto coded = [&](InputOps& ops, Device& on, Stream& own_stream) {
      const DeviceArray<float> x(on, input_rows(shape.rows, shape.cols, shape.row_stride));
      const DeviceArray<std::int8_t> codes(on, shape.rows * shape.cols);
      const DeviceArray<float> scales(on, shape.rows);
      const DeviceArray<float> restored(on, shape.rows * shape.row_stride);
      Matrix in = shape;
      Matrix out = shape;
      in.data = x.data();
      out.data = restored.data();
      ops.quantize(in, codes.data(), scales.data(), own_stream);
      ops.dequantize(codes.data(), scales.data(), out, own_stream);
      own_stream.synchronize();
      return Coded{codes.host(), scales.host(), restored.host()};
    };
    const Coded ours = coded(inputs, device, stream);
    const Coded theirs = coded(*cpu, host, *host_stream);
    EXPECT_EQ(ours.codes, theirs.codes) << rows << " x " << cols;
    // NaN has many bit patterns.
    const auto expect_same = [](const std::vector<float>& a, const std::vector<float>& b) {
      for (std::size_t i = 0; i < a.size(); ++i) {
        if (std::isnan(b[i])) {
          EXPECT_TRUE(std::isnan(a[i])) << i;
        } else {
          EXPECT_EQ(a[i], b[i]) << i;
        }
      }
    };
    expect_same(ours.scales, theirs.scales);
    expect_same(ours.restored, theirs.restored);
  }
}

// Single tokens of full blocks, quantized again in place, keep the codes that quantize_blocks gave
// them.
inline void check_requantized_tokens(Ops& ops, InputOps& inputs, Device& device, Stream& stream) {
  const std::vector<std::int32_t> lengths = {3 * FilledCache::kPageTokens + 1};
  const FilledCache filled(ops, device, DType::kInt8, lengths, 5);
  const FilledCache cleared(ops, device, DType::kInt8, lengths, 5);
  std::vector<KvRequantize> tokens;
  for (std::int64_t block = 0; block < 3; ++block) {
    const PageId page = filled.page(0, block);
    for (std::int32_t offset = 0; offset < FilledCache::kPageTokens; ++offset) {
      const auto slot = static_cast<std::int32_t>(page.value * FilledCache::kPageTokens + offset);
      tokens.push_back({page, offset, slot, page});
    }
  }
  const std::size_t bytes = cleared.k().host().size();
  const DeviceArray<std::byte> wrong(device, static_cast<std::int64_t>(bytes));
  device.copy(cleared.k().data(), wrong.data(), bytes, stream);
  device.copy(cleared.v().data(), wrong.data(), bytes, stream);
  inputs.kv_requantize({}, cleared.view(), stream);
  inputs.kv_requantize(tokens, cleared.view(), stream);
  stream.synchronize();
  const std::size_t page_bytes = static_cast<std::size_t>(
      FilledCache::kPageTokens * FilledCache::kKvHeads * FilledCache::kDim);
  const auto expect_same_codes = [&](const DeviceArray<std::byte>& actual,
                                     const DeviceArray<std::byte>& expected) {
    const std::vector<std::byte> a = actual.host();
    const std::vector<std::byte> b = expected.host();
    for (std::int64_t block = 0; block < 3; ++block) {
      const auto at = static_cast<std::ptrdiff_t>(filled.page(0, block).index() * page_bytes);
      EXPECT_TRUE(std::equal(a.begin() + at,
                             a.begin() + at + static_cast<std::ptrdiff_t>(page_bytes),
                             b.begin() + at));
    }
  };
  expect_same_codes(cleared.k(), filled.k());
  expect_same_codes(cleared.v(), filled.v());
  tokens[0].partial_offset = FilledCache::kPageTokens;
  EXPECT_THROW(inputs.kv_requantize(tokens, cleared.view(), stream), Error);
}

}  // namespace triphase::cuda
