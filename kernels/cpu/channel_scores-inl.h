// Scores of one KV head's queries over a few channels of every key. Compiled once per SIMD target.
//
// Lanes are tokens and channels follow each other in ascending order, so a token's score is one
// chain of multiply-adds whatever shares the loop and wherever its key was read: from K^T, or from
// rows whose channels are collected into a tile first. INT8 codes are read with their scales folded
// into the query: lambda (code - zero) q = (q lambda) code - (q lambda) zero.

#if defined(TRIPHASE_KERNELS_CPU_CHANNEL_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIPHASE_KERNELS_CPU_CHANNEL_SCORES_INL_H_
#undef TRIPHASE_KERNELS_CPU_CHANNEL_SCORES_INL_H_
#else
#define TRIPHASE_KERNELS_CPU_CHANNEL_SCORES_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/attention_tile-inl.h"
#include "kernels/ops.h"
#include "kernels/sizing/sparse_workspace.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {

// A group's queries over the chosen channels.
struct ChannelQuery {
  const std::int32_t* channels;  // ascending
  std::int64_t rank;
  std::int64_t heads;
  std::int64_t stride;  // from one head's values to the next
  const float* q;
  float* scaled;  // INT8: q times lambda of the block at hand
  float* starts;  // INT8: per head, minus the sum of q lambda zero
};

// Values of the chosen channels: the i-th one of token t is data[c * stride + t], with c =
// channels[i], or c = i where the chosen channels lie side by side.
template <class T>
struct Columns {
  const T* data;
  const std::int32_t* channels;  // null: side by side
  std::int64_t stride;
  // Not null: columns of the tokens that come after these, asked for on the way. Memory answers
  // sooner than to the same requests all at once.
  const T* ahead = nullptr;
  std::int64_t ahead_stride = 0;

  [[nodiscard]] const T* column(std::int64_t i) const {
    return data + (channels == nullptr ? i : channels[i]) * stride;
  }
};

// Scores of `kVectors` vectors of tokens for `kHeads` heads; the last vector holds `last` tokens.
template <int kHeads, int kVectors, class T>
HWY_INLINE void score_vectors(const Columns<T>& columns, std::int64_t t, std::int64_t last,
                              std::int64_t rank, const float* q, std::int64_t q_stride,
                              const float* starts, float* to, std::int64_t to_stride) {
  const DF d;
  VF sums[kHeads][kVectors];
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) {
      sums[h][v] = starts == nullptr ? hn::Zero(d) : hn::Set(d, starts[h]);
    }
  }
  for (std::int64_t i = 0; i < rank; ++i) {
    const T* from = columns.column(i) + t;
    if (columns.ahead != nullptr) {
      const T* ahead = columns.ahead + columns.channels[i] * columns.ahead_stride + t;
      ask_for_lines<1>(ahead, kVectors * kLanes * static_cast<std::int64_t>(sizeof(T)));
    }
    VF keys[kVectors];
    HWY_UNROLL(4)
    for (int v = 0; v < kVectors; ++v) {
      keys[v] = kVectors == 1 ? load_some(from, last) : load(from + v * kLanes);
    }
    HWY_UNROLL(4)
    for (int h = 0; h < kHeads; ++h) {
      const VF in = hn::Set(d, q[h * q_stride + i]);
      HWY_UNROLL(4)
      for (int v = 0; v < kVectors; ++v) sums[h][v] = hn::MulAdd(in, keys[v], sums[h][v]);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kVectors; ++v) {
      store_some(sums[h][v], to + h * to_stride + t + v * kLanes, kVectors == 1 ? last : kLanes);
    }
  }
}

// Adds what `kChannels` channels from the `first`-th on give to the scores of `kHeads` heads.
template <int kHeads, int kChannels, class T>
HWY_INLINE void add_channels(const Columns<T>& columns, std::int64_t first, std::int64_t count,
                             const float* q, std::int64_t q_stride, float* to,
                             std::int64_t to_stride) {
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
  const DF d;
  const T* from[kChannels];
  VF in[kHeads][kChannels];
  for (int i = 0; i < kChannels; ++i) {
    from[i] = columns.column(first + i);
    for (int h = 0; h < kHeads; ++h) in[h][i] = hn::Set(d, q[h * q_stride + first + i]);
  }
  for (std::int64_t t = 0; t < count; t += kLanes) {
    const std::int64_t some = std::min(kLanes, count - t);
    // Into L2: the chosen channels of a long run are more than L1 holds.
    if (columns.ahead != nullptr && t % kLine == 0) {
      for (int i = 0; i < kChannels; ++i) {
        ask_for_lines<2>(columns.ahead + columns.channels[first + i] * columns.ahead_stride + t,
                         64);
      }
    }
    VF sums[kHeads];
    for (int h = 0; h < kHeads; ++h) {
      sums[h] = first == 0 ? hn::Zero(d) : load_some(to + h * to_stride + t, some);
    }
    HWY_UNROLL(4)
    for (int i = 0; i < kChannels; ++i) {
      const VF keys = load_some(from[i] + t, some);
      HWY_UNROLL(4)
      for (int h = 0; h < kHeads; ++h) sums[h] = hn::MulAdd(in[h][i], keys, sums[h]);
    }
    for (int h = 0; h < kHeads; ++h) store_some(sums[h], to + h * to_stride + t, some);
  }
}

// to[head * to_stride + t] = starts[head] + q[head] . column values of token t, t < count.
template <class T>
void score_columns(const Columns<T>& columns, std::int64_t count, const ChannelQuery& query,
                   const float* q, const float* starts, float* to, std::int64_t to_stride) {
  // Bytes of a channel from which on memory brings four channels at a time faster than all of them
  // side by side, which needs no sums in memory.
  constexpr std::int64_t kLongColumn = 1024;
  const bool by_channels =
      starts == nullptr && count * static_cast<std::int64_t>(sizeof(T)) >= kLongColumn;
  for_row_groups<4>(query.heads, [&]<int kHeads>(std::int64_t head) {
    if (by_channels) {
      for_row_groups<4>(query.rank, [&]<int kChannels>(std::int64_t first) {
        add_channels<kHeads, kChannels>(columns, first, count, q + head * query.stride,
                                        query.stride, to + head * to_stride, to_stride);
      });
      return;
    }
    constexpr int kVectors = kHeads > 2 ? 2 : 4;
    const float* rows = q + head * query.stride;
    const float* start = starts == nullptr ? nullptr : starts + head;
    float* at = to + head * to_stride;
    std::int64_t t = 0;
    for (; t + kVectors * kLanes <= count; t += kVectors * kLanes) {
      score_vectors<kHeads, kVectors>(columns, t, kLanes, query.rank, rows, query.stride, start, at,
                                      to_stride);
    }
    if constexpr (kVectors > 2) {
      for (; t + 2 * kLanes <= count; t += 2 * kLanes) {
        score_vectors<kHeads, 2>(columns, t, kLanes, query.rank, rows, query.stride, start, at,
                                 to_stride);
      }
    }
    for (; t < count; t += kLanes) {
      score_vectors<kHeads, 1>(columns, t, std::min(kLanes, count - t), query.rank, rows,
                               query.stride, start, at, to_stride);
    }
  });
}

// The same from rows of `dim` elements.
template <class T>
void score_rows_by_channels(const T* rows, std::int64_t dim, std::int64_t count,
                            const ChannelQuery& query, const float* q, const float* starts,
                            float* tile, float* to, std::int64_t to_stride) {
  auto* collected = reinterpret_cast<T*>(tile);
  for (std::int64_t t = 0; t < count; t += kChannelTile) {
    const std::int64_t some = std::min(kChannelTile, count - t);
    for (std::int64_t j = 0; j < some; ++j) {
      const T* row = rows + (t + j) * dim;
      for (std::int64_t i = 0; i < query.rank; ++i) {
        collected[i * kChannelTile + j] = row[query.channels[i]];
      }
    }
    score_columns<T>({collected, nullptr, kChannelTile}, some, query, q, starts, to + t, to_stride);
  }
}

// The query's values for one full INT8 block.
inline void scale_channels(const ChannelQuery& query, const KvScale* scales) {
  for (std::int64_t head = 0; head < query.heads; ++head) {
    float start = 0.0F;
    for (std::int64_t i = 0; i < query.rank; ++i) {
      const std::int32_t c = query.channels[i];
      const float scaled = query.q[head * query.stride + i] * kv_lambda(scales[c].bits);
      query.scaled[head * query.stride + i] = scaled;
      start -= scaled * kv_zero(scales[c].bits);
    }
    query.starts[head] = start;
  }
}

// Asks for the chosen channels of `tokens` consecutive tokens.
template <class T>
HWY_INLINE void prefetch_columns(const Columns<T>& columns, std::int64_t rank,
                                 std::int64_t tokens) {
  const std::int64_t bytes = tokens * static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = 0; i < rank; ++i) ask_for_lines<1>(columns.column(i), bytes);
}

// Blocks [first, end) of a context whose K^T lies side by side; or one block without any.
struct ColumnRun {
  std::int64_t first;
  std::int64_t end;
  bool written;
  TransposedKPlace place;  // of the first

  [[nodiscard]] std::int64_t blocks() const { return end - first; }
};
inline ColumnRun column_run(const KvLayerView& cache, const AttentionSegment& keys,
                            std::int64_t kv_head, std::int64_t first, std::int64_t end) {
  const PageId page = written_column_page(cache, keys, static_cast<std::size_t>(first));
  if (!page.valid()) return {first, first + 1, false, {}};
  ColumnRun run{first, first + 1, true, transposed_k_place(cache, page, kv_head)};
  const std::int64_t most = std::min(end, first + run.place.end - page.value);
  while (run.end < most) {
    const PageId next = written_column_page(cache, keys, static_cast<std::size_t>(run.end));
    if (next.value != page.value + (run.end - first)) break;
    ++run.end;
  }
  return run;
}

// One KV head's keys of a sequence.
struct HeadKeys {
  const KvLayerView& cache;
  const AttentionSegment& keys;
  std::int64_t kv_head;

  // First element of the head's rows in a page.
  [[nodiscard]] std::int64_t rows_of(PageId page) const {
    return (page.value * cache.kv_heads + kv_head) * cache.page_tokens * cache.head_dim;
  }
  // INT8: of a block, by channel.
  [[nodiscard]] const KvScale* scales_of(std::int64_t block) const {
    const std::int64_t page = keys.scale_pages[static_cast<std::size_t>(block)].value;
    return cache.scales + (page * 2 * cache.kv_heads + kv_head) * cache.head_dim;
  }
};

// Where scores go: token t of head h at to[h * stride + t]. `tile` collects channels of rows.
struct ScoreRows {
  float* to;
  std::int64_t stride;
  float* tile;
};

// Scores blocks [first, end) of a cache of T run by run, and asks memory for those that follow.
// All blocks are full where T is INT8.
template <class T>
class BlockScores {
 public:
  BlockScores(const HeadKeys& head, const ChannelQuery& query, std::int64_t first, std::int64_t end)
      : head_(head),
        query_(query),
        k_(static_cast<const T*>(head.cache.k)),
        kt_(static_cast<const T*>(head.cache.kt)),
        first_(first),
        end_(end),
        asked_(first) {}

  void score(const ScoreRows& rows) {
    constexpr std::int64_t kAheadBytes = 8192;
    const std::int64_t block_bytes =
        query_.rank * head_.cache.page_tokens * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t ahead = std::clamp<std::int64_t>(kAheadBytes / block_bytes, 1, 16);
    ColumnRun blocks{first_, first_, false, {}};
    ColumnRun next = blocks;  // known if it begins where `blocks` ends
    while (blocks.end < end_) {
      blocks = next.first == blocks.end && next.blocks() > 0 ? next : run_at(blocks.end);
      ask_to(blocks.end);
      // INT8: blocks are scored one by one, and their scales are needed as well.
      if (!kCoded && asked_ == blocks.end && asked_ < end_ && blocks.blocks() >= ahead) {
        next = run_at(asked_);
      }
      const bool on_the_way =
          next.first == blocks.end && next.written && next.blocks() == blocks.blocks();
      if (on_the_way) {
        asked_ = next.end;
      } else {
        ask_to(blocks.end + ahead);
      }
      score_run(blocks, on_the_way ? &next : nullptr, rows);
    }
  }

 private:
  static constexpr bool kCoded = sizeof(T) == 1;

  [[nodiscard]] ColumnRun run_at(std::int64_t block) const {
    return column_run(head_.cache, head_.keys, head_.kv_head, block, end_);
  }
  [[nodiscard]] const T* rows_of(std::int64_t block) const {
    return k_ + head_.rows_of(head_.keys.pages[static_cast<std::size_t>(block)]);
  }
  [[nodiscard]] Columns<T> columns_of(const ColumnRun& blocks, std::int64_t block) const {
    return {kt_ + blocks.place.begin + (block - blocks.first) * head_.cache.page_tokens,
            query_.channels, blocks.place.stride};
  }

  // Asks for the blocks before `block` that were not asked for yet.
  void ask_to(std::int64_t block) {
    while (asked_ < std::min(block, end_)) {
      const ColumnRun next = run_at(asked_);
      ask_for(next);
      asked_ = next.end;
    }
  }
  void ask_for(const ColumnRun& blocks) const {
    const std::int64_t page_tokens = head_.cache.page_tokens;
    const std::int64_t dim = head_.cache.head_dim;
    if (blocks.written) {
      prefetch_columns(columns_of(blocks, blocks.first), query_.rank,
                       blocks.blocks() * page_tokens);
    } else {
      ask_for_lines<1>(rows_of(blocks.first),
                       page_tokens * dim * static_cast<std::int64_t>(sizeof(T)));
    }
    for (std::int64_t block = blocks.first; kCoded && block < blocks.end; ++block) {
      ask_for_lines<1>(head_.scales_of(block), dim * static_cast<std::int64_t>(sizeof(KvScale)));
    }
  }

  // `next`: the run after, where it is asked for on the way; else null.
  void score_run(const ColumnRun& blocks, const ColumnRun* next, const ScoreRows& rows) const {
    const std::int64_t page_tokens = head_.cache.page_tokens;
    const std::int64_t dim = head_.cache.head_dim;
    for (std::int64_t block = blocks.first, until = 0; block < blocks.end; block = until) {
      until = kCoded ? block + 1 : blocks.end;
      const float* q = query_.q;
      const float* starts = nullptr;
      if constexpr (kCoded) {
        scale_channels(query_, head_.scales_of(block));
        q = query_.scaled;
        starts = query_.starts;
      }
      const std::int64_t t = block * page_tokens;
      const std::int64_t count = std::min(until * page_tokens, head_.keys.context_tokens) - t;
      if (blocks.written) {
        Columns<T> columns = columns_of(blocks, block);
        if (next != nullptr) {
          columns.ahead = kt_ + next->place.begin;
          columns.ahead_stride = next->place.stride;
        }
        score_columns<T>(columns, count, query_, q, starts, rows.to + t, rows.stride);
      } else {
        score_rows_by_channels(rows_of(block), dim, count, query_, q, starts, rows.tile,
                               rows.to + t, rows.stride);
      }
    }
  }

  const HeadKeys& head_;
  const ChannelQuery& query_;
  const T* k_;
  const T* kt_;
  std::int64_t first_;
  std::int64_t end_;
  std::int64_t asked_;  // blocks before it have been asked for
};

// Base-2 logits of all tokens of the context's pages [first, end). `Partial` is the type of a cache
// that is not INT8, else of its partial pages.
template <class Partial>
void score_channels(const HeadKeys& head, const ChannelQuery& query, std::int64_t first,
                    std::int64_t end, const ScoreRows& rows) {
  const KvLayerView& cache = head.cache;
  const AttentionSegment& keys = head.keys;
  if (!cache.quantized()) {
    BlockScores<Partial>(head, query, first, end).score(rows);
    return;
  }
  const std::int64_t own = (keys.context_tokens - 1) / cache.page_tokens;
  BlockScores<U8>(head, query, first, std::min(end, own)).score(rows);
  if (first <= own && own < end) {
    const std::int64_t t = own * cache.page_tokens;
    const Partial* partial =
        static_cast<const Partial*>(cache.partial_k) + head.rows_of(keys.partial_page);
    score_rows_by_channels(partial, cache.head_dim, keys.context_tokens - t, query, query.q,
                           nullptr, rows.tile, rows.to + t, rows.stride);
  }
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
