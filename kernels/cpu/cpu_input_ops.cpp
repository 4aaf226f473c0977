#include "kernels/cpu/cpu_input_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/for_rows.h"

namespace triphase {
namespace {

constexpr float kLargestCode = 127.0F;
// Adding and taking away 1.5 * 2^23 rounds to whole numbers, ties to even, without a call that
// keeps compilers from using vectors.
constexpr float kRounder = 12582912.0F;

float row_scale(const float* x, std::int64_t count) {
  float largest = 0.0F;
  float finite = 0.0F;  // stays 0 until NaN or infinity comes
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    finite += x[i] * 0.0F;
  }
  return finite == 0.0F ? largest / kLargestCode : std::numeric_limits<float>::quiet_NaN();
}

void quantize_row(const float* x, std::int64_t count, std::int8_t* codes, float& scale) {
  scale = row_scale(x, count);
  // A subnormal scale may have lost so much that x / scale leaves the codes' range.
  if (!(scale > 0.0F)) {
    std::fill_n(codes, count, std::int8_t{0});
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const float ratio = std::clamp(x[i] / scale, -kLargestCode, kLargestCode);
    codes[i] = static_cast<std::int8_t>((ratio + kRounder) - kRounder);
  }
}

class CpuInputOps final : public InputOps {
 public:
  explicit CpuInputOps(ThreadPool& pool) : pool_(pool) {}

  void quantize(ConstMatrix x, std::int8_t* codes, float* scales, Stream& /*stream*/) override {
    cpu::for_rows(pool_, x.rows, x.cols, [&](std::int64_t row) {
      quantize_row(cpu::row_of<float>(x.data, row, x.row_stride), x.cols, codes + row * x.cols,
                   scales[row]);
    });
  }

  void dequantize(const std::int8_t* codes, const float* scales, Matrix x,
                  Stream& /*stream*/) override {
    cpu::for_rows(pool_, x.rows, x.cols, [&](std::int64_t row) {
      const std::int8_t* from = codes + row * x.cols;
      auto* to = cpu::row_of<float>(x.data, row, x.row_stride);
      for (std::int64_t i = 0; i < x.cols; ++i) to[i] = static_cast<float>(from[i]) * scales[row];
    });
  }

  void kv_requantize(std::span<const KvRequantize> tokens, const KvLayerView& cache,
                     Stream& /*stream*/) override {
    TRIPHASE_CHECK(cache.quantized() && cache.partial_k != nullptr && cache.scales != nullptr,
                   "kv_requantize: not an INT8 cache");
    for (const KvRequantize& token : tokens) {
      TRIPHASE_CHECK(token.partial_page.valid() && token.scale_page.valid() && token.slot >= 0 &&
                         token.open_offset >= 0 && token.open_offset < cache.page_tokens,
                     "kv_requantize: a place out of range");
    }
    cpu::kv_requantize(pool_, tokens, cache);
  }

 private:
  ThreadPool& pool_;
};

}  // namespace

std::unique_ptr<InputOps> make_cpu_input_ops(ThreadPool& pool) {
  return std::make_unique<CpuInputOps>(pool);
}

}  // namespace triphase
