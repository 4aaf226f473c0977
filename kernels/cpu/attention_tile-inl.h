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

// Register tiles: rows, and keys that are multiplied by `rows` rows at once. HWY_AVX3 has 32 vector
// registers, the others 16 (or emulate vectors).
constexpr int kScoreRows = 4;
#if HWY_TARGET == HWY_AVX3
constexpr int keys_at_once(int) { return 4; }
#else
constexpr int keys_at_once(int rows) { return rows <= 2 ? 4 : 2; }
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
  const VF sums = sum_blocks(df, a, b, c, d);
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

// Where a tile's tokens lie: token j's row of `dim` elements begins at `data` + at[j].
template <class T>
struct Tokens {
  const T* data;
  const std::int64_t* at;
  std::int64_t dim;

  [[nodiscard]] const T* row(std::int64_t j) const { return data + at[j]; }
  // Asks for the row that is read soon after token j's, into L1.
  HWY_INLINE void ask_near(std::int64_t j) const {
    constexpr std::int64_t kNear = 4;
    ask_for_lines<1>(row(j + kNear), dim * static_cast<std::int64_t>(sizeof(T)));
  }
};

// Rows that are read next, to ask for while a tile's tokens are in use, a share with each token.
// Into L2: through L1 alone too few lines are in flight to fill memory.
template <class T>
class Ahead {
 public:
  explicit Ahead(const Tokens<T>& tokens) : tokens_(tokens), end_(line_after(tokens.dim)) {}

  // Of `shares` passes over a tile's tokens, what pass `index` asks for.
  [[nodiscard]] Ahead share(std::int64_t index, std::int64_t shares) const {
    if (shares == 1) return *this;
    const std::int64_t lines = (end_ - begin_) / kLine;
    Ahead part = *this;
    part.begin_ = begin_ + lines * index / shares * kLine;
    part.end_ = begin_ + lines * (index + 1) / shares * kLine;
    return part;
  }
  // What a pass over `count` columns from `column` on asks for.
  [[nodiscard]] Ahead columns(std::int64_t column, std::int64_t count) const {
    Ahead part = *this;
    part.begin_ = std::max(begin_, line_after(column));
    part.end_ = std::min(end_, line_after(column + count));
    return part;
  }
  // Whether this is the first of those passes, which meets the tile's own tokens in L2. Of codes,
  // which take longer to convert than to come from there, none does.
  [[nodiscard]] bool meets_l2() const { return sizeof(T) > 1 && begin_ == 0; }
  HWY_INLINE void ask(std::int64_t j) const {
    if (begin_ < end_) {
      ask_for_lines<2>(reinterpret_cast<const char*>(tokens_.row(j)) + begin_, end_ - begin_);
    }
  }

 private:
  static constexpr std::int64_t kLine = 64;
  // The first line that none of the first `columns` elements lies in, in bytes.
  [[nodiscard]] static std::int64_t line_after(std::int64_t columns) {
    return (columns * static_cast<std::int64_t>(sizeof(T)) + kLine - 1) / kLine * kLine;
  }

  Tokens<T> tokens_{};
  std::int64_t begin_ = 0;  // bytes of every row
  std::int64_t end_ = 0;
};

// Where nothing is to be asked for: tokens in the caches, or such as the processor's own prefetcher
// brings.
struct NothingAhead {
  [[nodiscard]] NothingAhead share(std::int64_t, std::int64_t) const { return {}; }
  [[nodiscard]] NothingAhead columns(std::int64_t, std::int64_t) const { return {}; }
  [[nodiscard]] bool meets_l2() const { return false; }
  void ask(std::int64_t) const {}
};

// sums[r][i] = the lanes' sums of q[r] times row keys[i].
template <int kRows, int kKeys, class T>
HWY_INLINE void multiply_keys(const float* q, std::int64_t q_stride, const T* const (&keys)[kKeys],
                              std::int64_t dim, VF (&sums)[kRows][kKeys]) {
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kKeys; ++i) sums[r][i] = hn::Zero(DF());
  }
  std::int64_t c = 0;
  const auto step = [&](std::int64_t count) {
    VF values[kKeys];
    HWY_UNROLL(8)
    for (int i = 0; i < kKeys; ++i) {
      values[i] = count == kLanes ? load(keys[i] + c) : load_part(keys[i] + c, count);
      if constexpr (kRows > 1) values[i] = in_register(values[i]);
    }
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      VF in = hn::Load(DF(), q + r * q_stride + c);
      if constexpr (kRows > 1) in = in_register(in);
      HWY_UNROLL(8)
      for (int i = 0; i < kKeys; ++i) sums[r][i] = hn::MulAdd(in, values[i], sums[r][i]);
    }
  };
  for (; c + kLanes <= dim; c += kLanes) step(kLanes);
  if (c < dim) step(dim - c);
}

// scores[r * kTile + j] = q[r] . keys[j] for j in [first, end), both multiples of 4. q rows have
// `q_stride` floats, zeros after the keys' dim.
template <int kRows, class T, class Next>
void score_rows(const float* q, std::int64_t q_stride, const Tokens<T>& keys, std::int64_t first,
                std::int64_t end, const Next& ahead, float* scores) {
  constexpr int kKeys = keys_at_once(kRows);
  for (std::int64_t j = first; j < end; j += 4) {
    for (int i = 0; i < 4; ++i) {
      ahead.ask(j + i);
      if (ahead.meets_l2()) keys.ask_near(j + i);
    }
    if constexpr (kKeys == 4) {
      const T* rows[4] = {keys.row(j), keys.row(j + 1), keys.row(j + 2), keys.row(j + 3)};
      VF sums[kRows][4];
      multiply_keys(q, q_stride, rows, keys.dim, sums);
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        store_four_sums(sums[r][0], sums[r][1], sums[r][2], sums[r][3], scores + r * kTile + j);
      }
    } else {
      for (std::int64_t i = j; i < j + 4; i += 2) {
        const T* rows[2] = {keys.row(i), keys.row(i + 1)};
        VF sums[kRows][2];
        multiply_keys(q, q_stride, rows, keys.dim, sums);
        HWY_UNROLL(8)
        for (int r = 0; r < kRows; r += 2) {
          constexpr int kLast = kRows - 1;
          float of_two[4];
          const int next = r < kLast ? r + 1 : r;
          store_four_sums(sums[r][0], sums[r][1], sums[next][0], sums[next][1], of_two);
          std::copy_n(of_two, 2, scores + r * kTile + i);
          if (next != r) std::copy_n(of_two + 2, 2, scores + next * kTile + i);
        }
      }
    }
  }
}

// The largest of a row's scores; -infinity for none.
inline float highest_of(const float* row, std::int64_t count) {
  const DF d;
  VF highest = hn::Set(d, kMinusInfinity);
  const VF least = highest;
  for_columns(count, [&](std::int64_t t, std::int64_t some) {
    VF x = load_some(row + t, some);
    if (some < kLanes) x = hn::IfThenElse(hn::FirstN(d, static_cast<std::size_t>(some)), x, least);
    highest = hn::Max(highest, x);
  });
  return hn::GetLane(hn::MaxOfLanes(d, highest));
}

// What scores are relative to. All of them -infinity (products that overflowed): weights 0, not
// NaN.
HWY_INLINE float finite_base(float top) { return top == kMinusInfinity ? 0.0F : top; }

// Sum of 2^(row - base), over vectors at absolute positions; `keep` leaves the terms in the row.
template <bool keep>
float sum_weights(float* row, std::int64_t count, float base) {
  const DF d;
  const VF bases = hn::Set(d, base);
  VF sum = hn::Zero(d);
  for_columns(count, [&](std::int64_t t, std::int64_t some) {
    VF weight = exp2_nonpositive(hn::Sub(load_some(row + t, some), bases));
    if (some < kLanes) {
      weight = hn::IfThenElseZero(hn::FirstN(d, static_cast<std::size_t>(some)), weight);
    }
    if constexpr (keep) store_some(weight, row + t, some);
    sum = hn::Add(sum, weight);
  });
  return sum_lanes(sum);
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
  const float base = finite_base(new_top);
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
template <int kRows, int kCols, class T, class Next>
HWY_INLINE void weigh_columns(const float* weights, const Tokens<T>& values, std::int64_t c,
                              std::int64_t last, std::int64_t first, std::int64_t end,
                              const Next& ahead, float* out, std::int64_t out_stride) {
  const DF d;
  VF sums[kRows][kCols];
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kCols; ++i) sums[r][i] = hn::Load(d, out + r * out_stride + c + i * kLanes);
  }
  for (std::int64_t j = first; j < end; ++j) {
    ahead.ask(j);
    if (ahead.meets_l2()) values.ask_near(j);
    const T* from = values.row(j) + c;
    const auto part = [&](int i) {
      return kCols == 1 ? load_some(from, last) : load(from + i * kLanes);
    };
    if constexpr (kRows == 1) {
      // One after the other, so that registers are left for the sums.
      const VF weight = hn::Set(d, weights[j]);
      HWY_UNROLL(8)
      for (int i = 0; i < kCols; ++i) sums[0][i] = hn::MulAdd(weight, part(i), sums[0][i]);
      continue;
    }
    VF parts[kCols];
    HWY_UNROLL(8)
    for (int i = 0; i < kCols; ++i) parts[i] = in_register(part(i));
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

// weigh_columns over all columns.
template <int kRows, class T, class Next>
void weigh_rows(const float* weights, const Tokens<T>& values, std::int64_t first, std::int64_t end,
                const Next& ahead, float* out, std::int64_t out_stride) {
  // Accumulators of one pass: 16 registers where there are 32, else 8.
  constexpr int kSums = HWY_TARGET == HWY_AVX3 ? 16 : 8;
  constexpr int kCols = kSums / kRows > 8 ? 8 : kSums / kRows;
  std::int64_t c = 0;
  const auto pass = [&]<int kPassCols>(std::int64_t last) {
    weigh_columns<kRows, kPassCols>(weights, values, c, last, first, end,
                                    ahead.columns(c, kPassCols * kLanes), out, out_stride);
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
