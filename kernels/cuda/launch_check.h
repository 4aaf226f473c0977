#pragma once

// Checks of host wrappers before a launch: every error names the kernel and its shapes.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "base/dtype.h"

namespace triphase::cuda {

// "rows 64, head_dim 128"
[[nodiscard]] std::string shape_text(
    std::initializer_list<std::pair<std::string_view, std::int64_t>> sizes);

// "x 3 x 64 fp32, y 3 x 128 fp16"
[[nodiscard]] std::string shape_text(
    std::initializer_list<std::pair<std::string_view, ConstMatrix>> matrices);

// Throws an internal error (exit 70).
[[noreturn]] void reject_launch(std::string_view kernel, std::string_view what,
                                const std::string& shape);

// `shape` makes the text of the shapes, only when it is needed: [&] { return shape_text(...); }.
template <class Shape>
void require(bool condition, std::string_view kernel, std::string_view what, const Shape& shape) {
  if (!condition) [[unlikely]] {
    reject_launch(kernel, what, shape());
  }
}

}  // namespace triphase::cuda
