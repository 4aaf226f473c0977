#pragma once

// From a run-time element type or group size to a template argument.

#include <string_view>

#include "kernels/cuda/dialect.h"
#include "runtime/base/dtype.h"
#include "runtime/base/error.h"

namespace triphase::cuda {

// Calls body.operator()<T>() with float, Half or BFloat16.
template <class Body>
void for_float_type(DType dtype, std::string_view kernel, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      return body.template operator()<float>();
    case DType::kF16:
      return body.template operator()<Half>();
    case DType::kBF16:
      return body.template operator()<BFloat16>();
    default:
      TRIPHASE_CHECK(false, std::string(kernel) + ": type " + std::string(dtype_name(dtype)));
  }
}

// The same, and unsigned char for INT8 codes.
template <class Body>
void for_cache_type(DType dtype, std::string_view kernel, const Body& body) {
  if (dtype == DType::kU8) return body.template operator()<unsigned char>();
  for_float_type(dtype, kernel, body);
}

// Calls body.operator()<G>() with the smallest of 1, 2, 4, 8 that is at least `group`.
template <class Body>
void for_group(std::int64_t group, std::string_view kernel, const Body& body) {
  TRIPHASE_CHECK(group >= 1 && group <= 8, std::string(kernel) + ": 1 to 8 query heads for each " +
                                               "KV head, not " + std::to_string(group));
  if (group == 1) return body.template operator()<1>();
  if (group == 2) return body.template operator()<2>();
  if (group <= 4) return body.template operator()<4>();
  body.template operator()<8>();
}

}  // namespace triphase::cuda
