#pragma once

// From a run-time element type, group size or head_dim to a template argument.

#include <string_view>

#include "base/dtype.h"
#include "kernels/cuda/dialect.h"
#include "kernels/cuda/launch_check.h"

namespace triphase::cuda {

// `shape` makes the text of the call's shapes for an error, as in launch_check.h.

// Calls body.operator()<T>() with float, Half or BFloat16.
template <class Shape, class Body>
void for_float_type(DType dtype, std::string_view kernel, const Shape& shape, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      return body.template operator()<float>();
    case DType::kF16:
      return body.template operator()<Half>();
    case DType::kBF16:
      return body.template operator()<BFloat16>();
    default:
      reject_launch(kernel, "no kernel for the type " + std::string(dtype_name(dtype)), shape());
  }
}

// The same, and unsigned char for INT8 codes.
template <class Shape, class Body>
void for_cache_type(DType dtype, std::string_view kernel, const Shape& shape, const Body& body) {
  if (dtype == DType::kInt8) return body.template operator()<unsigned char>();
  for_float_type(dtype, kernel, shape, body);
}

// Calls body.operator()<G>() with the smallest of 1, 2, 4, 8 that is at least `group`.
template <class Shape, class Body>
void for_group(std::int64_t group, std::string_view kernel, const Shape& shape, const Body& body) {
  require(group >= 1 && group <= 8, kernel, "1 to 8 query heads for each KV head", shape);
  if (group == 1) return body.template operator()<1>();
  if (group == 2) return body.template operator()<2>();
  if (group <= 4) return body.template operator()<4>();
  body.template operator()<8>();
}

// Calls body.operator()<kDim>() with the channels that hold head_dim, at most 256.
template <class Body>
void for_head_dim(std::int64_t head_dim, const Body& body) {
  if (head_dim <= 64) return body.template operator()<64>();
  if (head_dim <= 128) return body.template operator()<128>();
  body.template operator()<256>();
}

}  // namespace triphase::cuda
