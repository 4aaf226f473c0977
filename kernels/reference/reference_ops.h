#pragma once

// Every operation of kernels/ops.h as plain loops in float64: what tests and the benchmark compare
// with. Arguments are those of the operation, assumed valid. Results are new row-major arrays
// without padding. Pure functions, thread safe; nothing outside tests and bench may use them.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace triphase::reference {

// `magnitude[i]` is the sum of the absolute values of the terms that make up value[i]: rounding
// errors of any summation order are bounded by a multiple of it.
struct Values {
  std::vector<double> value;
  std::vector<double> magnitude;
};

// Element (row, col) of a matrix of F64, F32, F16 or BF16.
[[nodiscard]] double element(const ConstMatrix& matrix, std::int64_t row, std::int64_t col);

// `previous` is y before the call when accumulating, else empty.
[[nodiscard]] Values linear(const ConstMatrix& x, const ConstMatrix& w, const float* bias,
                            const ConstMatrix& previous);
[[nodiscard]] Values embed(std::span<const TokenId> ids, const ConstMatrix& table, float scale);
[[nodiscard]] Values add_positions(std::span<const std::int32_t> positions,
                                   const ConstMatrix& table, const ConstMatrix& y);
[[nodiscard]] Values rms_norm(const ConstMatrix& x, const float* weight, float weight_offset,
                              float eps);
[[nodiscard]] Values layer_norm(const ConstMatrix& x, const float* weight, const float* bias,
                                float eps);
[[nodiscard]] Values rope(const ConstMatrix& x, std::int64_t heads, std::int64_t head_dim,
                          std::int64_t rotary_dim, const ConstMatrix& cos_sin);
[[nodiscard]] double activation(Activation activation, double x);
[[nodiscard]] Values gated_activation(Activation activation, const ConstMatrix& gate,
                                      const ConstMatrix& up);
[[nodiscard]] Values activate(Activation activation, const ConstMatrix& y);

// Bits of `value` rounded to a 16-bit type, or of the float itself.
[[nodiscard]] std::uint32_t stored_bits(float value, DType dtype);

// magnitude: sum of weight times |v|. score_magnitude per (query, head): the largest
// scale * sum |q k| of a token it sees, and 0 where it sees none. For INT8 tokens |k| and |v| stand
// for lambda * (code + |zero|). Rows outside all segments are 0. weights: for each segment, query
// and head that sees tokens, in that order, the softmax weights of those tokens.
struct AttentionValues {
  std::vector<double> value;
  std::vector<double> magnitude;
  std::vector<double> score_magnitude;
  std::vector<std::vector<double>> weights;
};
[[nodiscard]] AttentionValues attention(const ConstMatrix& q, std::int64_t heads,
                                        const KvLayerView& cache,
                                        std::span<const AttentionSegment> segments,
                                        ScoreScale scale);

// K or V of one token as the segment's last query reads it; empty when it does not see the token.
[[nodiscard]] std::vector<double> cached_row(const KvLayerView& cache,
                                             const AttentionSegment& segment, std::int64_t kv_head,
                                             std::int64_t token, bool value);

// Quantizes one channel of a block as KvLayerView says, in plain F32.
struct QuantizedChannel {
  float lambda = 0;
  float zero = 0;
  std::vector<std::uint8_t> codes;
};
[[nodiscard]] QuantizedChannel quantize_channel(std::span<const float> values);

}  // namespace triphase::reference
