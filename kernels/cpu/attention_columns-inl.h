// Scores of many query rows from keys that lie by column, for targets with 16 lanes and 32
// registers (measured: with fewer they are slower). Compiled once per SIMD target.

#if defined(TRIPHASE_KERNELS_CPU_ATTENTION_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIPHASE_KERNELS_CPU_ATTENTION_COLUMNS_INL_H_
#undef TRIPHASE_KERNELS_CPU_ATTENTION_COLUMNS_INL_H_
#else
#define TRIPHASE_KERNELS_CPU_ATTENTION_COLUMNS_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/attention_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3

// Rows of a block from which on it is worth it (measured), and rows that are scored at once: each
// takes a register for every level of a tree.
constexpr std::int64_t kRowsByColumn = 32;
constexpr int kColumnRows = 4;

// Four tokens' elements of kLanes columns, stored by column: `to` is the first token's in the
// first.
HWY_INLINE void store_columns(const VF (&rows)[4], float* to) {
  const DF d;
  const hn::Repartition<std::uint64_t, DF> du64;
  const auto pairs = [&](VF a, VF b) { return hn::BitCast(du64, hn::InterleaveLower(d, a, b)); };
  const auto upper = [&](VF a, VF b) { return hn::BitCast(du64, hn::InterleaveUpper(d, a, b)); };
  const auto low_01 = pairs(rows[0], rows[1]);
  const auto low_23 = pairs(rows[2], rows[3]);
  const auto high_01 = upper(rows[0], rows[1]);
  const auto high_23 = upper(rows[2], rows[3]);
  // Of every four columns one.
  HWY_ALIGN float columns[4][kLanes];
  hn::Store(hn::BitCast(d, hn::InterleaveLower(du64, low_01, low_23)), d, columns[0]);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(du64, low_01, low_23)), d, columns[1]);
  hn::Store(hn::BitCast(d, hn::InterleaveLower(du64, high_01, high_23)), d, columns[2]);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(du64, high_01, high_23)), d, columns[3]);
  for (std::int64_t c = 0; c < kLanes; ++c) {
    std::copy_n(columns[c % 4] + c / 4 * 4, 4, to + c * kTile);
  }
}

// Tokens [first, end) of a tile as F32 columns [column][kTile], zeros from the last column up to
// whole vectors. Four tokens at a time: those beside [first, end) get what the nearest inside has.
template <class T>
void convert_columns(const Tokens<T>& tokens, std::int64_t first, std::int64_t end, float* to) {
  for (std::int64_t j = first / 4 * 4; j < end; j += 4) {
    const auto row = [&](std::int64_t i) { return tokens.row(std::clamp(j + i, first, end - 1)); };
    for_columns(tokens.dim, [&](std::int64_t c, std::int64_t count) {
      const VF rows[4] = {load_some(row(0) + c, count), load_some(row(1) + c, count),
                          load_some(row(2) + c, count), load_some(row(3) + c, count)};
      store_columns(rows, to + c * kTile + j);
    });
  }
}

// Which lane of a vector comes at place `place` of the tree by which store_four_sums adds lanes,
// whose neighbours are added first.
constexpr std::int64_t lane_at(int place) {
  return (place & 1) << 1 | (place >> 1 & 1) | (place >> 2 & 1) << 3 | (place >> 3 & 1) << 2;
}

// Scores of one vector of tokens. By column every lane's sum is one vector of all tokens, and the
// tree adds vectors where store_four_sums would move lanes: the same sums in the same order.
template <int kRows>
struct ColumnScores {
  const float* q;
  std::int64_t q_stride;
  const float* columns;  // [width][kTile], from the first token on
  std::int64_t width;

  // sums[r] = those of the 2^kLevels lanes from place kFirst of the tree on.
  template <int kLevels, int kFirst>
  HWY_INLINE void sum(VF (&sums)[kRows]) const {
    if constexpr (kLevels == 0) {
      for (int r = 0; r < kRows; ++r) sums[r] = hn::Zero(DF());
      for (std::int64_t c = lane_at(kFirst); c < width; c += kLanes) {
        const VF keys = in_register(hn::LoadU(DF(), columns + c * kTile));
        HWY_UNROLL(8)
        for (int r = 0; r < kRows; ++r) {
          sums[r] = hn::MulAdd(hn::Set(DF(), q[r * q_stride + c]), keys, sums[r]);
        }
      }
    } else {
      VF others[kRows];
      sum<kLevels - 1, kFirst>(sums);
      sum<kLevels - 1, kFirst + (1 << (kLevels - 1))>(others);
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) sums[r] = hn::Add(sums[r], others[r]);
    }
  }
};

// score_rows of tokens that lie by column, at least those of [first, end).
template <int kRows>
void score_by_column(const float* q, std::int64_t q_stride, const float* columns,
                     std::int64_t width, std::int64_t first, std::int64_t end, float* scores) {
  for (std::int64_t j = first / kLanes * kLanes; j < end; j += kLanes) {
    VF sums[kRows];
    ColumnScores<kRows>{q, q_stride, columns + j, width}.template sum<4, 0>(sums);
    for (int r = 0; r < kRows; ++r) hn::Store(sums[r], DF(), scores + r * kTile + j);
  }
}

// score_part of tokens by column, those that a row of the group sees alone.
inline void score_part_columns(const Call& call, const Block& block, const float* q,
                               std::int64_t tile, std::int64_t lo, std::int64_t hi,
                               const float* columns, float* scores) {
  const std::int64_t stride = call.layout.padded_dim;
  const std::int64_t width = round_up(call.cache.head_dim, kLanes);
  for_row_groups<kColumnRows>(block.rows, [&]<int kRows>(std::int64_t row) {
    const std::int64_t first = seen_by(block, row / block.heads, tile, lo, hi).first;
    const std::int64_t end = seen_by(block, (row + kRows - 1) / block.heads, tile, lo, hi).end;
    score_by_column<kRows>(q + row * stride, stride, columns, width, first, end,
                           scores + row * kTile);
  });
}

// score_part by column, where that is worth it: else false. `columns` is scratch for a tile.
template <class T>
bool scored_by_column(const Call& call, const Block& block, const float* q, std::int64_t tile,
                      std::int64_t lo, std::int64_t hi, const Tokens<T>& keys, float* columns,
                      float* scores) {
  if (block.rows < kRowsByColumn) return false;
  convert_columns(keys, lo, hi, columns);
  score_part_columns(call, block, q, tile, lo, hi, columns, scores);
  return true;
}

#else

template <class T>
bool scored_by_column(const Call&, const Block&, const float*, std::int64_t, std::int64_t,
                      std::int64_t, const Tokens<T>&, float*, float*) {
  return false;
}

#endif

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
