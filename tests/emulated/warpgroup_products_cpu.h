#pragma once

// Warpgroup products (kernels/cuda/warpgroup_products.h) on the emulator, each lane's sums by their
// definition.

#include <cstdint>

#include "tests/emulated/emulated_products.h"

namespace triphase::cuda {

inline constexpr bool kHasWarpgroupProducts = true;

// The canonical layouts of PTX ISA 9.7.15.5.1.2 with the 128-byte swizzle: which 16 of 128 bytes is
// turned by the address, so panels must start where the pattern does.
template <int kRows>
class SharedPanels {
 public:
  static_assert(kRows % 8 == 0);

  explicit SharedPanels(const void* panels) : at_(static_cast<const std::uint16_t*>(panels)) {
    if (reinterpret_cast<std::uintptr_t>(at_) % kPanelAlignment != 0) {
      emulated::fault("panels do not start at a multiple of 1024 bytes");
    }
  }
  [[nodiscard]] SharedPanels from_row(int row) const {
    if (row % 8 != 0) emulated::fault("panels from a row that is no multiple of 8");
    return later(row * kPanelColumns);
  }
  [[nodiscard]] SharedPanels from_column(int column) const {
    if (column % 16 != 0) emulated::fault("panels from a column that is no multiple of 16");
    return later(column / kPanelColumns * kRows * kPanelColumns + column % kPanelColumns);
  }
  // `seen`: by the race check, for which a warp need not read a value eight times.
  template <class T>
  [[nodiscard]] float value(int row, int column, bool seen) const {
    const std::uint16_t* plain = at_ + column / kPanelColumns * kRows * kPanelColumns +
                                 row * kPanelColumns + column % kPanelColumns;
    const auto address = reinterpret_cast<std::uintptr_t>(plain);
    const auto* turned = reinterpret_cast<const std::uint16_t*>(address ^ (address >> 7 & 7U) << 4);
    return to_float(T{seen ? *turned : emulated::unseen(turned)});
  }

 private:
  [[nodiscard]] SharedPanels later(int elements) const {
    SharedPanels result = *this;
    result.at_ += elements;
    return result;
  }

  const std::uint16_t* at_;
};

inline void publish_shared() { emulated::publish_shared(); }
inline void products_begin() { emulated::products_begin(); }
inline void products_commit() { emulated::products_commit(); }
template <int kPending, class... Sums>
void products_wait(Sums&... /*sums*/) {
  emulated::products_wait(kPending);
}

namespace detail {

// Adds to a lane's sums; value(k, column): of B.
template <int kTiles, class Value>
void add_products(float (&sums)[kTiles][4], int lane, const LaneRows& rows, bool add,
                  const Value& value) {
  for (int n = 0; n < kTiles; ++n) {
    for (int i = 0; i < 2; ++i) {
      const int column = n * 8 + lane % 4 * 2 + i;
      float* const sum = sums[n] + i;  // and two further, of the other row
      if (!add) sum[0] = sum[2] = 0.0F;
      for (int k = 0; k < 16; ++k) {
        const float other = value(k, column);
        sum[0] += rows[0][static_cast<std::size_t>(k)] * other;
        sum[2] += rows[1][static_cast<std::size_t>(k)] * other;
      }
    }
  }
}

// A from registers; kTransposed: B's rows are k.
template <class T, bool kTransposed, int kTiles, int kRows>
void multiply_words(const char* operation, float (&sums)[kTiles][4], const unsigned (&a)[4],
                    SharedPanels<kRows> b, bool add) {
  const int mine = lane();
  const std::array words{word_of(a[0], a[1]), word_of(a[2], a[3])};
  const LaneRows rows = rows_of<T>(emulated::warp_exchange(operation, words), mine);
  emulated::product([&sums, rows, b, add, mine] {
    add_products(sums, mine, rows, add, [&](int k, int column) {
      return b.template value<T>(kTransposed ? k : column, kTransposed ? column : k, mine < 4);
    });
  });
}

}  // namespace detail

template <class T, int kTiles, int kARows, int kBRows>
void multiply_rows(float (&sums)[kTiles][4], SharedPanels<kARows> a, SharedPanels<kBRows> b,
                   bool add) {
  const int mine = detail::lane();
  const int first = static_cast<int>(threadIdx.x) / kWarpSize % 4 * 16 + mine / 4;
  emulated::product([&sums, a, b, add, mine, first] {
    detail::LaneRows rows;
    for (std::size_t k = 0; k < 16; ++k) {
      rows[0][k] = a.template value<T>(first, static_cast<int>(k), true);
      rows[1][k] = a.template value<T>(first + 8, static_cast<int>(k), true);
    }
    detail::add_products(sums, mine, rows, add, [&](int k, int column) {
      return b.template value<T>(column, k, mine < 4);
    });
  });
}

template <class T, int kTiles, int kRows>
void multiply_rows(float (&sums)[kTiles][4], const unsigned (&a)[4], SharedPanels<kRows> b,
                   bool add) {
  detail::multiply_words<T, false>("multiply_rows", sums, a, b, add);
}

template <class T, int kTiles, int kRows>
void multiply_columns(float (&sums)[kTiles][4], const unsigned (&a)[4], SharedPanels<kRows> b,
                      bool add) {
  detail::multiply_words<T, true>("multiply_columns", sums, a, b, add);
}

}  // namespace triphase::cuda
