#include <bit>
#include <cmath>
#include <numbers>

#include "kernels/reference/reference_ops.h"

namespace triphase::reference {
namespace {

void push(Values& values, double value, double magnitude) {
  values.value.push_back(value);
  values.magnitude.push_back(magnitude);
}

// magnitude |value|, for results that one rounding chain makes.
void push(Values& values, double value) { push(values, value, std::abs(value)); }

template <class Body>
Values for_elements(std::int64_t rows, std::int64_t cols, const Body& body) {
  Values result;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; ++col) body(result, row, col);
  }
  return result;
}

}  // namespace

Values embed(std::span<const TokenId> ids, const ConstMatrix& table, float scale) {
  return for_elements(std::ssize(ids), table.cols,
                      [&](Values& out, std::int64_t row, std::int64_t col) {
                        push(out, scale * element(table, ids[static_cast<std::size_t>(row)], col));
                      });
}

Values add_positions(std::span<const std::int32_t> positions, const ConstMatrix& table,
                     const ConstMatrix& y) {
  return for_elements(y.rows, y.cols, [&](Values& out, std::int64_t row, std::int64_t col) {
    push(out, element(y, row, col) + element(table, positions[static_cast<std::size_t>(row)], col));
  });
}

Values rms_norm(const ConstMatrix& x, const float* weight, float weight_offset, float eps) {
  Values result;
  for (std::int64_t row = 0; row < x.rows; ++row) {
    double squares = 0;
    for (std::int64_t c = 0; c < x.cols; ++c) squares += element(x, row, c) * element(x, row, c);
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(x.cols) + eps);
    for (std::int64_t c = 0; c < x.cols; ++c) {
      const double scaled = element(x, row, c) * factor;
      push(result, scaled * (static_cast<double>(weight[c]) + weight_offset),
           std::abs(scaled) * (std::abs(weight[c]) + std::abs(weight_offset)));
    }
  }
  return result;
}

Values layer_norm(const ConstMatrix& x, const float* weight, const float* bias, float eps) {
  Values result;
  for (std::int64_t row = 0; row < x.rows; ++row) {
    double sum = 0;
    double absolute = 0;
    for (std::int64_t c = 0; c < x.cols; ++c) {
      sum += element(x, row, c);
      absolute += std::abs(element(x, row, c));
    }
    const double mean = sum / static_cast<double>(x.cols);
    const double mean_absolute = absolute / static_cast<double>(x.cols);
    double squares = 0;
    for (std::int64_t c = 0; c < x.cols; ++c) {
      squares += (element(x, row, c) - mean) * (element(x, row, c) - mean);
    }
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(x.cols) + eps);
    for (std::int64_t c = 0; c < x.cols; ++c) {
      const double offset = bias != nullptr ? bias[c] : 0.0;
      push(result, (element(x, row, c) - mean) * factor * weight[c] + offset,
           (std::abs(element(x, row, c)) + mean_absolute) * factor * std::abs(weight[c]) +
               std::abs(offset));
    }
  }
  return result;
}

Values rope(const ConstMatrix& x, std::int64_t heads, std::int64_t head_dim,
            std::int64_t rotary_dim, const ConstMatrix& cos_sin) {
  const std::int64_t half = rotary_dim / 2;
  return for_elements(x.rows, heads * head_dim,
                      [&](Values& out, std::int64_t row, std::int64_t col) {
                        const std::int64_t channel = col % head_dim;
                        const double own = element(x, row, col);
                        if (channel >= rotary_dim) {
                          push(out, own);
                          return;
                        }
                        const bool low = channel < half;
                        const std::int64_t pair = low ? channel : channel - half;
                        const double other = element(x, row, low ? col + half : col - half);
                        const double cosine = element(cos_sin, row, pair);
                        const double sine = element(cos_sin, row, half + pair);
                        push(out, own * cosine + (low ? -other : other) * sine,
                             std::abs(own * cosine) + std::abs(other * sine));
                      });
}

double activation(Activation activation, double x) {
  switch (activation) {
    case Activation::kRelu:
      return x < 0.0 ? 0.0 : x;
    case Activation::kGeluErf:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::kGeluTanh:
      return x / (1.0 +
                  std::exp(-2.0 * std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kSwigluOai: {
      const double gate = x > kSwigluOaiLimit ? kSwigluOaiLimit : x;
      return gate / (1.0 + std::exp(-kSwigluOaiAlpha * gate));
    }
  }
  return x;
}

Values gated_activation(Activation kind, const ConstMatrix& gate, const ConstMatrix& up) {
  return for_elements(gate.rows, gate.cols, [&](Values& out, std::int64_t row, std::int64_t col) {
    const double x = element(gate, row, col);
    const double y = element(up, row, col);
    if (kind == Activation::kSwigluOai) {
      constexpr double kLimit = kSwigluOaiLimit;
      const double factor = y > kLimit ? kLimit : y < -kLimit ? -kLimit : y;
      push(out, activation(kind, x) * (factor + 1.0), std::abs(x) * (std::abs(factor) + 1.0));
      return;
    }
    push(out, activation(kind, x) * y, std::abs(x * y));
  });
}

Values activate(Activation kind, const ConstMatrix& y) {
  return for_elements(y.rows, y.cols, [&](Values& out, std::int64_t row, std::int64_t col) {
    push(out, activation(kind, element(y, row, col)), std::abs(element(y, row, col)));
  });
}

std::uint32_t stored_bits(float value, DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return f32_to_f16(value);
    case DType::kBF16:
      return f32_to_bf16(value);
    default:
      return std::bit_cast<std::uint32_t>(value);
  }
}

}  // namespace triphase::reference
