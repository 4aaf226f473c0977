// Inner loop of the matrix product. Compiled once per SIMD target.
//
// Every y[m, n] is one vector accumulator over k in steps of the vector width (a last part filled
// with zeros), then one fixed tree over the lanes: the same arithmetic for every tile shape, so a
// row does not depend on its neighbours. Converting w in registers is cheap enough, at four rows of
// x, that packing it as F32 first is slower (measured).

#if defined(TRIPHASE_KERNELS_CPU_LINEAR_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIPHASE_KERNELS_CPU_LINEAR_TILE_INL_H_
#undef TRIPHASE_KERNELS_CPU_LINEAR_TILE_INL_H_
#else
#define TRIPHASE_KERNELS_CPU_LINEAR_TILE_INL_H_
#endif

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {

// Register tile: rows of x times rows of w. Accumulators and one w vector per column must fit 32
// registers of AVX-512 or 16 of the others.
constexpr int kTileRows = 4;
#if HWY_TARGET == HWY_AVX3
constexpr int kTileCols = 4;
#else
constexpr int kTileCols = 2;
#endif

struct Problem {
  const float* x;
  std::int64_t x_stride;
  std::int64_t depth;
  const void* w;
  std::int64_t w_stride;
  const float* bias;
  bool accumulate;
  float* y;
  std::int64_t y_stride;
};

HWY_INLINE void finish(const Problem& p, std::int64_t row, std::int64_t col, VF sum) {
  float value = sum_lanes(sum);
  if (p.bias != nullptr) value += p.bias[col];
  float& out = p.y[row * p.y_stride + col];
  out = p.accumulate ? out + value : value;
}

template <int kRows, int kCols, class T>
void multiply_tile(const Problem& p, std::int64_t row, std::int64_t col) {
  const float* HWY_RESTRICT x = p.x + row * p.x_stride;
  const T* HWY_RESTRICT w = static_cast<const T*>(p.w) + col * p.w_stride;
  const std::int64_t x_stride = p.x_stride;
  const std::int64_t w_stride = p.w_stride;
  VF sums[kRows][kCols];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kCols; ++c) sums[r][c] = hn::Zero(DF());
  }
  std::int64_t k = 0;
  for (; k + kLanes <= p.depth; k += kLanes) {
    VF weights[kCols];
    HWY_UNROLL(8)
    for (int c = 0; c < kCols; ++c) {
      weights[c] = load(w + c * w_stride + k);
      // The next tile, into L2: through L1 alone too few lines are in flight to fill memory. One
      // row's loop is so fast that requests get dropped: it asks twice.
      const T* next = w + (c + kCols) * w_stride + k;
      __builtin_prefetch(next, 0, 2);
      if constexpr (kRows == 1) __builtin_prefetch(next + kLanes, 0, 2);
    }
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const VF in = load(x + r * x_stride + k);
      HWY_UNROLL(8)
      for (int c = 0; c < kCols; ++c) sums[r][c] = hn::MulAdd(in, weights[c], sums[r][c]);
    }
  }
  if (k < p.depth) {
    for (int c = 0; c < kCols; ++c) {
      const VF weights = load_part(w + c * w_stride + k, p.depth - k);
      for (int r = 0; r < kRows; ++r) {
        const VF in = load_part(x + r * x_stride + k, p.depth - k);
        sums[r][c] = hn::MulAdd(in, weights, sums[r][c]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kCols; ++c) finish(p, row + r, col + c, sums[r][c]);
  }
}

// kCols columns of `rows` rows.
template <int kCols, class T>
void multiply_rows(const Problem& p, std::int64_t row, std::int64_t rows, std::int64_t col) {
  const std::int64_t end = row + rows;
  for (; row + kTileRows <= end; row += kTileRows) multiply_tile<kTileRows, kCols, T>(p, row, col);
  if (end - row == 3) {
    multiply_tile<3, kCols, T>(p, row, col);
  } else if (end - row == 2) {
    multiply_tile<2, kCols, T>(p, row, col);
  } else if (end - row == 1) {
    multiply_tile<1, kCols, T>(p, row, col);
  }
}

// Rows [row, row + rows) times columns [first, end). A tile of w serves all rows while it is in L1.
template <class T>
void multiply_part(const Problem& p, std::int64_t row, std::int64_t rows, std::int64_t first,
                   std::int64_t end) {
  static_assert(kTileRows == 4, "multiply_rows handles remainders up to 3");
  std::int64_t col = first;
  if (rows == 1) {
    // More columns at once, because one row's accumulators alone do not hide the latencies.
    constexpr int kCols = 2 * kTileCols;
    for (; col + kCols <= end; col += kCols) multiply_tile<1, kCols, T>(p, row, col);
  }
  for (; col + kTileCols <= end; col += kTileCols) multiply_rows<kTileCols, T>(p, row, rows, col);
  for (; col < end; ++col) multiply_rows<1, T>(p, row, rows, col);
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
