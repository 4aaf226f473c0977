#pragma once

// A warp's rows of prefill_attention: their softmax, their outputs, and where these go. The kernels
// of 16-bit caches and of INT8 caches differ in how scores and weighted sums are made. Included by
// kernels only.

#include <cmath>

#include "kernels/cuda/attention_sink.h"
#include "kernels/cuda/paged_work.h"
#include "kernels/cuda/prefill_attention.h"
#include "kernels/cuda/soft_cap.h"

namespace triphase::cuda {

// The first and last token that a row sees; a row beyond the block's sees none.
struct PrefillSeen {
  int begin;
  int last;
};
// The first token of the pages that a row sees; `kListed`: of those behind a list.
template <bool kListed>
__device__ __forceinline__ std::int64_t seen_from(const PagedAttention& call, const PagedWork& work,
                                                  int row) {
  if constexpr (kListed) return call.listed.all_from;
  return work.begin(row);
}
template <int kRows, int kThreads, bool kListed>
__device__ inline void find_seen(const PagedAttention& call, const PagedWork& work,
                                 PrefillSeen* seen) {
  for (int row = static_cast<int>(threadIdx.x); row < kRows; row += kThreads) {
    seen[row] = row < work.rows ? PrefillSeen{static_cast<int>(seen_from<kListed>(call, work, row)),
                                              static_cast<int>(work.position(row))}
                                : PrefillSeen{0, -1};
  }
}

// Row within a pair of 8 x 8 tiles one below the other, and column of the tile to the right, for
// the addresses of load_matrices: tiles go down first, then right, or the other way round.
__device__ inline int tile_down() { return lane_id() / 8 % 2 * 8 + lane_id() % 8; }
__device__ inline int tile_right() { return lane_id() / 16 * 8; }

// kRowTiles tiles of 16 rows; this lane has two rows of each: lane / 4, and 8 further down. In the
// products' terms (dialect.h) scores and outputs are C: two columns of each row in a tile of 8.
// kTileSums: the kernel wants the sums of each tile's weights.
template <int kDim, int kRowTiles, bool kTileSums>
class PrefillRows {
 public:
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kOutputTiles = kDim / 8;
  template <int kKeys>
  using Scores = float[kRowTiles][kKeys / 8][4];

  // `seen`: of the block's rows, written by find_seen. `listed_from`: ListedTokens::all_from, or 0.
  __device__ PrefillRows(const PagedWork& work, const PrefillSeen* seen, int listed_from)
      : seen_(seen), first_row_(uniform_warp_id() * kWarpRows) {
    const int rows = smaller(work.rows, first_row_ + kWarpRows);
    last_ = first_row_ + kWarpRows <= work.rows ? static_cast<int>(work.position(first_row_)) : -1;
    begin_ = rows > first_row_ ? larger(listed_from, static_cast<int>(work.begin(rows - 1))) : 0;
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kRowTiles; ++tile) top_[tile][0] = top_[tile][1] = -INFINITY;
  }

  // First row of this warp, and a row of this lane: of the block.
  __device__ int first_row() const { return first_row_; }
  __device__ int row(int tile, int half) const {
    return first_row_ + 16 * tile + 8 * half + lane_id() / 4;
  }

  // Scores are capped where the call has a soft cap: before any is masked.
  template <int kKeys>
  __device__ __forceinline__ void cap(const PagedAttention& call, Scores<kKeys>& score) const {
    if (call.cap == 0.0F) return;
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kRowTiles; ++tile) {
      TRIPHASE_UNROLL
      for (int keys = 0; keys < kKeys / 8; ++keys) {
        TRIPHASE_UNROLL
        for (int i = 0; i < 4; ++i) {
          score[tile][keys][i] = soft_capped(score[tile][keys][i], call.cap, call.inverse_cap);
        }
      }
    }
  }

  // Scores of tokens that a row does not see become -inf. The tile's tokens start at `first`; those
  // from `end` on do not count.
  template <int kKeys>
  __device__ __forceinline__ void mask(int first, int end, Scores<kKeys>& score) const {
    // Nearly all tiles lie before every row's end and behind every row's begin.
    if (first + kKeys <= end && first + kKeys - 1 <= last_ && first >= begin_) return;
    mask_each<kKeys>(first, end, score);
  }

  // The same of a tile of listed tokens, of which `count` are there.
  template <int kKeys>
  __device__ __forceinline__ void mask_listed(int count, Scores<kKeys>& score) const {
    if (count >= kKeys) return;
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kRowTiles; ++tile) {
      TRIPHASE_UNROLL
      for (int keys = 0; keys < kKeys / 8; ++keys) {
        TRIPHASE_UNROLL
        for (int i = 0; i < 4; ++i) {
          if (keys * 8 + lane_id() % 4 * 2 + i % 2 >= count) score[tile][keys][i] = -INFINITY;
        }
      }
    }
  }

  // Turns scores into weights relative to the rows' new maxima, and adds up their sums. `added`:
  // with kTileSums, this tile's.
  template <int kKeys>
  __device__ __forceinline__ void weigh(Scores<kKeys>& score, float (&added)[kRowTiles][2]) {
    float before[kRowTiles][2];
    float top[kRowTiles][2];
    const bool rises = find_tops<kKeys>(score, before, top);
    if (ballot(rises) != 0) rescale(before, top);
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kRowTiles; ++tile) {
      TRIPHASE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float sum = weigh_row<kKeys>(tile, half, top[tile][half], score);
        if constexpr (kTileSums) {
          sum = warp_sum(sum, 4);
          added[tile][half] = sum;
        }
        if (keeps_sum(tile, half)) kept_sum(tile, half) += sum;
      }
    }
  }

  // The same where outputs are on their way: they are touched after wait_for_outputs() alone.
  template <int kKeys, class Wait>
  __device__ __forceinline__ void weigh_beside(Scores<kKeys>& score, const Wait& wait_for_outputs) {
    static_assert(!kTileSums);
    float before[kRowTiles][2];
    float top[kRowTiles][2];
    float sum[kRowTiles][2];
    const bool rises = find_tops<kKeys>(score, before, top);
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kRowTiles; ++tile) {
      TRIPHASE_UNROLL
      for (int half = 0; half < 2; ++half) {
        sum[tile][half] = weigh_row<kKeys>(tile, half, top[tile][half], score);
      }
    }
    wait_for_outputs();
    if (ballot(rises) != 0) rescale(before, top);
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kRowTiles; ++tile) {
      TRIPHASE_UNROLL
      for (int half = 0; half < 2; ++half) kept_sum(tile, half) += sum[tile][half];
    }
  }

  // Multiplies what the outputs hold so far.
  __device__ __forceinline__ void scale_outputs(float factor) {
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kRowTiles; ++tile) {
      TRIPHASE_UNROLL
      for (int columns = 0; columns < kOutputTiles; ++columns) {
        TRIPHASE_UNROLL
        for (int i = 0; i < 4; ++i) output[tile][columns][i] *= factor;
      }
    }
  }

  // Writes the rows: finished ones to `out` and `log_sums`, or those of one of several splits to
  // the partial results. column(columns, i): the channel of output[...][columns][i].
  template <int kRows, class Column>
  __device__ __forceinline__ void store(const PagedAttention& call, const PagedWork& work,
                                        const Column& column) {
    const int dim = static_cast<int>(call.head_dim);
    const int splits = static_cast<int>(gridDim.z);
    float* partial = splits > 1 ? paged_partial<kRows>(call, blockIdx.z, splits) : nullptr;
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kRowTiles; ++tile) {
      TRIPHASE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float sum = kept_sum(tile, half);
        if constexpr (kTileSums) {
          sum = shuffle(sum, lane_id() / 4 * 4 + 2 * tile + half);
        } else {
          sum = warp_sum(sum, 4);
        }
        const int at = row(tile, half);
        if (at >= work.rows) continue;
        const std::int64_t query = work.segment.query_begin + work.query(at);
        const std::int64_t head = work.head * work.group + at % work.group;
        if (partial == nullptr) sum = with_sink(call.sinks, head, top_[tile][half], sum);
        float* to = partial != nullptr ? partial + at * dim
                                       : call.out + query * call.out_stride + head * dim;
        const float divisor = partial != nullptr || !(sum > 0.0F) ? 1.0F : sum;
        TRIPHASE_UNROLL
        for (int columns = 0; columns < kOutputTiles; ++columns) {
          TRIPHASE_UNROLL
          for (int i = 0; i < 2; ++i) {
            const int c = column(columns, i);
            if (c < dim) to[c] = output[tile][columns][2 * half + i] / divisor;
          }
        }
        if (lane_id() % 4 != 0) continue;
        if (partial != nullptr) {
          partial[kRows * dim + at] = top_[tile][half];
          partial[kRows * (dim + 1) + at] = sum;
        } else if (call.log_sums != nullptr) {
          call.log_sums[query * call.heads + head] = natural_log_sum(top_[tile][half], sum);
        }
      }
    }
  }

  // The weighted sums of values, which the kernels add to.
  float output[kRowTiles][kOutputTiles][4] = {};

 private:
  // A lane keeps its shares of its rows' sums. With kTileSums, where registers are short, each of
  // the four lanes that share rows keeps the sum of another one.
  __device__ static bool keeps_sum(int tile, int half) {
    return !kTileSums || lane_id() % 4 == 2 * tile + half;
  }
  __device__ float& kept_sum(int tile, int half) { return sum_[kTileSums ? 0 : 2 * tile + half]; }

  template <int kKeys>
  __device__ __forceinline__ void mask_each(int first, int end, Scores<kKeys>& score) const {
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kRowTiles; ++tile) {
      TRIPHASE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const PrefillSeen seen = seen_[row(tile, half)];
        TRIPHASE_UNROLL
        for (int keys = 0; keys < kKeys / 8; ++keys) {
          TRIPHASE_UNROLL
          for (int i = 0; i < 2; ++i) {
            const int token = first + keys * 8 + lane_id() % 4 * 2 + i;
            if (token >= end || token > seen.last || token < seen.begin) {
              score[tile][keys][2 * half + i] = -INFINITY;
            }
          }
        }
      }
    }
  }

  // The rows' maxima before and with this tile; whether one of this lane's rises.
  template <int kKeys>
  __device__ __forceinline__ bool find_tops(const Scores<kKeys>& score,
                                            float (&before)[kRowTiles][2],
                                            float (&top)[kRowTiles][2]) const {
    bool rises = false;
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kRowTiles; ++tile) {
      TRIPHASE_UNROLL
      for (int half = 0; half < 2; ++half) {
        before[tile][half] = top_[tile][half];
        float most = before[tile][half];
        TRIPHASE_UNROLL
        for (int keys = 0; keys < kKeys / 8; ++keys) {
          const float pair = largest(score[tile][keys][2 * half], score[tile][keys][2 * half + 1]);
          // With two tiles' sums registers are short: an instruction less here spills in the loop.
          most = kTileSums && kRowTiles > 1 ? larger(most, pair) : largest(most, pair);
        }
        top[tile][half] = warp_max(most, 4);
        rises = rises || top[tile][half] > before[tile][half];
      }
    }
    return rises;
  }

  // Turns one of this lane's rows' scores into weights. Returns their sum.
  template <int kKeys>
  __device__ __forceinline__ float weigh_row(int tile, int half, float top,
                                             Scores<kKeys>& score) const {
    // A row that has seen nothing yet keeps weights of 0, not exp of (inf - inf).
    const float base = top == -INFINITY ? 0.0F : top;
    float sum = 0.0F;
    TRIPHASE_UNROLL
    for (int keys = 0; keys < kKeys / 8; ++keys) {
      TRIPHASE_UNROLL
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        score[tile][keys][i] = exp2_fast(score[tile][keys][i] - base);
        sum += score[tile][keys][i];
      }
    }
    return sum;
  }

  __device__ __forceinline__ void rescale(const float (&before)[kRowTiles][2],
                                          const float (&top)[kRowTiles][2]) {
    TRIPHASE_UNROLL
    for (int tile = 0; tile < kRowTiles; ++tile) {
      TRIPHASE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float base = top[tile][half] == -INFINITY ? 0.0F : top[tile][half];
        const float factor = exp2_fast(before[tile][half] - base);
        top_[tile][half] = top[tile][half];
        if (keeps_sum(tile, half)) kept_sum(tile, half) *= factor;
        TRIPHASE_UNROLL
        for (int columns = 0; columns < kOutputTiles; ++columns) {
          output[tile][columns][2 * half] *= factor;
          output[tile][columns][2 * half + 1] *= factor;
        }
      }
    }
  }

  const PrefillSeen* seen_;
  int first_row_;
  int last_;   // that all of the warp's rows see
  int begin_;  // from which on all of them see
  float top_[kRowTiles][2];
  float sum_[kTileSums ? 1 : 2 * kRowTiles] = {};
};

// What this split, blockIdx.z's, has of what any row of the block sees: listed tokens, which all
// rows see, and tokens of pages. Both begin with whole tiles of `keys`.
struct PrefillRange {
  int begin;
  int end;
  int list_begin;
  int list_end;

  __device__ int list_tiles(int keys) const {
    return (larger(0, list_end - list_begin) + keys - 1) / keys;
  }
};
// `split_tokens`: of a split, a multiple of `keys`; with kListed 0: a block's splits have as many.
template <bool kListed>
__device__ inline PrefillRange prefill_range(const PagedAttention& call, const PagedWork& work,
                                             std::int64_t split_tokens, int keys) {
  const std::int64_t pages_end = work.position(work.rows - 1) + 1;
  if constexpr (!kListed) {
    const std::int64_t begin = static_cast<std::int64_t>(blockIdx.z) * split_tokens;
    return {static_cast<int>(larger(begin, work.begin(0) / keys * keys)),
            static_cast<int>(smaller(begin + split_tokens, pages_end)), 0, 0};
  }
  // Tiles of the list, then those of the pages.
  const int listed = call.listed.counts[work.head];
  const int in_list = (listed + keys - 1) / keys * keys;
  const int pages_begin = static_cast<int>(call.listed.all_from) / keys * keys;
  const int all = in_list + static_cast<int>(pages_end) - pages_begin;
  const int tiles = (all + keys - 1) / keys;
  const int splits = static_cast<int>(gridDim.z);
  const int own =
      split_tokens > 0 ? static_cast<int>(split_tokens) : (tiles + splits - 1) / splits * keys;
  const int begin = static_cast<int>(blockIdx.z) * own;
  const int end = smaller(begin + own, all);
  return {pages_begin + larger(0, begin - in_list), pages_begin + larger(0, end - in_list),
          smaller(begin, in_list), smaller(end, listed)};
}

// Four channels of a row's query, zeros beyond the block's rows and head_dim.
__device__ inline uint4 prefill_query(const PagedAttention& call, const PagedWork& work, int row,
                                      int c) {
  if (row >= work.rows || c >= static_cast<int>(call.head_dim)) return make_uint4(0U, 0U, 0U, 0U);
  const std::int64_t at = (work.segment.query_begin + work.query(row)) * call.q_stride +
                          (work.head * work.group + row % work.group) * call.head_dim + c;
  return load16(call.q + at);
}

// Calls store(row, c, values) for every four channels of the block's queries, in the units of
// scores. Several loads are under way at once: nothing else hides their latency.
template <int kRows, int kDim, int kThreads, class Store>
__device__ __forceinline__ void load_prefill_queries(const PagedAttention& call,
                                                     const PagedWork& work, const Store& store) {
  constexpr int kPieces = kDim / 4;
  constexpr int kLines = kThreads / kPieces;  // rows of a round
  constexpr int kTogether = 8;
  static_assert(kThreads % kPieces == 0 && kRows % (kLines * kTogether) == 0);
  const int line = static_cast<int>(threadIdx.x) / kPieces;
  const int c = static_cast<int>(threadIdx.x) % kPieces * 4;
  const float factor = call.scale * kLog2E;
  TRIPHASE_NO_UNROLL
  for (int first = line; first < kRows; first += kLines * kTogether) {
    uint4 loaded[kTogether];
    TRIPHASE_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      loaded[i] = prefill_query(call, work, first + i * kLines, c);
    }
    TRIPHASE_UNROLL
    for (int i = 0; i < kTogether; ++i) {
      const float values[4] = {bits_float(loaded[i].x) * factor, bits_float(loaded[i].y) * factor,
                               bits_float(loaded[i].z) * factor, bits_float(loaded[i].w) * factor};
      store(first + i * kLines, c, values);
    }
  }
}

// Where a block's tokens lie. 32 tokens that start at a multiple of 32 lie in one page.
class PrefillPages {
 public:
  static constexpr int kTokens = 32;

  __device__ PrefillPages(const PagedAttention& call, const PagedWork& work, std::int64_t seen_from)
      : pages_(call.pages + work.segment.pages_begin),
        scale_pages_(call.scale_pages == nullptr ? nullptr
                                                 : call.scale_pages + work.segment.pages_begin),
        kv_heads_(static_cast<int>(call.kv_heads)),
        head_(work.head),
        dim_(static_cast<int>(call.head_dim)),
        seen_from_(static_cast<int>(seen_from)) {
    while ((std::int64_t{1} << shift_) < call.page_tokens) ++shift_;
  }

  // Whether the block looks at a token. Pages before its window may be gone.
  __device__ bool sees(int token, int end) const { return token >= seen_from_ && token < end; }
  // Elements before the token's first one in the pool, for a token that is looked at; kDim: of a
  // token, where it is known.
  template <int kDim = 0>
  __device__ std::int64_t place(int token) const {
    return place<kDim>(pages_[token >> shift_], token);
  }
  template <int kDim = 0>
  __device__ std::int64_t place(int page, int token) const {
    return (((static_cast<std::int64_t>(page) * kv_heads_ + head_) << shift_) +
            (token & ((1 << shift_) - 1))) *
           (kDim > 0 ? kDim : dim_);
  }
  // Scales of K (which = 0) or V (1) in the token's block: [head_dim].
  __device__ std::int64_t scales(int token, int which) const {
    const std::int64_t page = scale_pages_[token >> shift_];
    return ((page * 2 + which) * kv_heads_ + head_) * dim_;
  }
  __device__ int dim() const { return dim_; }

 private:
  const std::int32_t* pages_;
  const std::int32_t* scale_pages_;
  int kv_heads_;
  int head_;
  int dim_;
  int seen_from_;
  int shift_ = 0;
};

// Where a tile's elements lie in shared memory: tokens side by side, kPitch apart.
template <int kPitch>
struct PitchedTile {
  __device__ __forceinline__ static int at(int token, int channel) {
    return token * kPitch + channel;
  }
};

// K or V: where tokens come from, and a tile in shared memory.
template <class E>
struct PrefillTile {
  const void* from;
  E* to;
};

// How a block's threads copy tiles of K and V: elements E, laid out as Place has it, `kChunk` bytes
// at once. Tokens that the block does not look at, and channels from head_dim on, become zeros.
// kTogether: so many tokens from a multiple of it on lie in one page.
template <class E, int kDim, int kKeys, class Place, int kThreads, int kChunk,
          int kTogether = PrefillPages::kTokens>
struct PrefillCopy {
  static constexpr int kElements = kChunk / static_cast<int>(sizeof(E));
  static constexpr int kChunks = kDim / kElements;
  static constexpr int kLines = kThreads / kChunks;  // that all threads copy in a round
  static constexpr int kPiece = kKeys < kTogether ? kKeys : kTogether;
  static_assert(kThreads % kChunks == 0 && kPiece % kLines == 0);

  // Starts to copy the tokens [first, first + kKeys) of each.
  template <int kCount>
  __device__ __forceinline__ static void copy(const PrefillPages& pages, int first, int end,
                                              const PrefillTile<E> (&tiles)[kCount]) {
    if (is_whole(pages, first, end)) {
      copy_whole(pages, first, tiles);
    } else {
      copy_ragged(pages, first, end, tiles);
    }
  }

  // Nearly all tiles are: they are copied with constant offsets and no questions.
  __device__ __forceinline__ static bool is_whole(const PrefillPages& pages, int first, int end) {
    return pages.dim() == kDim && pages.sees(first, end) && first + kKeys <= end;
  }
  template <int kCount>
  __device__ __forceinline__ static void copy_whole(const PrefillPages& pages, int first,
                                                    const PrefillTile<E> (&tiles)[kCount]) {
    TRIPHASE_UNROLL
    for (int piece = 0; piece < kKeys; piece += kPiece) {
      const std::int64_t at = pages.place<kDim>(first + piece + line()) + column();
      TRIPHASE_UNROLL
      for (int round = 0; round < kPiece; round += kLines) {
        const int to = Place::at(piece + round + line(), column());
        TRIPHASE_UNROLL
        for (int i = 0; i < kCount; ++i) {
          start(tiles[i].to + to, static_cast<const E*>(tiles[i].from) + at + round * kDim, true);
        }
      }
    }
  }

  template <int kCount>
  __device__ __forceinline__ static void copy_ragged(const PrefillPages& pages, int first, int end,
                                                     const PrefillTile<E> (&tiles)[kCount]) {
    TRIPHASE_NO_UNROLL
    for (int at = line(); at < kKeys; at += kLines) {
      const bool valid = column() < pages.dim() && pages.sees(first + at, end);
      const std::int64_t from = valid ? pages.place(first + at) + column() : 0;
      const int to = Place::at(at, column());
      TRIPHASE_UNROLL
      for (int i = 0; i < kCount; ++i) {
        start(tiles[i].to + to, static_cast<const E*>(tiles[i].from) + from, valid);
      }
    }
  }

  // As copy(), of the listed tokens [first, first + kKeys) of a KV head.
  __device__ __forceinline__ static void copy_listed(const ListedTokens& listed, int head, int dim,
                                                     int first, int end, E* k_tile, E* v_tile) {
    TRIPHASE_UNROLL_BY(2)
    for (int at = line(); at < kKeys; at += kLines) {
      const bool valid = column() < dim && first + at < end;
      const std::int64_t row = head * listed.room + (valid ? first + at : 0);
      const std::int64_t from = row * dim + (valid ? column() : 0);
      const int to = Place::at(at, column());
      start(k_tile + to, static_cast<const E*>(listed.k) + from, valid);
      start(v_tile + to, static_cast<const E*>(listed.v) + from, valid);
    }
  }

 private:
  __device__ static int column() { return static_cast<int>(threadIdx.x) % kChunks * kElements; }
  __device__ static int line() { return static_cast<int>(threadIdx.x) / kChunks; }

  __device__ __forceinline__ static void start(E* to, const E* from, bool valid) {
    if constexpr (kChunk == 16) {
      copy_async16(to, from, valid);
    } else {
      copy_async8(to, from, valid);
    }
  }
};

// prefill_attention of a 16-bit cache with heads of up to 128 channels and no list, by warpgroup
// products; checked by the caller.
void prefill_warpgroups(const PagedAttention& call, dim3 grid, std::int64_t split_tokens,
                        StreamHandle stream);

// prefill_attention of an INT8 cache, checked by the caller. The second one, by warpgroup products,
// takes pages of 64 tokens or more, heads of up to 128 channels and no list.
void prefill_codes(const PagedAttention& call, dim3 grid, std::int64_t split_tokens,
                   StreamHandle stream);
void prefill_code_warpgroups(const PagedAttention& call, dim3 grid, std::int64_t split_tokens,
                             StreamHandle stream);

}  // namespace triphase::cuda
