// Inner loops of attention on one tile of keys: scores, online softmax, weighted values. Compiled
// once per SIMD target. Every row's arithmetic is the same however many rows share a loop.

#if defined(TRIPHASE_KERNELS_CPU_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIPHASE_KERNELS_CPU_ATTENTION_TILE_INL_H_
#undef TRIPHASE_KERNELS_CPU_ATTENTION_TILE_INL_H_
#else
#define TRIPHASE_KERNELS_CPU_ATTENTION_TILE_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/sizing/attention_workspace.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {

constexpr std::int64_t kTile = kAttentionTile;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Register tiles; HWY_AVX3 has 32 vector registers, the others 16 (or emulate vectors).
#if HWY_TARGET == HWY_AVX3
constexpr int kScoreRows = 4;
#else
constexpr int kScoreRows = 2;
#endif
constexpr int kValueRows = 4;

// Sums the lanes of four vectors by one fixed tree and stores the four sums.
HWY_INLINE void store_four_sums(VF a, VF b, VF c, VF d, float* to) {
#if HWY_TARGET == HWY_SCALAR
  to[0] = hn::GetLane(a);
  to[1] = hn::GetLane(b);
  to[2] = hn::GetLane(c);
  to[3] = hn::GetLane(d);
#else
  const DF df;
  const hn::Repartition<std::uint64_t, DF> du64;
  const VF ab = hn::Add(hn::InterleaveLower(df, a, b), hn::InterleaveUpper(df, a, b));
  const VF cd = hn::Add(hn::InterleaveLower(df, c, d), hn::InterleaveUpper(df, c, d));
  const auto ab64 = hn::BitCast(du64, ab);
  const auto cd64 = hn::BitCast(du64, cd);
  const VF lower = hn::BitCast(df, hn::InterleaveLower(du64, ab64, cd64));
  const VF upper = hn::BitCast(df, hn::InterleaveUpper(du64, ab64, cd64));
  const VF sums = hn::Add(lower, upper);  // every 128-bit block: its part of the four sums
#if HWY_TARGET == HWY_SSE4
  hn::StoreU(sums, df, to);
#else
  const hn::Half<DF> dh;
  const auto halves = hn::Add(hn::LowerHalf(dh, sums), hn::UpperHalf(dh, sums));
#if HWY_TARGET == HWY_AVX2
  hn::StoreU(halves, dh, to);
#else
  const hn::Half<hn::Half<DF> > dq;
  hn::StoreU(hn::Add(hn::LowerHalf(dq, halves), hn::UpperHalf(dq, halves)), dq, to);
#endif
#endif
#endif
}

// Where a tile's tokens lie: token j's row begins at `data` + at[j]. at[kTile..] holds the tokens
// after the tile. While token j is in use, token j + far is asked for into L2 (through L1 alone too
// few lines are in flight to fill memory) and token j + kNear into L1; far = 0 asks for nothing.
template <class T>
struct Tokens {
  const T* data;
  const std::int64_t* at;
  std::int64_t dim;
  std::int64_t far;

  [[nodiscard]] const T* row(std::int64_t j) const { return data + at[j]; }
  HWY_INLINE void prefetch(std::int64_t j) const {
    constexpr std::int64_t kNear = 4;
    const auto* far_row = reinterpret_cast<const char*>(row(j + far));
    const auto* near_row = reinterpret_cast<const char*>(row(j + kNear));
    for (std::int64_t byte = 0; byte < dim * static_cast<std::int64_t>(sizeof(T)); byte += 64) {
      __builtin_prefetch(far_row + byte, 0, 2);
      __builtin_prefetch(near_row + byte, 0, 3);
    }
  }
};

// scores[r * kTile + j] = q[r] . keys[j] for j in [first, end), both multiples of 4. q rows have
// `q_stride` floats, zeros after the keys' dim.
template <int kRows, class T>
void score_rows(const float* q, std::int64_t q_stride, const Tokens<T>& keys, std::int64_t first,
                std::int64_t end, float* scores) {
  const std::int64_t dim = keys.dim;
  for (std::int64_t j = first; j < end; j += 4) {
    const T* k0 = keys.row(j);
    const T* k1 = keys.row(j + 1);
    const T* k2 = keys.row(j + 2);
    const T* k3 = keys.row(j + 3);
    if (keys.far != 0) {
      for (int i = 0; i < 4; ++i) keys.prefetch(j + i);
    }
    VF sums[kRows][4];
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < 4; ++i) sums[r][i] = hn::Zero(DF());
    }
    std::int64_t c = 0;
    for (; c + kLanes <= dim; c += kLanes) {
      const VF v0 = load(k0 + c);
      const VF v1 = load(k1 + c);
      const VF v2 = load(k2 + c);
      const VF v3 = load(k3 + c);
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        const VF in = hn::Load(DF(), q + r * q_stride + c);
        sums[r][0] = hn::MulAdd(in, v0, sums[r][0]);
        sums[r][1] = hn::MulAdd(in, v1, sums[r][1]);
        sums[r][2] = hn::MulAdd(in, v2, sums[r][2]);
        sums[r][3] = hn::MulAdd(in, v3, sums[r][3]);
      }
    }
    if (c < dim) {
      const VF v0 = load_part(k0 + c, dim - c);
      const VF v1 = load_part(k1 + c, dim - c);
      const VF v2 = load_part(k2 + c, dim - c);
      const VF v3 = load_part(k3 + c, dim - c);
      for (int r = 0; r < kRows; ++r) {
        const VF in = hn::Load(DF(), q + r * q_stride + c);
        sums[r][0] = hn::MulAdd(in, v0, sums[r][0]);
        sums[r][1] = hn::MulAdd(in, v1, sums[r][1]);
        sums[r][2] = hn::MulAdd(in, v2, sums[r][2]);
        sums[r][3] = hn::MulAdd(in, v3, sums[r][3]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      store_four_sums(sums[r][0], sums[r][1], sums[r][2], sums[r][3], scores + r * kTile + j);
    }
  }
}

// One row's scores (base-2 logits; -infinity where the row must not look) become weights
// 2^(score - top). Updates the row's running maximum and sum; returns the factor that its earlier
// output must be scaled by.
HWY_INLINE float softmax_tile(float* scores, float& top, float& total) {
  const DF d;
  VF highest = hn::Load(d, scores);
  for (std::int64_t j = kLanes; j < kTile; j += kLanes) {
    highest = hn::Max(highest, hn::Load(d, scores + j));
  }
  const float tile_top = hn::GetLane(hn::MaxOfLanes(d, highest));
  const float new_top = tile_top > top ? tile_top : top;
  // All scores -infinity (products that overflowed): weights 0, not NaN.
  const float base = new_top == kMinusInfinity ? 0.0F : new_top;
  const VF bases = hn::Set(d, base);
  VF sum = hn::Zero(d);
  for (std::int64_t j = 0; j < kTile; j += kLanes) {
    const VF weights = exp2_nonpositive(hn::Sub(hn::Load(d, scores + j), bases));
    hn::Store(weights, d, scores + j);
    sum = hn::Add(sum, weights);
  }
  const float decay = new_top == top ? 1.0F : hn::GetLane(exp2_nonpositive(hn::Set(d, top - base)));
  top = new_top;
  total = total * decay + sum_lanes(sum);
  return decay;
}

// outs[r][c..] += sum over j in [first, end) of weights[r * kTile + j] * values[j][c..], in
// ascending order, for kCols vectors of columns; the last one holds `last` <= kLanes columns.
template <int kRows, int kCols, bool kAhead, class T>
HWY_INLINE void weigh_columns(const float* weights, const Tokens<T>& values, std::int64_t c,
                              std::int64_t last, std::int64_t first, std::int64_t end, float* out,
                              std::int64_t out_stride) {
  const DF d;
  VF sums[kRows][kCols];
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kCols; ++i) sums[r][i] = hn::Load(d, out + r * out_stride + c + i * kLanes);
  }
  for (std::int64_t j = first; j < end; ++j) {
    if constexpr (kAhead) values.prefetch(j);
    const T* from = values.row(j) + c;
    VF parts[kCols];
    HWY_UNROLL(8)
    for (int i = 0; i < kCols; ++i) {
      parts[i] = kCols == 1 ? load_some(from, last) : load(from + i * kLanes);
    }
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const VF weight = hn::Set(d, weights[r * kTile + j]);
      HWY_UNROLL(8)
      for (int i = 0; i < kCols; ++i) sums[r][i] = hn::MulAdd(weight, parts[i], sums[r][i]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kCols; ++i) hn::Store(sums[r][i], d, out + r * out_stride + c + i * kLanes);
  }
}

// weigh_columns over all columns. The first pass over the tokens asks for whole rows ahead.
template <int kRows, class T>
void weigh_rows(const float* weights, const Tokens<T>& values, std::int64_t first, std::int64_t end,
                float* out, std::int64_t out_stride) {
  // Accumulators of one pass: 16 registers where there are 32, else 8.
  constexpr int kSums = HWY_TARGET == HWY_AVX3 ? 16 : 8;
  constexpr int kCols = kSums / kRows > 8 ? 8 : kSums / kRows;
  bool ahead = values.far != 0;
  std::int64_t c = 0;
  const auto pass = [&]<int kPassCols>(std::int64_t last) {
    if (ahead) {
      weigh_columns<kRows, kPassCols, true>(weights, values, c, last, first, end, out, out_stride);
      ahead = false;
    } else {
      weigh_columns<kRows, kPassCols, false>(weights, values, c, last, first, end, out, out_stride);
    }
    c += kPassCols * kLanes;
  };
  while (c + kCols * kLanes <= values.dim) pass.template operator()<kCols>(kLanes);
  if constexpr (kCols > 4) {
    if (c + 4 * kLanes <= values.dim) pass.template operator()<4>(kLanes);
  }
  while (c < values.dim) pass.template operator()<1>(std::min(kLanes, values.dim - c));
}

// Calls body.template operator()<n>(row) over `rows` rows in groups of n <= kMost.
template <int kMost, class Body>
HWY_INLINE void for_row_groups(std::int64_t rows, const Body& body) {
  std::int64_t row = 0;
  for (; row + kMost <= rows; row += kMost) body.template operator()<kMost>(row);
  if constexpr (kMost > 3) {
    if (rows - row == 3) {
      body.template operator()<3>(row);
      return;
    }
  }
  if constexpr (kMost > 2) {
    if (rows - row == 2) {
      body.template operator()<2>(row);
      return;
    }
  }
  if constexpr (kMost > 1) {
    if (rows - row == 1) body.template operator()<1>(row);
  }
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
