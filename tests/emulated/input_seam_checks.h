#pragma once

// What a CUDA InputOps must do: the CPU's bits. Run on the emulator, with guarded memory, and on a
// GPU.

#include "kernels/cpu/cpu_input_ops.h"
#include "runtime/base/thread_pool.h"
#include "tests/emulated/emulated_test.h"
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
  ThreadPool pool(1);
  const auto cpu = make_cpu_input_ops(pool);
  HostDevice host;
  const auto host_stream = host.make_stream();
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{14, 300}, {7, 37}, {1, 1}, {0, 5}}) {
    const std::int64_t stride = cols + 3;
    const std::vector<float> x = input_rows(rows, cols, stride);
    const DeviceArray<float> device_x(device, x);
    const DeviceArray<std::int8_t> codes(device, rows * cols);
    const DeviceArray<float> scales(device, rows);
    const DeviceArray<float> restored(device, rows * stride);
    inputs.quantize({device_x.data(), DType::kF32, rows, cols, stride}, codes.data(), scales.data(),
                    stream);
    inputs.dequantize(codes.data(), scales.data(),
                      {restored.data(), DType::kF32, rows, cols, stride}, stream);
    stream.synchronize();
    const DeviceArray<float> cpu_x(host, x);
    const DeviceArray<std::int8_t> cpu_codes(host, rows * cols);
    const DeviceArray<float> cpu_scales(host, rows);
    const DeviceArray<float> cpu_restored(host, rows * stride);
    cpu->quantize({cpu_x.data(), DType::kF32, rows, cols, stride}, cpu_codes.data(),
                  cpu_scales.data(), *host_stream);
    cpu->dequantize(cpu_codes.data(), cpu_scales.data(),
                    {cpu_restored.data(), DType::kF32, rows, cols, stride}, *host_stream);
    EXPECT_EQ(codes.host(), cpu_codes.host()) << rows << " x " << cols;
    // NaN has many bit patterns.
    const auto expect_same = [&](const DeviceArray<float>& actual,
                                 const DeviceArray<float>& expected) {
      const std::vector<float> a = actual.host();
      const std::vector<float> b = expected.host();
      for (std::size_t i = 0; i < a.size(); ++i) {
        if (std::isnan(b[i])) {
          EXPECT_TRUE(std::isnan(a[i])) << i;
        } else {
          EXPECT_EQ(a[i], b[i]) << i;
        }
      }
    };
    expect_same(scales, cpu_scales);
    expect_same(restored, cpu_restored);
  }
}

}  // namespace triphase::cuda
