#include "kernels/cpu/cpu_input_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/for_rows.h"

namespace triphase {
namespace {

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
  return finite == 0.0F ? largest / kLargestInputCode : std::numeric_limits<float>::quiet_NaN();
}

void quantize_row(const float* x, std::int64_t count, std::int8_t* codes, float& scale) {
  scale = row_scale(x, count);
  // A subnormal scale may have lost so much that x / scale leaves the codes' range.
  if (!(scale > 0.0F)) {
    std::fill_n(codes, count, std::int8_t{0});
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const float ratio = std::clamp(x[i] / scale, -kLargestInputCode, kLargestInputCode);
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
                         token.partial_offset >= 0 && token.partial_offset < cache.page_tokens,
                     "kv_requantize: a place out of range");
    }
    cpu::kv_requantize(pool_, tokens, cache);
  }

  void restore(const RecomputedTokens& tokens, std::int64_t first, const KvLayerView& cache,
               Matrix x, Stream& /*stream*/) override {
    const std::int64_t line_bytes =
        cache.head_dim * static_cast<std::int64_t>(dtype_bytes(cache.dtype));
    TRIPHASE_CHECK(x.cols <= cache.kv_heads * line_bytes, "restore: codes wider than a token's K");
    const std::span<const RecomputedToken> rows = rows_of(tokens, first, x.rows);
    cpu::for_rows(pool_, std::ssize(rows), x.cols, [&](std::int64_t row) {
      const std::int32_t slot = rows[static_cast<std::size_t>(row)].slot;
      const std::int64_t line =
          slot / cache.page_tokens * cache.kv_heads * cache.page_tokens + slot % cache.page_tokens;
      float scale = 0.0F;
      std::memcpy(&scale, static_cast<const std::byte*>(cache.v) + line * line_bytes, sizeof scale);
      auto* to = cpu::row_of<float>(x.data, row, x.row_stride);
      for (std::int64_t begin = 0, at = line; begin < x.cols;
           begin += line_bytes, at += cache.page_tokens) {
        const auto* codes = static_cast<const std::int8_t*>(cache.k) + at * line_bytes;
        const std::int64_t count = std::min(line_bytes, x.cols - begin);
        for (std::int64_t i = 0; i < count; ++i) {
          to[begin + i] = static_cast<float>(codes[i]) * scale;
        }
      }
    });
  }

  void store(const RecomputedTokens& tokens, std::int64_t first, Matrix k, ConstMatrix v,
             ConstMatrix cos_sin, const KvLayerView& cache, Stream& /*stream*/) override {
    const std::span<const RecomputedToken> rows = rows_of(tokens, first, k.rows);
    k.rows = v.rows = std::ssize(rows);
    slots_.clear();
    scale_pages_.clear();
    pages_.clear();
    offsets_.clear();
    for (const RecomputedToken& token : rows) {
      const auto row = std::ssize(slots_);
      slots_.push_back(token.slot);
      scale_pages_.push_back(token.scale_page);
      pages_.emplace_back(static_cast<std::int32_t>(token.slot / cache.page_tokens));
      offsets_.push_back(static_cast<std::int32_t>(token.slot % cache.page_tokens));
      if (cos_sin.empty()) continue;
      Matrix key = k;
      key.data = cpu::row_of<float>(k.data, row, k.row_stride);
      key.rows = 1;
      ConstMatrix angles = cos_sin;
      angles.data = cpu::row_of<float>(cos_sin.data, token.position, cos_sin.row_stride);
      angles.rows = 1;
      cpu::rope(pool_, key, cache.kv_heads, cache.head_dim, cos_sin.cols, angles);
    }
    if (cache.quantized()) {
      cpu::kv_requantize_rows(pool_, k, v, slots_, scale_pages_, cache);
    } else {
      cpu::kv_append(pool_, k, v, {pages_, offsets_}, cache);
    }
  }

 private:
  static std::span<const RecomputedToken> rows_of(const RecomputedTokens& tokens,
                                                  std::int64_t first, std::int64_t rows) {
    const std::int64_t listed = tokens.most == 0 ? 0 : *tokens.count;
    return {tokens.tokens + first,
            static_cast<std::size_t>(std::clamp<std::int64_t>(listed - first, 0, rows))};
  }

  ThreadPool& pool_;
  // Scratch of one call, kept to reuse its memory.
  std::vector<std::int32_t> slots_, scale_pages_, offsets_;
  std::vector<PageId> pages_;
};

}  // namespace

std::unique_ptr<InputOps> make_cpu_input_ops(ThreadPool& pool) {
  return std::make_unique<CpuInputOps>(pool);
}

}  // namespace triphase
