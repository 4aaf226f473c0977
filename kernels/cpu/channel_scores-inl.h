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
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
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
      for (std::int64_t v = 0; v < kVectors * kLanes; v += kLine) {
        __builtin_prefetch(ahead + v, 0, 3);
      }
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

// to[head * to_stride + t] = starts[head] + q[head] . column values of token t, t < count.
template <class T>
void score_columns(const Columns<T>& columns, std::int64_t count, const ChannelQuery& query,
                   const float* q, const float* starts, float* to, std::int64_t to_stride) {
  for_row_groups<4>(query.heads, [&]<int kHeads>(std::int64_t head) {
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

// The query's values for one closed INT8 block.
inline void scale_channels(const ChannelQuery& query, const float* lambda, const float* zero) {
  for (std::int64_t head = 0; head < query.heads; ++head) {
    float start = 0.0F;
    for (std::int64_t i = 0; i < query.rank; ++i) {
      const std::int32_t c = query.channels[i];
      const float scaled = query.q[head * query.stride + i] * lambda[c];
      query.scaled[head * query.stride + i] = scaled;
      start -= scaled * zero[c];
    }
    query.starts[head] = start;
  }
}

// Asks for the chosen channels of `tokens` consecutive tokens.
template <class T>
HWY_INLINE void prefetch_columns(const Columns<T>& columns, std::int64_t rank,
                                 std::int64_t tokens) {
  const std::int64_t bytes = tokens * static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = 0; i < rank; ++i) {
    const auto* at = reinterpret_cast<const char*>(columns.column(i));
    for (std::int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(at + byte, 0, 3);
  }
}

// Asks for `bytes` bytes of consecutive rows.
HWY_INLINE void prefetch_rows(const void* rows, std::int64_t bytes) {
  for (std::int64_t byte = 0; byte < bytes; byte += 64) {
    __builtin_prefetch(static_cast<const char*>(rows) + byte, 0, 3);
  }
}

// Blocks [first, end) of a context whose K^T lies side by side; or one block without any.
struct ColumnRun {
  std::int64_t first;
  std::int64_t end;
  bool written;
  KeyColumnPlace place;  // of the first

  [[nodiscard]] std::int64_t blocks() const { return end - first; }
};
inline ColumnRun column_run(const KvLayerView& cache, const AttentionSegment& keys,
                            std::int64_t kv_head, std::int64_t first, std::int64_t end) {
  const PageId page = written_column_page(cache, keys, static_cast<std::size_t>(first));
  if (!page.valid()) return {first, first + 1, false, {}};
  ColumnRun run{first, first + 1, true, key_column_place(cache, page, kv_head)};
  const std::int64_t most = std::min(end, first + run.place.end - page.value);
  while (run.end < most) {
    const PageId next = written_column_page(cache, keys, static_cast<std::size_t>(run.end));
    if (next.value != page.value + (run.end - first)) break;
    ++run.end;
  }
  return run;
}

// Base-2 logits of all tokens of the context's pages [first, end) into to[head * to_stride +
// token]. `Open` is the type of a cache that is not INT8, else of its open pool.
template <class Open>
void score_channels(const KvLayerView& cache, const AttentionSegment& keys, std::int64_t kv_head,
                    const ChannelQuery& query, std::int64_t first, std::int64_t end, float* tile,
                    float* to, std::int64_t to_stride) {
  constexpr std::int64_t kAheadBytes = 8192;
  const std::int64_t page_tokens = cache.page_tokens;
  const std::int64_t dim = cache.head_dim;
  const bool coded = cache.quantized();
  const std::int64_t own = coded ? (keys.context_tokens - 1) / page_tokens : std::int64_t{-1};
  const std::int64_t closed = coded ? std::min(end, own) : end;
  const auto row_of = [&](PageId page) {
    return (page.value * cache.kv_heads + kv_head) * page_tokens * dim;
  };
  const auto scales_of = [&](std::int64_t index) {
    return cache.scales +
           (keys.scale_pages[static_cast<std::size_t>(index)].value * 2 * cache.kv_heads +
            kv_head) *
               2 * dim;
  };
  const auto run = [&]<class T>(const T* k, const T* kt) {
    const auto columns_of = [&](const ColumnRun& blocks, std::int64_t index) {
      return Columns<T>{kt + blocks.place.begin + (index - blocks.first) * page_tokens,
                        query.channels, blocks.place.stride};
    };
    const auto ask_for = [&](const ColumnRun& blocks) {
      if (blocks.written) {
        prefetch_columns(columns_of(blocks, blocks.first), query.rank,
                         blocks.blocks() * page_tokens);
      } else {
        prefetch_rows(k + row_of(keys.pages[static_cast<std::size_t>(blocks.first)]),
                      page_tokens * dim * static_cast<std::int64_t>(sizeof(T)));
      }
      for (std::int64_t index = blocks.first; coded && index < blocks.end; ++index) {
        prefetch_rows(scales_of(index), 2 * dim * static_cast<std::int64_t>(sizeof(float)));
      }
    };
    const auto tokens_to = [&](std::int64_t block) {
      return std::min(block * page_tokens, keys.context_tokens);
    };
    const std::int64_t block_bytes =
        query.rank * page_tokens * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t ahead = std::clamp<std::int64_t>(kAheadBytes / block_bytes, 1, 16);
    std::int64_t asked = first;  // blocks before it have been asked for
    const auto ask_to = [&](std::int64_t block) {
      while (asked < std::min(block, closed)) {
        const ColumnRun next = column_run(cache, keys, kv_head, asked, closed);
        ask_for(next);
        asked = next.end;
      }
    };
    ColumnRun blocks{first, first, false, {}};
    ColumnRun next = blocks;  // known if it begins where `blocks` ends
    while (blocks.end < closed) {
      blocks = next.first == blocks.end && next.blocks() > 0
                   ? next
                   : column_run(cache, keys, kv_head, blocks.end, closed);
      ask_to(blocks.end);
      // INT8: blocks are scored one by one, and their scales are needed as well.
      if (!coded && asked == blocks.end && asked < closed && blocks.blocks() >= ahead) {
        next = column_run(cache, keys, kv_head, asked, closed);
      }
      const bool on_the_way =
          next.first == blocks.end && next.written && next.blocks() == blocks.blocks();
      if (on_the_way) {
        asked = next.end;
      } else {
        ask_to(blocks.end + ahead);
      }
      for (std::int64_t index = blocks.first, until = 0; index < blocks.end; index = until) {
        until = coded ? index + 1 : blocks.end;
        const float* q = query.q;
        const float* starts = nullptr;
        if (coded) {
          const float* lambda = scales_of(index);
          scale_channels(query, lambda, lambda + dim);
          q = query.scaled;
          starts = query.starts;
        }
        const std::int64_t t = index * page_tokens;
        const std::int64_t count = tokens_to(until) - t;
        if (blocks.written) {
          Columns<T> columns = columns_of(blocks, index);
          if (on_the_way) {
            columns.ahead = kt + next.place.begin;
            columns.ahead_stride = next.place.stride;
          }
          score_columns<T>(columns, count, query, q, starts, to + t, to_stride);
        } else {
          score_rows_by_channels(k + row_of(keys.pages[static_cast<std::size_t>(index)]), dim,
                                 count, query, q, starts, tile, to + t, to_stride);
        }
      }
    }
  };
  if (!coded) {
    run(static_cast<const Open*>(cache.k), static_cast<const Open*>(cache.kt));
    return;
  }
  run(static_cast<const U8*>(cache.k), static_cast<const U8*>(cache.kt));
  if (first <= own && own < end) {
    const std::int64_t t = own * page_tokens;
    score_rows_by_channels(static_cast<const Open*>(cache.open_k) + row_of(keys.open_page), dim,
                           keys.context_tokens - t, query, query.q, nullptr, tile, to + t,
                           to_stride);
  }
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
