#pragma once

// Whole steps of sizes, which are not negative.

#include <type_traits>

namespace triphase {

// How many steps hold `value`.
template <class T>
[[nodiscard]] constexpr T ceil_div(T value, std::type_identity_t<T> step) {
  return (value + step - 1) / step;
}
// The least multiple of `step` from `value` on.
template <class T>
[[nodiscard]] constexpr T round_up(T value, std::type_identity_t<T> step) {
  return ceil_div(value, step) * step;
}

}  // namespace triphase
