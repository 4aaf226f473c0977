#pragma once

// Arithmetic for sizes with a foreign factor (file headers, configs, prompts). Every function
// returns false on overflow and leaves the result unspecified; nothing here throws.

#include <cstdint>
#include <optional>
#include <span>

namespace triphase {

[[nodiscard]] inline bool checked_add(std::uint64_t a, std::uint64_t b, std::uint64_t& sum) {
  return !__builtin_add_overflow(a, b, &sum);
}

[[nodiscard]] inline bool checked_mul(std::uint64_t a, std::uint64_t b, std::uint64_t& product) {
  return !__builtin_mul_overflow(a, b, &product);
}

// Product of all factors (1 for none), or nothing when it does not fit 64 bits.
[[nodiscard]] inline std::optional<std::uint64_t> checked_product(
    std::span<const std::uint64_t> factors) {
  std::uint64_t product = 1;
  for (const std::uint64_t factor : factors) {
    if (!checked_mul(product, factor, product)) return std::nullopt;
  }
  return product;
}

}  // namespace triphase
