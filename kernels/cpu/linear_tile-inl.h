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
constexpr int kTileRows = 4;
#if HWY_TARGET == HWY_AVX3
constexpr int tile_cols(int rows) { return rows == 1 ? 8 : 4; }
#else
constexpr int tile_cols(int rows) { return rows <= 2 ? 4 : 3; }
#endif

// A part of the product: so many rows of x pass by so many rows of w, of which so much depth at a
// time. A tile's rows of x are then 16 KiB, which stay in L1 while those of w come from L2.
constexpr std::int64_t kPartRows = 64;
constexpr std::int64_t kPartCols = 24;  // a multiple of every tile's columns
constexpr std::int64_t kPartDepth = 1024;

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

// The sum of every one of four vectors' lanes, bit for bit that of sum_lanes: halves are added
// until four lanes are left.
HWY_INLINE void sum_four(VF v0, VF v1, VF v2, VF v3, float* to) {
#if HWY_TARGET == HWY_SCALAR
  to[0] = hn::GetLane(v0);
  to[1] = hn::GetLane(v1);
  to[2] = hn::GetLane(v2);
  to[3] = hn::GetLane(v3);
#else
  const hn::Full128<float> d4;
  const hn::Repartition<std::uint64_t, decltype(d4)> d2;
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
  const auto pair = [&](VF first, VF second) {
    const auto a = folded(first);
    const auto b = folded(second);
    return hn::BitCast(d2, hn::Add(hn::InterleaveLower(d4, a, b), hn::InterleaveUpper(d4, a, b)));
  };
  const auto ab = pair(v0, v1);
  const auto cd = pair(v2, v3);
  hn::StoreU(hn::Add(hn::BitCast(d4, hn::InterleaveLower(d2, ab, cd)),
                     hn::BitCast(d4, hn::InterleaveUpper(d2, ab, cd))),
             d4, to);
#endif
}

// Where a tile of y begins, and the columns of x and w that it is multiplied by now.
struct TilePlace {
  std::int64_t row;
  std::int64_t col;
  std::int64_t depth_begin;
  std::int64_t depth_end;
};

HWY_INLINE void finish(const Problem& p, std::int64_t row, std::int64_t col, float value) {
  if (p.bias != nullptr) value += p.bias[col];
  float& out = p.y[row * p.y_stride + col];
  out = p.accumulate ? out + value : value;
}

template <int kRows, int kCols>
HWY_INLINE void finish_tile(const Problem& p, const TilePlace& at, const VF (&sums)[kRows][kCols]) {
  float values[4];
  if constexpr (kRows == 1 && kCols % 4 == 0) {
    HWY_UNROLL(8)
    for (int c = 0; c < kCols; c += 4) {
      sum_four(sums[0][c], sums[0][c + 1], sums[0][c + 2], sums[0][c + 3], values);
      for (int i = 0; i < 4; ++i) finish(p, at.row, at.col + c + i, values[i]);
    }
  } else {
    HWY_UNROLL(8)
    for (int c = 0; c < kCols; ++c) {
      // For rows that a tile does not have others are summed in vain.
      sum_four(sums[0][c], sums[1 % kRows][c], sums[2 % kRows][c], sums[3 % kRows][c], values);
      for (int r = 0; r < kRows; ++r) finish(p, at.row + r, at.col + c, values[r]);
    }
  }
}

// Multiplies a tile by a part of its depth. `kept` has its accumulators between two parts, a row
// every kKeptStride floats. kAhead asks for the next tile's rows of w.
constexpr std::int64_t kKeptStride = kPartCols * kLanes;
template <int kRows, int kCols, bool kAhead, class T>
void multiply_tile(const Problem& p, const TilePlace& at, float* kept) {
  const float* HWY_RESTRICT x = p.x + at.row * p.x_stride;
  const T* HWY_RESTRICT w = static_cast<const T*>(p.w) + at.col * p.w_stride;
  const std::int64_t x_stride = p.x_stride;
  const std::int64_t w_stride = p.w_stride;
  VF sums[kRows][kCols];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kCols; ++c) {
      sums[r][c] = at.depth_begin == 0 ? hn::Zero(DF())
                                       : hn::Load(DF(), kept + r * kKeptStride + c * kLanes);
    }
  }
  const std::int64_t end = at.depth_end;
  std::int64_t k = at.depth_begin;
  for (; k + kLanes <= end; k += kLanes) {
    VF weights[kCols];
    HWY_UNROLL(8)
    for (int c = 0; c < kCols; ++c) {
      weights[c] = load(w + c * w_stride + k);
      if constexpr (kAhead) {
        // Into L2: through L1 alone too few lines are in flight to fill memory. One row's loop is
        // so fast that requests get dropped: it asks twice.
        const T* next = w + (c + kCols) * w_stride + k;
        __builtin_prefetch(next, 0, 2);
        if constexpr (kRows == 1) __builtin_prefetch(next + kLanes, 0, 2);
      }
    }
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const VF in = in_register(load(x + r * x_stride + k));
      HWY_UNROLL(8)
      for (int c = 0; c < kCols; ++c) sums[r][c] = hn::MulAdd(in, weights[c], sums[r][c]);
    }
  }
  if (end < p.depth) {
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kCols; ++c) {
        hn::Store(sums[r][c], DF(), kept + r * kKeptStride + c * kLanes);
      }
    }
    return;
  }
  if (k < end) {
    for (int c = 0; c < kCols; ++c) {
      const VF weights = load_part(w + c * w_stride + k, end - k);
      for (int r = 0; r < kRows; ++r) {
        const VF in = load_part(x + r * x_stride + k, end - k);
        sums[r][c] = hn::MulAdd(in, weights, sums[r][c]);
      }
    }
  }
  finish_tile(p, at, sums);
}

// Multiplies kRows rows of x by the columns from at.col up to `end_col`.
template <int kRows, bool kAhead, class T>
void multiply_rows(const Problem& p, TilePlace at, std::int64_t end_col, float* kept) {
  constexpr int kCols = tile_cols(kRows);
  const auto tile = [&]<int kTileCols>() {
    multiply_tile<kRows, kTileCols, kAhead, T>(p, at, kept);
    at.col += kTileCols;
    kept += kTileCols * kLanes;
  };
  while (at.col + kCols <= end_col) tile.template operator()<kCols>();
  while (at.col < end_col) tile.template operator()<1>();
}

// Calls body.template operator()<n>() for n = `rows`, 1 to kTileRows.
template <class Body>
HWY_INLINE void with_tile_rows(std::int64_t rows, const Body& body) {
  static_assert(kTileRows == 4);
  switch (rows) {
    case 1:
      body.template operator()<1>();
      break;
    case 2:
      body.template operator()<2>();
      break;
    case 3:
      body.template operator()<3>();
      break;
    default:
      body.template operator()<4>();
  }
}

// Rows [row, row + rows), at most kPartRows, times columns [first, end), at most kPartCols.
template <class T>
void multiply_part(const Problem& p, std::int64_t row, std::int64_t rows, std::int64_t first,
                   std::int64_t end) {
  alignas(64) float kept[kPartRows * kKeptStride];
  const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  const std::int64_t step = tiles == 1 ? p.depth : kPartDepth;
  std::int64_t k = 0;
  do {  // once where there is no depth: sums of nothing are 0
    // No tile has two rows fewer than another: one of few rows waits for its loads.
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      const std::int64_t begin = rows * tile / tiles;
      const TilePlace at{row + begin, first, k, std::min(k + step, p.depth)};
      with_tile_rows(rows * (tile + 1) / tiles - begin, [&]<int kRows>() {
        float* of_rows = kept + begin * kKeptStride;
        // The first tile of rows meets w's, which the others find in the caches.
        if (tile == 0) {
          multiply_rows<kRows, true, T>(p, at, end, of_rows);
        } else {
          multiply_rows<kRows, false, T>(p, at, end, of_rows);
        }
      });
    }
    k += step;
  } while (k < p.depth);
}

// multiply_part for any number of columns.
template <class T>
void multiply_columns(const Problem& p, std::int64_t row, std::int64_t rows, std::int64_t first,
                      std::int64_t end) {
  for (std::int64_t col = first; col < end; col += kPartCols) {
    multiply_part<T>(p, row, rows, col, std::min(col + kPartCols, end));
  }
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
