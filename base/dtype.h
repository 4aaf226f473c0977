#pragma once

// Element types, 16-bit float conversion, and non-owning tensor views.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace triphase {

// kInt8, of a KV cache alone (kernels/ops.h): unsigned codes with scales and zero points.
enum class DType : std::uint8_t { kF64, kF32, kF16, kBF16, kI32, kInt8 };

[[nodiscard]] std::size_t dtype_bytes(DType dtype);
// As files and options spell it: "fp16".
[[nodiscard]] std::string_view dtype_name(DType dtype);
[[nodiscard]] std::optional<DType> dtype_from_name(std::string_view name);

// What weights and activations may be in.
[[nodiscard]] constexpr bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

// IEEE binary16 and bfloat16 conversions, round to nearest even, NaN stays NaN. For loaders and
// tests; kernels have their own vector forms that agree bit for bit.
[[nodiscard]] float f16_to_f32(std::uint16_t bits);
[[nodiscard]] std::uint16_t f32_to_f16(float value);
[[nodiscard]] inline float bf16_to_f32(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}
[[nodiscard]] std::uint16_t f32_to_bf16(float value);

// A row-major matrix somewhere in a device's memory; `row_stride` counts elements.
struct ConstMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;

  [[nodiscard]] bool empty() const { return data == nullptr; }
};

struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;

  operator ConstMatrix() const {  // NOLINT(google-explicit-constructor): a mutable view is a view
    return {data, dtype, rows, cols, row_stride};
  }
};

}  // namespace triphase
