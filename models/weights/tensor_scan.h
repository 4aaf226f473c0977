#pragma once

// Loops over the bits of loaded tensors: finding NaN and infinity, converting to F32. Pure.

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace triphase {

struct NonFinite {
  std::uint64_t count = 0;
  std::uint64_t first = 0;  // element, valid when count > 0
};

// Adds the NaN and infinite elements of `bytes` (F32, F16 or BF16) to `result`; `first_element` is
// the position of bytes[0] in the tensor.
void scan_non_finite(DType dtype, std::span<const std::byte> bytes, std::uint64_t first_element,
                     NonFinite& result);

// out[i] = value of element i, exact for F32, F16 and BF16. out.size() elements.
void convert_to_f32(DType dtype, std::span<const std::byte> bytes, std::span<float> out);

}  // namespace triphase
