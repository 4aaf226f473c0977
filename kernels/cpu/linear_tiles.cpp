#include "kernels/cpu/linear_tiles.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/rounding.h"

#ifdef __x86_64__

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

// Functions that use the instructions; everything else in this file runs on any processor.
#define TRIPHASE_TILES \
  __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl")))
#if defined(__GNUC__) && !defined(__clang__)
// The headers of g++ 12 begin with a register that has any value.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace triphase::cpu {
namespace {

// A tile is 16 rows of 64 bytes. A product adds w [16 columns of y, 32 of k], as it is in memory,
// times x [16 pairs of k, 16 rows of y, 2] to sums [16 columns of y, 16 rows of y].
constexpr std::int64_t kSide = 16;
constexpr std::int64_t kDepth = 32;
constexpr std::int64_t kRowBytes = 64;
constexpr std::int64_t kTileBytes = kSide * kRowBytes;
constexpr std::int64_t kTileFloats = kSide * kSide;
constexpr std::int64_t kPieces = 3;  // BF16 numbers whose sum is an F32

// Groups of kSide rows of x that pass by w together, at most, and how deep at a time: what is used
// again stays in L2, and w comes from memory once for so many rows. Their pieces lie in
// kPieceBytes, or in what one group takes.
constexpr std::int64_t kGroups = 8;
constexpr std::int64_t kSteps = 32;
constexpr std::int64_t kPieceBytes = 4 << 20;
// Tiles of columns of a task, at most. Its sums lie on the stack between the depths.
constexpr std::int64_t kTaskTiles = 16;

struct Problem {
  ConstMatrix x;
  ConstMatrix w;
  const float* bias;
  bool accumulate;
  Matrix y;
  std::int64_t steps;  // of kDepth, the last one filled with zeros
  // [groups][steps][kPieces] tiles. Fewer rows of x than kSide make narrow tiles: L1 holds them.
  const std::byte* pieces;
  std::int64_t pair_bytes;  // a row of such a tile: a pair of k of each row of x

  [[nodiscard]] std::int64_t piece_bytes() const { return kSide * pair_bytes; }
  [[nodiscard]] std::int64_t piece_at(std::int64_t group, std::int64_t step) const {
    return (group * steps + step) * kPieces * piece_bytes();
  }
  [[nodiscard]] const std::byte* pieces_at(std::int64_t group, std::int64_t step) const {
    return pieces + piece_at(group, step);
  }
  [[nodiscard]] const std::byte* w_at(std::int64_t col, std::int64_t step) const {
    return static_cast<const std::byte*>(w.data) + (col * w.row_stride + step * kDepth) * 2;
  }
};

TRIPHASE_TILES void transpose(__m512i (&rows)[kSide]) {
  __m512i twos[kSide];
  __m512i fours[kSide];
  for (int i = 0; i < 16; i += 2) {
    twos[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    twos[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int half = 0; half < 2; ++half) {
      fours[i + 2 * half] = _mm512_unpacklo_epi64(twos[i + half], twos[i + half + 2]);
      fours[i + 2 * half + 1] = _mm512_unpackhi_epi64(twos[i + half], twos[i + half + 2]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    const __m512i even0 = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0x88);
    const __m512i odd0 = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0xDD);
    const __m512i even1 = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0x88);
    const __m512i odd1 = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0xDD);
    rows[i] = _mm512_shuffle_i32x4(even0, even1, 0x88);
    rows[i + 4] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
    rows[i + 8] = _mm512_shuffle_i32x4(even0, even1, 0xDD);
    rows[i + 12] = _mm512_shuffle_i32x4(odd0, odd1, 0xDD);
  }
}

// The top 16 bits of the lanes of two vectors.
TRIPHASE_TILES __m512i tops(__m512 low, __m512 high) {
  static constexpr std::uint16_t kPlaces[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return _mm512_permutex2var_epi16(_mm512_castps_si512(low), _mm512_loadu_si512(kPlaces),
                                   _mm512_castps_si512(high));
}

// What the top 16 bits leave of a value: exact, and 0 of an infinity.
TRIPHASE_TILES __m512 rest_of(__m512 value) {
  const __m512 top = _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(value), _mm512_set1_epi32(-0x10000)));
  const __m512 rest = _mm512_sub_ps(value, top);
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(rest, rest, _CMP_ORD_Q), rest);
}

// Splits rows [row, row + rows) of x, of which columns from step * kDepth on, to `to`.
TRIPHASE_TILES void split(const Problem& p, std::int64_t row, std::int64_t rows, std::int64_t step,
                          std::byte* to) {
  const ConstMatrix& x = p.x;
  const auto there = static_cast<__mmask16>((1U << (p.pair_bytes / 4)) - 1U);
  const std::int64_t left = std::min(kDepth, x.cols - step * kDepth);
  const auto mask = static_cast<__mmask32>((std::uint64_t{1} << left) - 1);
  __m512 low[kSide];
  __m512 high[kSide];
  for (std::int64_t i = 0; i < kSide; ++i) {
    low[i] = high[i] = _mm512_setzero_ps();
    if (i >= rows) continue;
    const float* from =
        static_cast<const float*>(x.data) + (row + i) * x.row_stride + step * kDepth;
    low[i] = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), from);
    high[i] = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16U), from + 16);
  }
  for (std::int64_t piece = 0; piece < kPieces; ++piece) {
    if (p.pair_bytes == 4) {  // one row: its pairs are a column
      _mm512_storeu_si512(to + piece * kRowBytes, tops(low[0], high[0]));
      low[0] = rest_of(low[0]);
      high[0] = rest_of(high[0]);
      continue;
    }
    __m512i pairs[kSide];
    for (std::int64_t i = 0; i < kSide; ++i) {
      pairs[i] = tops(low[i], high[i]);
      low[i] = rest_of(low[i]);
      high[i] = rest_of(high[i]);
    }
    transpose(pairs);
    for (const __m512i& pair : pairs) {
      _mm512_mask_storeu_epi32(to, there, pair);
      to += p.pair_bytes;
    }
  }
}

// As the instruction reads it: eight tiles of one shape.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1;
  std::uint8_t start = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {kSide, kSide, kSide, kSide, kSide, kSide, kSide, kSide};
};

// Tiles 4 and 5 are of w, the others have a column for each row of x.
TRIPHASE_TILES void begin_tiles(const Problem& p) {
  TileShapes shapes;
  for (const int tile : {0, 1, 2, 3, 6, 7}) {
    shapes.row_bytes[tile] = static_cast<std::uint16_t>(p.pair_bytes);
  }
  // g++ does not know that the instruction reads them.
  asm volatile("" : : "r"(&shapes) : "memory");
  _tile_loadconfig(&shapes);
}
TRIPHASE_TILES void end_tiles() { _tile_release(); }

// Tiles of w of steps [first, end), one or two side by side: where they are in memory, or copied.
struct Weights {
  const std::byte* data;
  std::int64_t row_bytes;   // from row to row of a tile
  std::int64_t tile_bytes;  // to the second tile
  std::int64_t step_bytes;
  bool ahead;  // ask for what lies behind the tiles: it is used once
};

// Copies `tiles` tiles from column `col` on to `to`, [tiles][kSteps], with zeros in place of what
// is not there.
Weights copy_weights(const Problem& p, std::int64_t col, std::int64_t tiles, std::int64_t first,
                     std::int64_t end, std::byte* to) {
  std::memset(to, 0, static_cast<std::size_t>(tiles * kSteps * kTileBytes));
  for (std::int64_t row = 0; row < std::min(tiles * kSide, p.w.rows - col); ++row) {
    for (std::int64_t step = first; step < end; ++step) {
      const std::int64_t depth = std::min(kDepth, p.w.cols - step * kDepth);
      if (depth == 0) continue;  // a product of nothing
      const std::int64_t tile = row / kSide * kSteps + step - first;
      std::memcpy(to + tile * kTileBytes + row % kSide * kRowBytes, p.w_at(col + row, step),
                  static_cast<std::size_t>(depth * 2));
    }
  }
  // g++ does not know that tiles are loaded from memory, and may leave out what was stored there.
  asm volatile("" : : "r"(to) : "memory");
  return {.data = to,
          .row_bytes = kRowBytes,
          .tile_bytes = kSteps * kTileBytes,
          .step_bytes = kTileBytes,
          .ahead = false};
}

// Tiles of y: `tiles` of columns, 1 or 2, by a group of rows and perhaps the next. Products of
// steps [first, end) are added to the sums, which are [groups][tiles of the task].
struct Part {
  std::int64_t tiles;
  std::int64_t group;
  std::int64_t first;
  std::int64_t end;
  float* sums;
  std::int64_t group_floats;
};

// One group of rows.
TRIPHASE_TILES void multiply_group(const Problem& p, const Weights& w, const Part& part) {
  const bool wide = part.tiles > 1;
  _tile_zero(0);
  _tile_zero(1);
  if (part.first > 0) {
    _tile_loadd(0, part.sums, kRowBytes);
    if (wide) _tile_loadd(1, part.sums + kTileFloats, kRowBytes);
  }
  const std::byte* from = w.data;
  for (std::int64_t step = part.first; step < part.end; ++step, from += w.step_bytes) {
    const std::byte* pieces = p.pieces_at(part.group, step);
    _tile_loadd(4, from, w.row_bytes);
    if (wide) _tile_loadd(5, from + w.tile_bytes, w.row_bytes);
    for (std::int64_t piece = 0; piece < kPieces; ++piece) {
      _tile_loadd(6, pieces + piece * p.piece_bytes(), p.pair_bytes);
      _tile_dpbf16ps(0, 4, 6);
      if (wide) _tile_dpbf16ps(1, 5, 6);
    }
    for (std::int64_t i = kSide; i < 2 * kSide && w.ahead; ++i) {
      __builtin_prefetch(from + i * w.row_bytes, 0, 2);
    }
  }
  _tile_stored(0, part.sums, kRowBytes);
  if (wide) _tile_stored(1, part.sums + kTileFloats, kRowBytes);
}

// Two groups of rows: fewest loads for each product.
TRIPHASE_TILES void multiply_groups(const Problem& p, const Weights& w, const Part& part) {
  const bool wide = part.tiles > 1;
  float* below = part.sums + part.group_floats;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if (part.first > 0) {
    _tile_loadd(0, part.sums, kRowBytes);
    _tile_loadd(1, below, kRowBytes);
    if (wide) _tile_loadd(2, part.sums + kTileFloats, kRowBytes);
    if (wide) _tile_loadd(3, below + kTileFloats, kRowBytes);
  }
  const std::byte* from = w.data;
  for (std::int64_t step = part.first; step < part.end; ++step, from += w.step_bytes) {
    const std::byte* pieces = p.pieces_at(part.group, step);
    const std::byte* pieces_below = p.pieces_at(part.group + 1, step);
    _tile_loadd(4, from, w.row_bytes);
    if (wide) _tile_loadd(5, from + w.tile_bytes, w.row_bytes);
    for (std::int64_t piece = 0; piece < kPieces; ++piece) {
      _tile_loadd(6, pieces + piece * kTileBytes, kRowBytes);
      _tile_loadd(7, pieces_below + piece * kTileBytes, kRowBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if (wide) _tile_dpbf16ps(2, 5, 6);
      if (wide) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, part.sums, kRowBytes);
  _tile_stored(1, below, kRowBytes);
  if (wide) _tile_stored(2, part.sums + kTileFloats, kRowBytes);
  if (wide) _tile_stored(3, below + kTileFloats, kRowBytes);
}

// Sums [16 columns, 16 rows] of a group of `rows` rows to y.
TRIPHASE_TILES void finish(const Problem& p, std::int64_t row, std::int64_t rows, std::int64_t col,
                           const float* sums) {
  __m512i lines[kSide];
  for (std::int64_t i = 0; i < kSide; ++i) lines[i] = _mm512_load_si512(sums + i * kSide);
  transpose(lines);
  const auto mask = static_cast<__mmask16>((1U << std::min(kSide, p.w.rows - col)) - 1U);
  const __m512 bias =
      p.bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, p.bias + col);
  for (std::int64_t i = 0; i < rows; ++i) {
    float* to = static_cast<float*>(p.y.data) + (row + i) * p.y.row_stride + col;
    __m512 value = _mm512_castsi512_ps(lines[i]);
    if (p.bias != nullptr) value = _mm512_add_ps(value, bias);
    if (p.accumulate) value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), value);
    _mm512_mask_storeu_ps(to, mask, value);
  }
}

// A pass: rows [row, row + rows) of x, whose pieces are there.
struct Pass {
  std::int64_t row;
  std::int64_t rows;
};

// `tiles` tiles of columns from `col` on, of the pass the groups [first_group, end_group).
void multiply_columns(const Problem& p, const Pass& pass, std::int64_t first_group,
                      std::int64_t end_group, std::int64_t col, std::int64_t tiles) {
  alignas(64) float sums[kGroups * kTaskTiles * kTileFloats];
  alignas(64) std::byte copy[2 * kSteps * kTileBytes];
  const bool in_place = p.w.cols > 0 && p.w.cols % kDepth == 0 && col + tiles * kSide <= p.w.rows;
  const bool alone = end_group - first_group == 1;
  // One group uses w once: few rows at a time, read to their end, come faster from memory.
  const std::int64_t steps = in_place && alone ? p.steps : kSteps;
  const std::int64_t width = alone ? 1 : 2;
  const auto sums_of = [&](std::int64_t group, std::int64_t tile) {
    return sums + ((group - first_group) * tiles + tile) * kTileFloats;
  };
  begin_tiles(p);
  for (std::int64_t first = 0; first < p.steps; first += steps) {
    const std::int64_t end = std::min(p.steps, first + steps);
    for (std::int64_t tile = 0; tile < tiles; tile += width) {
      const std::int64_t some = std::min<std::int64_t>(width, tiles - tile);
      const std::int64_t at = col + tile * kSide;
      const Weights w = in_place ? Weights{.data = p.w_at(at, first),
                                           .row_bytes = p.w.row_stride * 2,
                                           .tile_bytes = kSide * p.w.row_stride * 2,
                                           .step_bytes = kDepth * 2,
                                           .ahead = alone}
                                 : copy_weights(p, at, some, first, end, copy);
      for (std::int64_t group = first_group; group < end_group; group += 2) {
        const Part part{.tiles = some,
                        .group = group,
                        .first = first,
                        .end = end,
                        .sums = sums_of(group, tile),
                        .group_floats = tiles * kTileFloats};
        if (group + 1 == end_group) {
          multiply_group(p, w, part);
        } else {
          multiply_groups(p, w, part);
        }
      }
    }
  }
  end_tiles();
  for (std::int64_t group = first_group; group < end_group; ++group) {
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      finish(p, pass.row + group * kSide, std::min(kSide, pass.rows - group * kSide),
             col + tile * kSide, sums_of(group, tile));
    }
  }
}

void split_pass(ThreadPool& pool, const Problem& p, const Pass& pass, std::byte* pieces) {
  // One row takes less time than threads that begin together.
  const std::int64_t part_steps = pass.rows == 1 ? p.steps : kSteps;
  const std::int64_t parts = ceil_div(p.steps, part_steps);
  pool.parallel_for(ceil_div(pass.rows, kSide) * parts, [&](std::int64_t task, int) {
    const std::int64_t group = task / parts;
    const std::int64_t first = task % parts * part_steps;
    for (std::int64_t step = first; step < std::min(p.steps, first + part_steps); ++step) {
      split(p, pass.row + group * kSide, std::min(kSide, pass.rows - group * kSide), step,
            pieces + p.piece_at(group, step));
    }
  });
}

// Tasks of few columns, or of a part of the groups, where there are many threads.
void multiply_pass(ThreadPool& pool, const Problem& p, const Pass& pass) {
  const std::int64_t enough = 4 * std::int64_t{pool.threads()};
  const std::int64_t tiles = ceil_div(p.w.rows, kSide);
  const std::int64_t task_tiles =
      2 * std::clamp<std::int64_t>(tiles / (2 * enough), 1, kTaskTiles / 2);
  const std::int64_t col_tasks = ceil_div(tiles, task_tiles);
  const std::int64_t groups = ceil_div(pass.rows, kSide);
  const std::int64_t pairs = ceil_div(groups, 2);
  const std::int64_t row_tasks = std::clamp<std::int64_t>(enough / (2 * col_tasks), 1, pairs);
  pool.parallel_for(col_tasks * row_tasks, [&](std::int64_t task, int) {
    const std::int64_t first = task / row_tasks * task_tiles;
    const std::int64_t part = task % row_tasks;
    multiply_columns(p, pass, 2 * (pairs * part / row_tasks),
                     std::min(groups, 2 * (pairs * (part + 1) / row_tasks)), first * kSide,
                     std::min(task_tiles, tiles - first));
  });
}

}  // namespace

bool has_bf16_tiles() {
  constexpr long kAskForState = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kTilesAndBf16 = (1U << 24U) | (1U << 22U);
  if ((d & kTilesAndBf16) != kTilesAndBf16) return false;
  return syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}

void linear_by_tiles(ThreadPool& pool, ConstMatrix x, ConstMatrix w, const float* bias,
                     bool accumulate, Matrix y) {
  const std::int64_t steps = std::max<std::int64_t>(ceil_div(x.cols, kDepth), 1);
  const std::int64_t group_bytes = steps * kPieces * kTileBytes;
  const std::int64_t groups = std::min(
      ceil_div(x.rows, kSide), std::clamp<std::int64_t>(kPieceBytes / group_bytes, 1, kGroups));
  thread_local std::vector<std::byte> memory;
  const auto bytes = static_cast<std::size_t>(groups * group_bytes + 64);
  if (memory.size() < bytes) memory.resize(bytes);
  std::byte* pieces = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64);
  const Problem p{.x = x,
                  .w = w,
                  .bias = bias,
                  .accumulate = accumulate,
                  .y = y,
                  .steps = steps,
                  .pieces = pieces,
                  .pair_bytes = 4 * std::min(kSide, x.rows)};
  for (std::int64_t row = 0; row < x.rows; row += groups * kSide) {
    const Pass pass{row, std::min(groups * kSide, x.rows - row)};
    split_pass(pool, p, pass, pieces);
    multiply_pass(pool, p, pass);
  }
}

}  // namespace triphase::cpu

#else

namespace triphase::cpu {

bool has_bf16_tiles() { return false; }
void linear_by_tiles(ThreadPool&, ConstMatrix, ConstMatrix, const float*, bool, Matrix) {
  TRIPHASE_CHECK(false, "this processor has no tiles");
}

}  // namespace triphase::cpu

#endif
