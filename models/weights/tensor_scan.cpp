#include "models/weights/tensor_scan.h"

#include <cstring>

#include "base/error.h"

namespace triphase {
namespace {

template <class Bits>
Bits load(const std::byte* from) {
  Bits bits;
  std::memcpy(&bits, from, sizeof(bits));
  return bits;
}

// An exponent of all ones is NaN or infinity. The first pass has no branch, so that the compiler
// vectorises it; positions are looked for only where something was found.
template <class Bits>
void scan(std::span<const std::byte> bytes, Bits exponent, std::uint64_t first_element,
          NonFinite& result) {
  constexpr std::size_t kBlock = 4096;
  const std::size_t elements = bytes.size() / sizeof(Bits);
  for (std::size_t begin = 0; begin < elements; begin += kBlock) {
    const std::size_t end = begin + kBlock < elements ? begin + kBlock : elements;
    std::uint32_t bad = 0;
    for (std::size_t i = begin; i < end; ++i) {
      bad += (load<Bits>(bytes.data() + i * sizeof(Bits)) & exponent) == exponent ? 1U : 0U;
    }
    if (bad == 0) continue;
    if (result.count == 0) {
      std::size_t i = begin;
      while ((load<Bits>(bytes.data() + i * sizeof(Bits)) & exponent) != exponent) ++i;
      result.first = first_element + i;
    }
    result.count += bad;
  }
}

}  // namespace

void scan_non_finite(DType dtype, std::span<const std::byte> bytes, std::uint64_t first_element,
                     NonFinite& result) {
  switch (dtype) {
    case DType::kF32:
      return scan<std::uint32_t>(bytes, 0x7F800000U, first_element, result);
    case DType::kF16:
      return scan<std::uint16_t>(bytes, 0x7C00U, first_element, result);
    case DType::kBF16:
      return scan<std::uint16_t>(bytes, 0x7F80U, first_element, result);
    default:
      TRIPHASE_CHECK(false, "only float types are scanned");
  }
}

void convert_to_f32(DType dtype, std::span<const std::byte> bytes, std::span<float> out) {
  TRIPHASE_CHECK(bytes.size() >= out.size() * dtype_bytes(dtype), "too few bytes to convert");
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out.data(), bytes.data(), out.size() * sizeof(float));
      return;
    case DType::kF16:
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = f16_to_f32(load<std::uint16_t>(bytes.data() + 2 * i));
      }
      return;
    case DType::kBF16:
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = bf16_to_f32(load<std::uint16_t>(bytes.data() + 2 * i));
      }
      return;
    default:
      TRIPHASE_CHECK(false, "only float types are converted");
  }
}

}  // namespace triphase
