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

#include <algorithm>

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {

// Register tiles: at most so many rows of x, and so many columns of y for a tile of `rows` rows.
// The accumulators, a vector of w per column and one of x fit 32 registers of AVX-512 or 16 of the
// others.
#if HWY_TARGET == HWY_AVX3
constexpr int kTileRows = 6;
constexpr int tile_cols(int rows) { return rows == 1 ? 8 : 4; }
#else
constexpr int kTileRows = 4;
constexpr int tile_cols(int rows) { return rows <= 2 ? 4 : 3; }
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

// The sums of the lanes of four vectors, bit for bit those of sum_lanes: halves of a vector are
// added until four lanes are left.
HWY_INLINE void sum_four(VF v0, VF v1, VF v2, VF v3, float* to) {
#if HWY_TARGET == HWY_SCALAR
  to[0] = hn::GetLane(v0);
  to[1] = hn::GetLane(v1);
  to[2] = hn::GetLane(v2);
  to[3] = hn::GetLane(v3);
#else
  const hn::Full128<float> d4;
  const auto folded = [&](VF v) {
#if HWY_TARGET == HWY_AVX3
    const hn::Half<DF> dh;
    const auto half = hn::Add(hn::LowerHalf(dh, v), hn::UpperHalf(dh, v));
    return hn::Add(hn::LowerHalf(d4, half), hn::UpperHalf(d4, half));
#elif HWY_TARGET == HWY_AVX2
    return hn::Add(hn::LowerHalf(d4, v), hn::UpperHalf(d4, v));
#else
    return v;
#endif
  };
  hn::StoreU(sum_blocks(d4, folded(v0), folded(v1), folded(v2), folded(v3)), d4, to);
#endif
}

HWY_INLINE void finish(const Problem& p, std::int64_t row, std::int64_t col, float value) {
  if (p.bias != nullptr) value += p.bias[col];
  float& out = p.y[row * p.y_stride + col];
  out = p.accumulate ? out + value : value;
}

template <int kRows, int kCols>
HWY_INLINE void finish_tile(const Problem& p, std::int64_t row, std::int64_t col,
                            const VF (&sums)[kRows][kCols]) {
  float values[4];
  if constexpr (kRows == 1 && kCols % 4 == 0) {
    HWY_UNROLL(8)
    for (int c = 0; c < kCols; c += 4) {
      sum_four(sums[0][c], sums[0][c + 1], sums[0][c + 2], sums[0][c + 3], values);
      for (int i = 0; i < 4; ++i) finish(p, row, col + c + i, values[i]);
    }
  } else {
    HWY_UNROLL(8)
    for (int c = 0; c < kCols; ++c) {
      HWY_UNROLL(2)
      for (int r = 0; r < kRows; r += 4) {
        // For rows that a tile does not have others are summed in vain.
        sum_four(sums[r][c], sums[(r + 1) % kRows][c], sums[(r + 2) % kRows][c],
                 sums[(r + 3) % kRows][c], values);
        for (int i = 0; i < std::min(4, kRows - r); ++i) finish(p, row + r + i, col + c, values[i]);
      }
    }
  }
}

// kLanes elements of w for several rows of x.
template <class T>
HWY_INLINE VF load_shared(const T* from) {
  return load(from);
}
#if HWY_TARGET == HWY_AVX2
// By one shuffle, where widening and shifting are two, which the products wait for. The places of
// its bytes stay in memory: a tile has no register for them.
HWY_INLINE VF load_shared(const BF16* from) {
  constexpr std::uint16_t kZeros = 0x8080;
  alignas(32) static constexpr std::uint16_t kPlaces[16] = {
      kZeros, 0x0100, kZeros, 0x0302, kZeros, 0x0504, kZeros, 0x0706,
      kZeros, 0x0908, kZeros, 0x0B0A, kZeros, 0x0D0C, kZeros, 0x0F0E};
  const std::uint16_t* places = kPlaces;
  asm volatile("" : "+r"(places));
  const hn::Repartition<std::uint16_t, DF> d16;
  const auto twice = hn::LoadDup128(d16, &from->bits);
  return hn::BitCast(DF(), hn::TableLookupBytesOr0(twice, hn::Load(d16, places)));
}
#endif

// kAhead asks for the next tile's rows of w.
template <int kRows, int kCols, bool kAhead, class T>
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
      const T* from = w + c * w_stride + k;
      weights[c] = kRows == 1 ? load(from) : load_shared(from);
      if constexpr (kAhead) {
        // Into L2: through L1 alone too few lines are in flight to fill memory. Requests get
        // dropped, so a line of 64 bytes is asked for four times (measured).
        constexpr std::int64_t kAsks = std::max<std::int64_t>(4 * kLanes * sizeof(T) / 64, 1);
        const T* next = w + (c + kCols) * w_stride + k;
        HWY_UNROLL(4)
        for (std::int64_t i = 0; i < kAsks; ++i) __builtin_prefetch(next + i * kLanes, 0, 2);
      }
    }
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const VF in = in_register(load(x + r * x_stride + k));
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
  finish_tile(p, row, col, sums);
}

// Rows [row, row + kRows) times columns [col, end).
template <int kRows, bool kAhead, class T>
void multiply_rows(const Problem& p, std::int64_t row, std::int64_t col, std::int64_t end) {
  constexpr int kCols = tile_cols(kRows);
  for (; col + kCols <= end; col += kCols) multiply_tile<kRows, kCols, kAhead, T>(p, row, col);
  for (; col < end; ++col) multiply_tile<kRows, 1, kAhead, T>(p, row, col);
}

// A tile of `rows` rows, at most kRows.
template <int kRows, bool kAhead, class T>
void multiply_up_to(const Problem& p, std::int64_t row, std::int64_t rows, std::int64_t first,
                    std::int64_t end) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return multiply_up_to<kRows - 1, kAhead, T>(p, row, rows, first, end);
  }
  multiply_rows<kRows, kAhead, T>(p, row, first, end);
}

// Rows [row, row + rows) times columns [first, end). A tile's rows of x stay in L2, or L1, while
// those of w pass by, which the tiles after the first find in L2.
template <class T>
void multiply_part(const Problem& p, std::int64_t row, std::int64_t rows, std::int64_t first,
                   std::int64_t end) {
  // Tiles of four rows, and of five or six where that leaves none of few: those wait for loads.
  const std::int64_t tiles = std::max(rows / 4, (rows + kTileRows - 1) / kTileRows);
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const std::int64_t begin = rows * tile / tiles;
    const std::int64_t some = rows * (tile + 1) / tiles - begin;
    if (tile == 0) {
      multiply_up_to<kTileRows, true, T>(p, row + begin, some, first, end);
    } else {
      multiply_up_to<kTileRows, false, T>(p, row + begin, some, first, end);
    }
  }
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
