#pragma once

// Warpgroup products on the emulator. A product happens when it is waited for; under a descending
// order of threads (emulator.h), when it is begun. So memory that is not there yet shows as wrong
// values, and so does memory or a sum that changes too early. What else is reported
// (emulated::Fault): products without products_begin(), never waited for, not begun by all four
// warps of a warpgroup, or while copies that some thread has waited for are not published.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/emulated/emulator.h"

namespace triphase::emulated {

void products_begin();

// What a product does, by value. It is kept where the race check does not look: memory of its own
// would be one thread's now and another one's later.
struct Product {
  static constexpr std::size_t kMostBytes = 192;
  alignas(16) std::array<std::byte, kMostBytes> bytes;
  void (*multiply)(const void* bytes);
};
void add_product(const Product& product);
template <class Multiply>
void product(const Multiply& multiply) {
  static_assert(std::is_trivially_copyable_v<Multiply> && sizeof(Multiply) <= Product::kMostBytes);
  Product product;
  std::memcpy(product.bytes.data(), &multiply, sizeof(multiply));
  product.multiply = [](const void* bytes) { (*static_cast<const Multiply*>(bytes))(); };
  add_product(product);
}

// The value there, without the race check's knowledge.
TRIPHASE_UNCHECKED inline std::uint16_t unseen(const std::uint16_t* at) { return *at; }

void products_commit();
void products_wait(int pending);
void publish_shared();

}  // namespace triphase::emulated
