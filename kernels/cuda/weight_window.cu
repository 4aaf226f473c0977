#include <span>
#include <string>

#include "kernels/cuda/column_scores.h"
#include "kernels/cuda/column_tiles.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/launch_check.h"
#include "kernels/cuda/select_row.h"
#include "kernels/cuda/token_weights.h"
#include "kernels/cuda/weight_window.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {
namespace {

constexpr int kThreads = 256;

// To the nearest unit, as on the CPU; the sum with a half is exact. NaN counts as 0.
__device__ inline std::int64_t units_of(float weight) {
  if (!(weight > 0.0F)) return 0;
  return static_cast<std::int64_t>(
      static_cast<double>(smaller(weight, kMostWeight)) * kWeightUnits + 0.5);
}

__device__ inline void add_units(std::int64_t* sum, std::int64_t units) {
  if (units == 0) return;
  (void)atomic_add(reinterpret_cast<unsigned long long*>(sum),
                   static_cast<unsigned long long>(units));
}

// The place `i` behind `begin`.
__device__ inline std::int64_t place_of(const WeightWindow& window, std::int64_t begin,
                                        std::int64_t i) {
  return begin + i < window.room ? begin + i : begin + i - window.room;
}

// Block (words, window).
__global__ void __launch_bounds__(kThreads) clear_weights_kernel(const WeightWindow* windows) {
  const WeightWindow window = windows[blockIdx.y];
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at < window.tokens) window.sums[at] = 0;
  if (window.buckets != nullptr && at < window.room * window.tokens) window.buckets[at] = 0;
}

// Threads that share an entering token, each with a part of the list's heads.
int slices_of(int heads) {
  constexpr int kMost = kThreads / kWarpSize;
  int slices = 1;
  while (slices < kMost && 2 * slices <= heads) slices *= 2;
  return slices;
}

// The block's tokens of a row enter. A slice's threads have tokens side by side.
__device__ inline void enter_weights(const WeightRow& row, const WeightWindow& window,
                                     const std::int32_t* tokens, const ListedScores& scores,
                                     int slices, float* sums) {
  const int thread = static_cast<int>(threadIdx.x);
  const int together = kThreads / slices;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * together;
  if (first >= row.step.count) return;
  const std::int64_t i = first + thread % together;
  const int slice = thread / together;
  const bool enters = i < row.step.count;
  const std::int32_t token =
      enters && slice == 0 ? tokens[row.attended * scores.capacity + i] : std::int32_t{0};
  float weight = enters ? weight_of(scores, row.attended, i, slice, slices) : 0.0F;
  sums[thread] = weight;
  __syncthreads();
  if (slice > 0 || !enters) return;
  for (int other = 1; other < slices; ++other) weight += sums[other * together + thread];
  device_check(token >= 0 && token < row.context);
  const std::int64_t units = units_of(weight);
  add_units(window.sums + token, units);
  if (window.entries != nullptr) {
    window.entries[place_of(window, row.step.begin, i)] = {token, weight};
  } else {
    window.buckets[row.step.begin * window.tokens + token] += units;
  }
}

// Block (tokens, row): what enters and what leaves meet at sums alone.
__global__ void __launch_bounds__(kThreads)
    add_weights_kernel(const WeightRow* rows, const std::int32_t* tokens, ListedScores scores,
                       int slices, std::int64_t layer) {
  TRIPHASE_SHARED(float, sums, kThreads);
  const WeightRow row = rows[blockIdx.y];
  const WeightWindow window = in_layer(row.window, layer);
  enter_weights(row, window, tokens, scores, slices, sums);
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (window.entries != nullptr) {
    if (i >= row.step.expired) return;
    const WindowEntry old = window.entries[place_of(window, row.step.expired_begin, i)];
    add_units(window.sums + old.token, -units_of(old.weight));
    return;
  }
  if (row.step.expired == 0 || i >= row.context) return;
  std::int64_t expired_units = 0;
  for (std::int64_t e = 0; e < row.step.expired; ++e) {
    const std::int64_t bucket = place_of(window, row.step.expired_begin, e);
    expired_units += window.buckets[bucket * window.tokens + i];
    window.buckets[bucket * window.tokens + i] = 0;
  }
  add_units(window.sums + i, -expired_units);
}

// How a part is cut: a tile's keys follow those of the one before it, then come the next queries.
struct PartTiles {
  std::int64_t keys;     // of a tile
  std::int64_t queries;  // of a tile
  // Of the part.
  [[nodiscard]] TRIPHASE_BOTH std::int64_t across(const ColumnPart& rows) const {
    return ceil_div<std::int64_t>(rows.first_position + rows.queries, keys);
  }
  [[nodiscard]] std::int64_t count(const ColumnPart& rows) const {
    return across(rows) * ceil_div<std::int64_t>(rows.queries, queries);
  }
};
TRIPHASE_BOTH PartTiles column_part_tiles(std::int64_t group) {
  return {kColumnThreads, larger<std::int64_t>(1, kColumnRows / group)};
}
template <class T>
TRIPHASE_BOTH PartTiles score_part_tiles() {
  return {ColumnScores<T>::kKeys, kScoreRows};
}

// A block's tile of its part: keys from `first` on, and queries [begin, end) of those of the part.
struct PartTile {
  std::int64_t first;
  std::int64_t begin;
  std::int64_t end;

  __device__ PartTile(const PartTiles& tiles, const ColumnPart& rows, std::int64_t tile)
      : first(tile % tiles.across(rows) * tiles.keys),
        begin(tile / tiles.across(rows) * tiles.queries),
        end(smaller<std::int64_t>(begin + tiles.queries, rows.queries)) {}
  [[nodiscard]] __device__ int count() const { return static_cast<int>(end - begin); }
  // Its last query sees none of its keys.
  [[nodiscard]] __device__ bool is_dark(const ColumnPart& rows) const {
    return rows.first_position + end <= first;
  }
};

// Block (tile), one thread per key. A tile of kColumnRows rows holds whole queries, or a part of
// one whose group is larger.
template <class T>
__global__ void __launch_bounds__(kColumnThreads, 8)
    add_prompt_rows_kernel(PrefillColumns common, const WindowPart* parts,
                           std::int64_t part_count) {
  TRIPHASE_DYNAMIC_SHARED(bytes);
  TRIPHASE_SHARED(float, row_log_sums, kColumnRows);
  const int thread = static_cast<int>(threadIdx.x);
  const WindowPart& own_part = laid_out_at(parts, part_count, blockIdx.x);
  const PrefillColumns call = of_part(common, own_part.rows);
  const WeightWindow window = own_part.window;
  const std::int32_t* const begins = own_part.begins;
  const float* const log_sums = own_part.rows.log_sums;
  const ColumnRows rows = column_rows(call);
  const auto group = static_cast<int>(rows.group);
  const PartTile tile(column_part_tiles(group), own_part.rows, blockIdx.x - own_part.first_tile);
  if (tile.is_dark(own_part.rows)) return;
  const std::int64_t first = tile.first;
  const std::int64_t begin = tile.begin;
  const std::int64_t end = tile.end;
  const std::int64_t token = first + thread;
  const int count = tile.count() * group;
  float total[kColumnRows];  // of the query whose last row this is
  TRIPHASE_UNROLL
  for (int i = 0; i < kColumnRows; ++i) total[i] = 0.0F;
  TRIPHASE_NO_UNROLL
  for (std::int64_t head = 0; head < call.kv_heads; ++head) {
    const ColumnTiles tiles(call, head, reinterpret_cast<float*>(bytes));
    __syncthreads();
    tiles.load_keys<T>(first, first_seen(call, rows.begin + begin), rows.begin + end);
    float part = 0.0F;
    TRIPHASE_NO_UNROLL
    for (int row = 0; row < count; row += kColumnRows) {
      __syncthreads();
      tiles.load_rows(rows, begin * group + row);
      if (thread < kColumnRows && row + thread < count) {
        const int own = row + thread;
        row_log_sums[thread] =
            log_sums[(rows.begin + begin + own / group - call.first_position) * call.heads +
                     head * group + own % group] *
            kLog2E;
      }
      __syncthreads();
      float dot[kColumnRows];
      tiles.multiply(dot);
      TRIPHASE_UNROLL
      for (int i = 0; i < kColumnRows; ++i) {
        const int own = row + i;
        if (own >= count) continue;
        const std::int64_t position = rows.begin + begin + own / group;
        if (token <= position && token >= first_seen(call, position)) {
          part += exp2_fast(dot[i] - row_log_sums[i]);
        }
        if (own % group == group - 1) {
          total[i] += part;
          part = 0.0F;
        }
      }
    }
  }
  std::int64_t sum = 0;
  const int last_rows = (count - 1) / kColumnRows * kColumnRows;  // the last tile, or the only one
  TRIPHASE_UNROLL
  for (int i = 0; i < kColumnRows; ++i) {
    const int own = last_rows + i;
    const std::int64_t query = begin + own / group;
    if (own >= count || own % group != group - 1 || token > rows.begin + query) continue;
    const std::int64_t units = units_of(total[i]);
    sum += units;
    const std::int64_t place = begins[query];
    if (window.entries != nullptr) {
      window.entries[place_of(window, place, token)] = {static_cast<std::int32_t>(token), total[i]};
    } else {
      add_units(window.buckets + place * window.tokens + token, units);
    }
  }
  if (token < rows.begin + end) add_units(window.sums + token, sum);
}

// A lane's weights of 16 rows of a warp, summed over the heads, go to the window. `begins`: of the
// block's queries, of which there are `count`; the first is at `position`.
template <class T>
__device__ __forceinline__ void add_totals(const PrefillColumns& call, const WeightWindow& window,
                                           const std::int32_t* begins, int count,
                                           std::int64_t position, std::int64_t first,
                                           const typename ColumnScores<T>::Scores& total) {
  using Tiles = ColumnScores<T>;
  std::int64_t place[2];
  TRIPHASE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = Tiles::row(2 * half);
    place[half] = row < count ? begins[row] : -1;
  }
  const std::int64_t shared_place = shuffle(place[0], 0);
  const bool alike =
      (place[0] == shared_place || place[0] < 0) && (place[1] == shared_place || place[1] < 0);
  const bool one_bucket =
      window.entries == nullptr && shared_place >= 0 && ballot(alike) == 0xFFFFFFFFU;
  TRIPHASE_UNROLL
  for (int n = 0; n < Tiles::kKeys / 8; ++n) {
    TRIPHASE_UNROLL
    for (int column = 0; column < 2; ++column) {
      const std::int64_t token = first + Tiles::key(n, column);
      std::int64_t sum = 0;
      TRIPHASE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const std::int64_t query = position + Tiles::row(2 * half);
        if (place[half] < 0 || token > query) continue;
        const float weight = token >= first_seen(call, query) ? total[n][2 * half + column] : 0.0F;
        const std::int64_t units = units_of(weight);
        sum += units;
        if (window.entries != nullptr) {
          window.entries[place_of(window, place[half], token)] = {static_cast<std::int32_t>(token),
                                                                  weight};
        } else if (!one_bucket) {
          add_units(window.buckets + place[half] * window.tokens + token, units);
        }
      }
      for (int step = 4; step < kWarpSize; step *= 2) sum += shuffle_xor(sum, step);
      if (lane_id() >= 4) continue;
      add_units(window.sums + token, sum);
      if (one_bucket) add_units(window.buckets + shared_place * window.tokens + token, sum);
    }
  }
}

// A launch's tiles from the first one on, and where its blocks leave their totals.
struct PromptTiles {
  std::int64_t first = 0;
  float* totals = nullptr;  // [heads' share][tile][a lane's][thread]
};

template <class T>
__device__ inline float* totals_of(const PromptTiles& tiles, unsigned share) {
  constexpr std::int64_t kFloats = std::int64_t{kScoreRows} * ColumnScores<T>::kKeys;
  const std::int64_t block = std::int64_t{share} * gridDim.x + blockIdx.x;
  return tiles.totals + block * kFloats + threadIdx.x;
}

// Block (tile of keys and kScoreRows queries, kPromptShareHeads query heads): the same on tensor
// cores, one head after the other. A short prompt has few tiles, so that a block of all heads
// would leave most multiprocessors idle.
template <class T>
__global__ void __launch_bounds__(kScoreThreads, 4)
    add_prompt_scores_kernel(PrefillColumns common, const WindowPart* parts,
                             std::int64_t part_count, PromptTiles launch) {
  using Tiles = ColumnScores<T>;
  TRIPHASE_DYNAMIC_SHARED(bytes);
  TRIPHASE_SHARED(float, row_log_sums, kScoreRows);
  const std::int64_t block = launch.first + blockIdx.x;
  const WindowPart& part = laid_out_at(parts, part_count, block);
  const PartTile tile(score_part_tiles<T>(), part.rows, block - part.first_tile);
  if (tile.is_dark(part.rows)) return;
  const PrefillColumns call = of_part(common, part.rows);
  const int count = tile.count();
  const float* const row_q = call.q + tile.begin * call.q_stride;
  const float* const row_sums = part.rows.log_sums + tile.begin * call.heads;
  const std::int64_t position = call.first_position + tile.begin;
  const std::int64_t begin = first_seen(call, position);
  const std::int64_t end = call.first_position + tile.end;
  const auto group = static_cast<int>(call.heads / call.kv_heads);
  const int thread = static_cast<int>(threadIdx.x);
  const Tiles tiles(call, bytes);
  const int first_head = static_cast<int>(blockIdx.y) * kPromptShareHeads;
  const int heads = smaller(first_head + kPromptShareHeads, static_cast<int>(call.heads));
  typename Tiles::Scores total = {};
  TRIPHASE_NO_UNROLL
  for (int head = first_head; head < heads; ++head) {
    __syncthreads();
    if (head == first_head || head % group == 0) {
      tiles.load_keys(head / group, tile.first, begin, end);
    }
    tiles.load_rows([&](int i) -> const float* {
      return i < count ? row_q + i * call.q_stride + head * call.head_dim : nullptr;
    });
    if (thread < kScoreRows) {
      row_log_sums[thread] = thread < count ? row_sums[thread * call.heads + head] * kLog2E : 0.0F;
    }
    __syncthreads();
    typename Tiles::Scores score;
    tiles.multiply(score);
    // What a row does not see is left out at the end.
    const float sums[2] = {row_log_sums[Tiles::row(0)], row_log_sums[Tiles::row(2)]};
    TRIPHASE_UNROLL
    for (int n = 0; n < Tiles::kKeys / 8; ++n) {
      TRIPHASE_UNROLL
      for (int j = 0; j < 4; ++j) total[n][j] += exp2_fast(score[n][j] - sums[j / 2]);
    }
  }
  if (gridDim.y == 1) {
    add_totals<T>(call, part.window, part.begins + tile.begin, count, position, tile.first, total);
    return;
  }
  float* own = totals_of<T>(launch, blockIdx.y);
  TRIPHASE_UNROLL
  for (int n = 0; n < Tiles::kKeys / 8; ++n) {
    TRIPHASE_UNROLL
    for (int j = 0; j < 4; ++j) own[(n * 4 + j) * kScoreThreads] = total[n][j];
  }
}

// Block (tile): adds up the shares of the heads, in their order.
template <class T>
__global__ void __launch_bounds__(kScoreThreads)
    sum_prompt_scores_kernel(PrefillColumns common, const WindowPart* parts,
                             std::int64_t part_count, PromptTiles launch, int shares) {
  using Tiles = ColumnScores<T>;
  const std::int64_t block = launch.first + blockIdx.x;
  const WindowPart& part = laid_out_at(parts, part_count, block);
  const PartTile tile(score_part_tiles<T>(), part.rows, block - part.first_tile);
  if (tile.is_dark(part.rows)) return;
  typename Tiles::Scores total = {};
  TRIPHASE_UNROLL_BY(2)
  for (int share = 0; share < shares; ++share) {
    const float* from = totals_of<T>(launch, static_cast<unsigned>(share));
    TRIPHASE_UNROLL
    for (int n = 0; n < Tiles::kKeys / 8; ++n) {
      TRIPHASE_UNROLL
      for (int j = 0; j < 4; ++j) total[n][j] += from[(n * 4 + j) * kScoreThreads];
    }
  }
  add_totals<T>(of_part(common, part.rows), part.window, part.begins + tile.begin, tile.count(),
                part.rows.first_position + tile.begin, tile.first, total);
}

// What a token is ranked by, as on the CPU.
struct WindowScores {
  const std::int64_t* sums;

  __device__ float operator[](int token) const {
    return static_cast<float>(static_cast<double>(sums[token]) / kWeightUnits);
  }
};

// Block (row, layer).
__global__ void __launch_bounds__(kSelectThreads)
    choose_heaviest_kernel(const WindowChoice* rows, std::int32_t* tokens, std::int64_t capacity,
                           std::int32_t* counts) {
  TRIPHASE_SHARED(unsigned, bins, kSelectBins);
  TRIPHASE_SHARED(unsigned, scratch, kBlockReduceWords);
  TRIPHASE_SHARED(unsigned, found, 2);
  const WindowChoice row = rows[blockIdx.x];
  const WindowScores scores{in_layer(row.window.sums, row.window.layer_bytes, blockIdx.y)};
  const auto length = static_cast<int>(row.context);
  const SelectRange range{length, length - static_cast<int>(row.local)};
  const auto total = static_cast<int>(smaller(row.total, row.context));
  const SelectCut cut = find_top_cut(scores, range, total, {bins, scratch, found});
  const std::int64_t list = static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
  SelectedIndices chosen{tokens + list * capacity, capacity};
  const unsigned count = compact_selected(scores, range, cut, scratch, chosen);
  if (threadIdx.x == 0) counts[list] = static_cast<std::int32_t>(count);
}

dim3 grid_of(std::int64_t entries, std::int64_t rows) {
  return {static_cast<unsigned>(ceil_div<std::int64_t>(entries, kThreads)),
          static_cast<unsigned>(rows), 1};
}

}  // namespace

void clear_weights(const WeightWindow* windows, std::int64_t count, std::int64_t most_words,
                   StreamHandle stream) {
  const auto shape = [&] { return shape_text({{"windows", count}, {"most_words", most_words}}); };
  require(windows != nullptr && count >= 0 && count <= kMostGridY && most_words >= 0,
          "clear_weights", "null pointer or too many windows", shape);
  if (count == 0 || most_words == 0) return;
  TRIPHASE_LAUNCH((clear_weights_kernel), grid_of(most_words, count), kThreads, 0, stream, windows);
  check_launched("clear_weights", shape);
}

void add_weights(const WeightRow* rows, std::int64_t count, const std::int32_t* tokens,
                 const ListedScores& scores, std::int64_t most_entering, std::int64_t most_expiring,
                 std::int64_t layer, bool beside, StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"rows", count},
                       {"heads", scores.heads},
                       {"capacity", scores.capacity},
                       {"most_entering", most_entering},
                       {"most_expiring", most_expiring}});
  };
  require(
      rows != nullptr && tokens != nullptr && scores.values != nullptr && scores.softmax != nullptr,
      "add_weights", "null pointer", shape);
  require(scores.heads > 0 && most_entering >= 0 && most_entering <= scores.capacity &&
              most_expiring >= 0,
          "add_weights", "no heads, or more tokens than lists have room for", shape);
  require(count >= 0 && count <= kMostGridY, "add_weights", "too many rows", shape);
  if (count == 0 || larger(most_entering, most_expiring) == 0) return;
  const int slices = slices_of(scores.heads);
  TRIPHASE_LAUNCH((add_weights_kernel),
                  grid_of(larger(most_entering * slices, most_expiring), count), kThreads, 0,
                  LaunchOn(stream, beside), rows, tokens, scores, slices, layer);
  check_launched("add_weights", shape);
}

namespace {

// Calls body<T, on tensor cores>().
template <class Shape, class Body>
void for_scores(const PrefillColumns& call, const Shape& shape, const Body& body) {
  for_cache_type(call.dtype, "add_prompt_rows", shape, [&]<class T>() {
    if constexpr (!std::is_same_v<T, float>) {
      if (column_scores_serve(call)) return body.template operator()<T, true>();
    }
    body.template operator()<T, false>();
  });
}

template <class T, bool kOnTensorCores>
PartTiles part_tiles(const PrefillColumns& call) {
  if constexpr (kOnTensorCores) {
    return score_part_tiles<T>();
  } else {
    return column_part_tiles(call.heads / call.kv_heads);
  }
}

// As many tiles at once as `totals` has room for.
template <class T, class Shape>
void add_prompt_tiles(const PrefillColumns& call, std::int64_t tiles, const WindowPart* parts,
                      std::int64_t part_count, std::span<float> totals, const Shape& shape,
                      StreamHandle stream) {
  using Tiles = ColumnScores<T>;
  const std::int64_t shares = ceil_div<std::int64_t>(call.heads, kPromptShareHeads);
  const std::int64_t room =
      shares == 1 ? tiles
                  : static_cast<std::int64_t>(totals.size()) / (shares * kScoreRows * Tiles::kKeys);
  require(room > 0, "add_prompt_rows", "no room for the heads' totals", shape);
  const std::size_t bytes = Tiles::bytes(call.head_dim);
  allow_shared_bytes(&add_prompt_scores_kernel<T>, bytes, "add_prompt_rows", shape);
  for (PromptTiles launch{0, totals.data()}; launch.first < tiles; launch.first += room) {
    dim3 grid{static_cast<unsigned>(smaller(room, tiles - launch.first)),
              static_cast<unsigned>(shares), 1};
    TRIPHASE_LAUNCH((add_prompt_scores_kernel<T>), grid, kScoreThreads, bytes, stream, call, parts,
                    part_count, launch);
    if (shares == 1) continue;
    grid.y = 1;
    TRIPHASE_LAUNCH((sum_prompt_scores_kernel<T>), grid, kScoreThreads, 0, stream, call, parts,
                    part_count, launch, static_cast<int>(shares));
  }
}

std::string shape_of(const PrefillColumns& call, std::span<const WindowPart> parts) {
  return shape_text({{"parts", static_cast<std::int64_t>(parts.size())},
                     {"heads", call.heads},
                     {"kv_heads", call.kv_heads},
                     {"head_dim", call.head_dim}}) +
         ", cache " + std::string(dtype_name(call.dtype));
}

}  // namespace

void lay_out_tiles(const PrefillColumns& call, std::span<WindowPart> parts) {
  for_scores(
      call, [&] { return shape_of(call, parts); },
      [&]<class T, bool kOnTensorCores>() {
        const PartTiles tiles = part_tiles<T, kOnTensorCores>(call);
        std::int64_t before = 0;
        for (WindowPart& part : parts) {
          part.first_tile = before;
          before += tiles.count(part.rows);
        }
      });
}

void add_prompt_rows(const PrefillColumns& call, std::span<const WindowPart> parts,
                     const WindowPart* sent, std::span<float> totals, StreamHandle stream) {
  const auto shape = [&] { return shape_of(call, parts); };
  for (const WindowPart& part : parts) {
    check_columns(of_part(call, part.rows), "add_prompt_rows");
    const auto shape_of_part = [&] {
      return shape() + ", " +
             shape_text({{"rows", part.rows.queries},
                         {"first_position", part.rows.first_position},
                         {"tokens", part.window.tokens},
                         {"room", part.window.room}});
    };
    require(part.rows.log_sums != nullptr && part.begins != nullptr &&
                part.window.sums != nullptr &&
                (part.window.entries == nullptr) != (part.window.buckets == nullptr),
            "add_prompt_rows", "null pointer", shape_of_part);
    require(part.rows.first_position + part.rows.queries <= part.window.tokens, "add_prompt_rows",
            "a prompt beyond the window's tokens", shape_of_part);
  }
  if (parts.empty()) return;
  require(sent != nullptr, "add_prompt_rows", "null pointer", shape);
  const auto count = static_cast<std::int64_t>(parts.size());
  for_scores(call, shape, [&]<class T, bool kOnTensorCores>() {
    const std::int64_t tiles =
        parts.back().first_tile + part_tiles<T, kOnTensorCores>(call).count(parts.back().rows);
    if (tiles == 0) return;
    if constexpr (kOnTensorCores) {
      add_prompt_tiles<T>(call, tiles, sent, count, totals, shape, stream);
    } else {
      const std::size_t shared = column_tile_bytes(call.head_dim);
      allow_shared_bytes(&add_prompt_rows_kernel<T>, shared, "add_prompt_rows", shape);
      TRIPHASE_LAUNCH((add_prompt_rows_kernel<T>), (dim3{static_cast<unsigned>(tiles), 1, 1}),
                      kColumnThreads, shared, stream, call, sent, count);
    }
  });
  check_launched("add_prompt_rows", shape);
}

void choose_heaviest(const WindowChoice* rows, std::int64_t count, std::int64_t layers,
                     std::int32_t* tokens, std::int64_t capacity, std::int32_t* counts,
                     StreamHandle stream) {
  const auto shape = [&] {
    return shape_text({{"rows", count}, {"layers", layers}, {"capacity", capacity}});
  };
  require(rows != nullptr && tokens != nullptr && counts != nullptr && count >= 0 &&
              count <= INT32_MAX && layers > 0 && layers <= kMostGridY && capacity >= 0,
          "choose_heaviest", "null pointer, or too many rows or layers", shape);
  if (count == 0) return;
  const dim3 grid{static_cast<unsigned>(count), static_cast<unsigned>(layers), 1};
  TRIPHASE_LAUNCH((choose_heaviest_kernel), grid, kSelectThreads, 0, stream, rows, tokens, capacity,
                  counts);
  check_launched("choose_heaviest", shape);
}

}  // namespace triphase::cuda
