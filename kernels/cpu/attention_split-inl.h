// One split of the context for a block of query rows: over F32, F16 and BF16 caches, INT8 caches
// and selected tokens. Compiled once per SIMD target.
//
// INT8 blocks are read as codes. x = lambda * (code - zero) per channel, so the scales move out of
// the loops over tokens: a score is (q * lambda) . code minus sum(q * lambda * zero), one constant
// per block, and a block adds lambda * (sum(p * code) - zero * sum(p)) to the output. Blocks of
// many rows turn a tile's codes into F32 once, which is exact, and then do the same arithmetic.

#if defined(TRIPHASE_KERNELS_CPU_ATTENTION_SPLIT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIPHASE_KERNELS_CPU_ATTENTION_SPLIT_INL_H_
#undef TRIPHASE_KERNELS_CPU_ATTENTION_SPLIT_INL_H_
#else
#define TRIPHASE_KERNELS_CPU_ATTENTION_SPLIT_INL_H_
#endif

#include "kernels/cpu/activation-inl.h"
#include "kernels/cpu/attention_columns-inl.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {

// Blocks of more rows than this convert a tile to F32 once for all their rows.
constexpr std::int64_t kConvertRows = 8;

// Tokens [first, end) of a tile as F32 rows of `stride`, zeros after the last column.
template <class T>
void convert_tokens(const Tokens<T>& tokens, std::int64_t first, std::int64_t end,
                    std::int64_t stride, float* to) {
  for (std::int64_t j = first; j < end; ++j) {
    for_columns(tokens.dim, [&](std::int64_t c, std::int64_t count) {
      hn::Store(load_some(tokens.row(j) + c, count), DF(), to + j * stride + c);
    });
  }
}

// Where the rows of a converted tile lie; tokens outside [first, end) read the nearest inside.
inline void find_converted(std::int64_t first, std::int64_t end, std::int64_t stride,
                           std::int64_t* to) {
  for (std::int64_t j = 0; j < kTile; ++j) to[j] = std::clamp(j, first, end - 1) * stride;
}

// Scores of tokens [lo, hi) of a tile for all rows of a block, from rows `q`.
template <class T, class Next>
void score_part(const Call& call, const Block& block, const float* q, std::int64_t lo,
                std::int64_t hi, const Tokens<T>& k, const Next& ahead, float* scores) {
  const std::int64_t stride = call.layout.padded_dim;
  const std::int64_t groups = ceil_div(block.rows, kScoreRows);
  for_row_groups<kScoreRows>(block.rows, [&]<int kRows>(std::int64_t row) {
    score_rows<kRows>(q + row * stride, stride, k, lo / 4 * 4, round_up(hi, 4),
                      ahead.share(row / kScoreRows, groups), scores + row * kTile);
  });
}

// Caps all scores of a row in a tile, whether the query sees the token or not.
inline void cap_scores(float cap, float* scores) {
  const SoftCap capped{cap};
  for (std::int64_t j = 0; j < kTile; j += kLanes) {
    hn::Store(capped(hn::Load(DF(), scores + j)), DF(), scores + j);
  }
}

// Scores of a tile become weights; the rows' earlier outputs are scaled to the new maximum.
inline void soften_tile(const Call& call, const Block& block, const Scratch& scratch,
                        std::int64_t tile) {
  const std::int64_t stride = call.layout.padded_dim;
  const std::int64_t heads = block.heads;
  for (std::int64_t query = 0; query < block.queries; ++query) {
    const Seen seen = seen_by(block, query, tile, 0, kTile);
    if (seen.first >= seen.end) continue;
    for (std::int64_t row = query * heads; row < (query + 1) * heads; ++row) {
      float* scores = scratch.scores + row * kTile;
      if (call.scale.cap > 0.0F) cap_scores(call.scale.cap * kLog2E, scores);
      std::fill(scores, scores + seen.first, kMinusInfinity);
      std::fill(scores + seen.end, scores + kTile, kMinusInfinity);
      const float decay = softmax_tile(scores, scratch.split.top[row], scratch.split.total[row]);
      if (decay == 1.0F) continue;
      float* out = scratch.split.out + row * stride;
      const VF factor = hn::Set(DF(), decay);
      for (std::int64_t c = 0; c < stride; c += kLanes) {
        hn::Store(hn::Mul(hn::Load(DF(), out + c), factor), DF(), out + c);
      }
    }
  }
}

// Adds the weighted values of a tile's tokens [from, to) to `out`. Queries that see the same
// tokens share the loads.
template <class T, class Next>
void weigh_part(const Call& call, const Block& block, const Scratch& scratch, std::int64_t tile,
                std::int64_t from, std::int64_t to, const Tokens<T>& v, const Next& ahead,
                float* out) {
  const std::int64_t stride = call.layout.padded_dim;
  const std::int64_t heads = block.heads;
  const std::int64_t groups = ceil_div(block.rows, kValueRows);
  for (std::int64_t query = 0; query < block.queries;) {
    const Seen seen = seen_by(block, query, tile, from, to);
    std::int64_t same = query + 1;
    while (same < block.queries) {
      const Seen next = seen_by(block, same, tile, from, to);
      if (next.first != seen.first || next.end != seen.end) break;
      ++same;
    }
    if (seen.first < seen.end) {
      for_row_groups<kValueRows>((same - query) * heads, [&]<int kRows>(std::int64_t at) {
        const std::int64_t row = query * heads + at;
        weigh_rows<kRows>(scratch.scores + row * kTile, v, seen.first, seen.end,
                          ahead.share(row / kValueRows, groups), out + row * stride, stride);
      });
    }
    query = same;
  }
}

// Keeps the scores of tokens [lo, hi) of a tile where they are asked for.
inline void keep_scores(const Block& block, const float* scores, std::int64_t tile, std::int64_t lo,
                        std::int64_t hi) {
  if (block.scores.values == nullptr) return;
  const std::int64_t capacity = block.segment->chosen->capacity;
  for (std::int64_t row = 0; row < block.rows; ++row) {
    std::copy(scores + row * kTile + lo, scores + row * kTile + hi,
              block.scores.values + row * capacity + tile + lo);
  }
}

// What follows the scores of a tile of one kind of token, for all rows of a block. While its values
// are weighed, what is `ahead` is asked for.
template <class T, class Next>
void attend_scored(const Call& call, const Block& block, const Scratch& scratch, std::int64_t tile,
                   std::int64_t lo, std::int64_t hi, const Tokens<T>& v, const Next& ahead) {
  keep_scores(block, scratch.scores, tile, lo, hi);
  soften_tile(call, block, scratch, tile);
  weigh_part(call, block, scratch, tile, 0, kTile, v, ahead, scratch.split.out);
}

// Calls body(tile, lo, hi) for every tile of one split that the block's rows look into, with the
// places of the tile's tokens in at[0, kTile) and the next tile's, for prefetching, behind them.
template <class Body>
void for_tiles(const Call& call, const Block& block, std::int64_t split, std::int64_t* at,
               const Body& body) {
  const std::int64_t begin = std::max(block.begin(0), split * kAttentionSplit);
  const std::int64_t last = block.end(block.queries - 1);
  const std::int64_t end = std::min(last, (split + 1) * kAttentionSplit);
  std::int64_t tile = begin / kTile * kTile;
  if (tile < end) find_tokens(call.cache, block, tile, begin, last, at);
  for (; tile < end; tile += kTile) {
    // Of the next split, too: who attends it is most likely the same thread.
    if (tile + kTile < last) {
      find_tokens(call.cache, block, tile + kTile, begin, last, at + kTile);
    } else {
      std::fill_n(at + kTile, kTile, at[0]);
    }
    body(tile, std::max(tile, begin) - tile, std::min(tile + kTile, end) - tile);
    std::copy_n(at + kTile, kTile, at);
  }
}

// The partial results of `block` over one split, into scratch.split; caches of F32, F16 and BF16.
template <class T>
void attend_split(const Call& call, const Block& block, const Scratch& scratch,
                  std::int64_t split) {
  const std::int64_t dim = call.cache.head_dim;
  const std::int64_t stride = call.layout.padded_dim;
  const std::int64_t width = round_up(dim, kLanes);
  const bool convert = block.rows > kConvertRows && !std::is_same_v<T, F32>;
  std::int64_t at[2 * kTile];
  std::int64_t converted_at[kTile];
  const Tokens<T> k{static_cast<const T*>(call.cache.k), at, dim};
  const Tokens<T> v{static_cast<const T*>(call.cache.v), at, dim};
  const Ahead<T> values(v);
  const Ahead<T> keys(Tokens<T>{k.data, at + kTile, dim});
  for_tiles(call, block, split, at, [&](std::int64_t tile, std::int64_t lo, std::int64_t hi) {
    if (convert) find_converted(lo, hi, stride, converted_at);
    const bool scored =
        scored_by_column(call, block, scratch.q, tile, lo, hi, k, scratch.k_tile, scratch.scores);
    if (!scored && convert) {
      convert_tokens(k, lo, hi, stride, scratch.k_tile);
      score_part(call, block, scratch.q, lo, hi, Tokens<float>{scratch.k_tile, converted_at, width},
                 NothingAhead(), scratch.scores);
    } else if (!scored) {
      score_part(call, block, scratch.q, lo, hi, k, values, scratch.scores);
    }
    if (convert) {
      convert_tokens(v, lo, hi, stride, scratch.v_tile);
      attend_scored(call, block, scratch, tile, lo, hi,
                    Tokens<float>{scratch.v_tile, converted_at, width}, NothingAhead());
    } else {
      attend_scored(call, block, scratch, tile, lo, hi, v, keys);
    }
  });
}

// The tokens of a tile that lie in one block; positions within the tile. Of a list those that it
// has.
struct BlockPart {
  std::int64_t page_index;
  std::int64_t from;  // of the block
  std::int64_t to;
  std::int64_t lo;  // of what any row sees
  std::int64_t hi;
};
template <class Body>
void for_parts(std::int64_t page_tokens, const Block& block, std::int64_t tile, std::int64_t lo,
               std::int64_t hi, const Body& body) {
  if (block.selected()) {
    const std::int32_t* tokens = block.list.tokens.data() + tile;
    for (std::int64_t from = lo, to = lo; from < hi; from = to) {
      const std::int64_t index = tokens[from] / static_cast<std::int32_t>(page_tokens);
      while (to < hi && tokens[to] < (index + 1) * page_tokens) ++to;
      body(BlockPart{index, from, to, from, to});
    }
    return;
  }
  for (std::int64_t index = (tile + lo) / page_tokens; index * page_tokens < tile + hi; ++index) {
    const std::int64_t from = std::max<std::int64_t>(index * page_tokens - tile, 0);
    const std::int64_t to = std::min((index + 1) * page_tokens - tile, kTile);
    body(BlockPart{index, from, to, std::max(from, lo), std::min(to, hi)});
  }
}

// Where a part's tokens lie, from `at` of its tile. Scores are made four at a time: the tokens
// beside the part, which may lie in another buffer, get the place of the nearest inside.
inline void find_part(const BlockPart& part, const std::int64_t* at, std::int64_t* to) {
  for (std::int64_t j = part.lo / 4 * 4; j < round_up(part.hi, 4); ++j) {
    to[j] = at[std::clamp(j, part.lo, part.hi - 1)];
  }
}

// What of the scratch is a block's from its row `row` on.
inline Scratch from_row(const Call& call, Scratch scratch, std::int64_t row) {
  const std::int64_t at = row * call.layout.padded_dim;
  scratch.q += at;
  scratch.split = {scratch.split.out + at, scratch.split.top + row, scratch.split.total + row};
  scratch.scaled_q += at;
  scratch.constants += row;
  scratch.codes_out += at;
  scratch.part_scores += row * kTile;
  scratch.scores += row * kTile;
  return scratch;
}

// Calls body(block, scratch, elements) for each KV head of a block as a block of its own;
// `elements`: from the first head's of a page to its own.
template <class Body>
void for_heads(const Call& call, const Block& block, const Scratch& scratch, const Body& body) {
  Block one = block;
  one.kv_heads = 1;
  one.heads /= block.kv_heads;
  one.rows /= block.kv_heads;
  for (std::int64_t head = 0; head < block.kv_heads; ++head, ++one.kv_head) {
    body(one, from_row(call, scratch, head * one.rows),
         head * call.cache.page_tokens * call.cache.head_dim);
  }
}

// attend_split for one query under several KV heads that have one query head each. A page's keys of
// all heads follow each other in memory, and so do its values. In that order the processor's own
// prefetcher brings them, faster than lines that are asked for one by one (docs/performance.md).
template <class T>
void attend_heads(const Call& call, const Block& block, const Scratch& scratch,
                  std::int64_t split) {
  const KvLayerView& cache = call.cache;
  const std::int64_t dim = cache.head_dim;
  const std::int64_t stride = call.layout.padded_dim;
  std::int64_t at[2 * kTile];
  const auto* k = static_cast<const T*>(cache.k);
  const auto* v = static_cast<const T*>(cache.v);
  for_tiles(call, block, split, at, [&](std::int64_t tile, std::int64_t lo, std::int64_t hi) {
    for_parts(cache.page_tokens, block, tile, lo, hi, [&](const BlockPart& part) {
      for_heads(call, block, scratch, [&](const Block&, const Scratch& rows, std::int64_t head) {
        score_rows<1>(rows.q, stride, Tokens<T>{k + head, at, dim}, part.lo / 4 * 4,
                      round_up(part.hi, 4), NothingAhead(), rows.scores);
      });
    });
    soften_tile(call, block, scratch, tile);
    for_parts(cache.page_tokens, block, tile, lo, hi, [&](const BlockPart& part) {
      for_heads(call, block, scratch, [&](const Block&, const Scratch& rows, std::int64_t head) {
        weigh_rows<1>(rows.scores, Tokens<T>{v + head, at, dim}, part.lo, part.hi, NothingAhead(),
                      rows.split.out, stride);
      });
    });
  });
}

// Those of one head's keys (`value` 0) or values (1) of a full block, by channel.
inline const KvScale* scales_of(const Call& call, const Block& block, std::int64_t page_index,
                                std::int64_t value) {
  const std::int64_t page = block.segment->scale_pages[static_cast<std::size_t>(page_index)].value;
  return call.cache.scales +
         ((page * 2 + value) * call.cache.kv_heads + block.kv_head) * call.cache.head_dim;
}

// Asks for the scales of the blocks that tokens [first, end) of a list lie in, beyond block
// `asked`; returns the last of them. Those of contexts without lists come without (measured).
inline std::int64_t ask_for_scales(const Call& call, const Block& block, std::int64_t first,
                                   std::int64_t end, std::int64_t asked) {
  const std::int64_t bytes = call.cache.head_dim * static_cast<std::int64_t>(sizeof(KvScale));
  const auto blocks = std::ssize(block.segment->scale_pages);
  const auto page_tokens = static_cast<std::int32_t>(call.cache.page_tokens);
  end = std::min(end, std::ssize(block.list.tokens));
  for (; first < end; ++first) {
    const std::int64_t index = block.list.tokens[static_cast<std::size_t>(first)] / page_tokens;
    if (index <= asked || index >= blocks) continue;
    asked = index;
    for (const std::int64_t value : {0, 1}) {
      ask_for_lines<2>(scales_of(call, block, index, value), bytes);
    }
  }
  return asked;
}

// scaled_q and constants for one full block.
inline void scale_queries(const Call& call, const Block& block, const Scratch& scratch,
                          const KvScale* scales) {
  const DF d;
  const std::int64_t stride = call.layout.padded_dim;
  for (std::int64_t row = 0; row < block.rows; ++row) {
    VF sum = hn::Zero(d);
    for_columns(call.cache.head_dim, [&](std::int64_t c, std::int64_t count) {
      const VU32 own = load_scales(scales + c, count);
      const VF scaled = hn::Mul(hn::Load(d, scratch.q + row * stride + c), lambdas_of(own));
      hn::Store(scaled, d, scratch.scaled_q + row * stride + c);
      sum = hn::MulAdd(scaled, zeros_of(own), sum);
    });
    scratch.constants[row] = sum_lanes(sum);
  }
}

// Takes the scores of a block's part from where they were made, less the rows' constants.
inline void take_scores(const Block& block, const Scratch& scratch, const BlockPart& part) {
  for (std::int64_t row = 0; row < block.rows; ++row) {
    const float constant = scratch.constants[row];
    const float* from = scratch.part_scores + row * kTile;
    float* to = scratch.scores + row * kTile;
    for (std::int64_t j = part.lo; j < part.hi; ++j) to[j] = from[j] - constant;
  }
}

// Adds the weighted values of a full block's part, from its codes.
template <class T, class Next>
void weigh_codes(const Call& call, const Block& block, const Scratch& scratch, std::int64_t tile,
                 const BlockPart& part, const Tokens<T>& v, const KvScale* scales,
                 const Next& ahead) {
  const DF d;
  const std::int64_t stride = call.layout.padded_dim;
  std::fill_n(scratch.codes_out, block.rows * stride, 0.0F);
  weigh_part(call, block, scratch, tile, part.from, part.to, v, ahead, scratch.codes_out);
  for (std::int64_t row = 0; row < block.rows; ++row) {
    const Seen seen = seen_by(block, row / block.heads, tile, part.from, part.to);
    if (seen.first >= seen.end) continue;
    const float* weights = scratch.scores + row * kTile;
    VF sum = hn::Zero(d);
    for_columns(part.to - part.from, [&](std::int64_t j, std::int64_t count) {
      sum = hn::Add(sum, load_some(weights + part.from + j, count));
    });
    const VF total = hn::Set(d, sum_lanes(sum));
    const float* codes = scratch.codes_out + row * stride;
    float* out = scratch.split.out + row * stride;
    for_columns(call.cache.head_dim, [&](std::int64_t c, std::int64_t count) {
      const VU32 own = load_scales(scales + c, count);
      const VF centred = hn::NegMulAdd(zeros_of(own), total, hn::Load(d, codes + c));
      hn::Store(hn::MulAdd(lambdas_of(own), centred, hn::Load(d, out + c)), d, out + c);
    });
  }
}

// attend_split over an INT8 cache whose partial pages hold `Partial`. One query's KV heads may be
// attended page by page, as in attend_heads. kAsks: not where that leaves one row to each head,
// whose loads the processor's own prefetcher follows.
template <class Partial, bool kAsks>
void attend_split_int8(const Call& call, const Block& block, const Scratch& scratch,
                       std::int64_t split) {
  const KvLayerView& cache = call.cache;
  const std::int64_t dim = cache.head_dim;
  const std::int64_t stride = call.layout.padded_dim;
  const bool convert = block.rows / block.kv_heads > kConvertRows;
  const std::int64_t own = (block.segment->context_tokens - 1) / cache.page_tokens;
  std::int64_t at[2 * kTile];
  std::int64_t part_at[kTile];
  std::int64_t converted_at[kTile];
  const auto* k_codes = static_cast<const U8*>(cache.k);
  const auto* v_codes = static_cast<const U8*>(cache.v);
  const auto* k_partial = static_cast<const Partial*>(cache.partial_k);
  const auto* v_partial = static_cast<const Partial*>(cache.partial_v);
  const std::int64_t width = round_up(dim, kLanes);
  const NothingAhead none;
  const auto with_tokens = [&](const auto& tokens, const BlockPart& part, const auto& next,
                               float* to, const auto& body) {
    if (convert) {
      convert_tokens(tokens, part.lo, part.hi, stride, to);
      body(Tokens<float>{to, converted_at, width}, none);
    } else {
      body(tokens, next);
    }
  };
  const auto score = [&](const Block& one, const Scratch& rows, const float* q, std::int64_t tile,
                         const BlockPart& part, const auto& keys, const auto& next) {
    if (!scored_by_column(call, one, q, tile, part.lo, part.hi, keys, scratch.k_tile,
                          rows.part_scores)) {
      with_tokens(keys, part, next, scratch.k_tile, [&](const auto& k, const auto& ahead) {
        score_part(call, one, q, part.lo, part.hi, k, ahead, rows.part_scores);
      });
    }
    take_scores(one, rows, part);
  };
  // Codes alone are asked for: the own block's tokens are few, and were written of late.
  const auto ahead = [&](const U8* codes, const std::int64_t* places) {
    if constexpr (kAsks) {
      return Ahead<U8>(Tokens<U8>{codes, places, dim});
    } else {
      return NothingAhead();
    }
  };
  std::int64_t scaled = -1;  // the block that scaled_q is for
  std::int64_t asked = -1;   // the block of a list whose scales were asked for last
  for_tiles(call, block, split, at, [&](std::int64_t tile, std::int64_t lo, std::int64_t hi) {
    if (convert) find_converted(lo, hi, stride, converted_at);
    for_parts(cache.page_tokens, block, tile, lo, hi, [&](const BlockPart& part) {
      const std::int64_t* places = at;
      if (block.selected()) {
        find_part(part, at, part_at);
        places = part_at;
        asked = ask_for_scales(call, block, tile + kTile + part.lo, tile + kTile + part.hi, asked);
      }
      for_heads(call, block, scratch,
                [&](const Block& one, const Scratch& rows, std::int64_t head) {
                  if (part.page_index == own) {
                    std::fill_n(rows.constants, one.rows, 0.0F);
                    score(one, rows, rows.q, tile, part,
                          Tokens<Partial>{k_partial + head, places, dim}, none);
                    return;
                  }
                  if (scaled != part.page_index) {
                    scale_queries(call, one, rows, scales_of(call, one, part.page_index, 0));
                  }
                  score(one, rows, rows.scaled_q, tile, part,
                        Tokens<U8>{k_codes + head, places, dim}, ahead(v_codes + head, at));
                });
      scaled = part.page_index;
    });
    keep_scores(block, scratch.scores, tile, lo, hi);
    soften_tile(call, block, scratch, tile);
    for_parts(cache.page_tokens, block, tile, lo, hi, [&](const BlockPart& part) {
      for_heads(call, block, scratch,
                [&](const Block& one, const Scratch& rows, std::int64_t head) {
                  if (part.page_index == own) {
                    with_tokens(Tokens<Partial>{v_partial + head, at, dim}, part, none,
                                scratch.v_tile, [&](const auto& v, const auto& next) {
                                  weigh_part(call, one, rows, tile, part.from, part.to, v, next,
                                             rows.split.out);
                                });
                    return;
                  }
                  with_tokens(Tokens<U8>{v_codes + head, at, dim}, part,
                              ahead(k_codes + head, at + kTile), scratch.v_tile,
                              [&](const auto& v, const auto& next) {
                                weigh_codes(call, one, rows, tile, part, v,
                                            scales_of(call, one, part.page_index, 1), next);
                              });
                });
    });
  });
}

// One code row as lambda * (code - zero).
inline void dequantize_row(const U8* codes, const KvScale* scales, std::int64_t dim, float* to) {
  for_columns(dim, [&](std::int64_t c, std::int64_t count) {
    const VU32 own = load_scales(scales + c, count);
    const VF whole = hn::Sub(load_some(codes + c, count), zeros_of(own));
    hn::Store(hn::Mul(lambdas_of(own), whole), DF(), to + c);
  });
}

// Whether a list is long enough for attend_split_int8: what is done there once for a block and row
// takes as long as dequantizing two tokens for all rows (measured). Not of lists that a prompt's
// queries share, so that results do not depend on how the prompt is cut.
inline bool many_of_a_block(const Call& call, const Block& block) {
  const auto tokens = std::ssize(block.list.tokens);
  const std::int64_t worth = 2 * block.heads + 3;
  return block.segment->chosen->all_from < 0 &&
         tokens * call.cache.page_tokens >= worth * block.segment->context_tokens;
}

// attend_split over selected tokens of an INT8 cache of which few share a block: they are
// dequantized one by one, for all rows.
template <class Partial>
void attend_selected_int8(const Call& call, const Block& block, const Scratch& scratch,
                          std::int64_t split) {
  constexpr std::int64_t kAhead = 8;
  const KvLayerView& cache = call.cache;
  const std::int64_t dim = cache.head_dim;
  const std::int64_t stride = call.layout.padded_dim;
  const std::int64_t width = round_up(dim, kLanes);
  const std::int64_t own = (block.segment->context_tokens - 1) / cache.page_tokens;
  const auto page_tokens = static_cast<std::int32_t>(cache.page_tokens);
  std::int64_t asked = -1;  // the block whose scales were asked for last
  std::int64_t at[2 * kTile];
  std::int64_t converted_at[kTile];
  const Tokens<U8> k{static_cast<const U8*>(cache.k), at, dim};
  const Tokens<U8> v{static_cast<const U8*>(cache.v), at, dim};
  const Ahead<U8> keys(k);
  const Ahead<U8> values(v);
  const Tokens<Partial> k_partial{static_cast<const Partial*>(cache.partial_k), at, dim};
  const Tokens<Partial> v_partial{static_cast<const Partial*>(cache.partial_v), at, dim};
  for_tiles(call, block, split, at, [&](std::int64_t tile, std::int64_t lo, std::int64_t hi) {
    for (std::int64_t j = lo; j < hi; ++j) {
      keys.ask(j + kAhead);
      values.ask(j + kAhead);
      k.ask_near(j);
      v.ask_near(j);
      asked = ask_for_scales(call, block, tile + j + kAhead, tile + j + kAhead + 1, asked);
      const std::int64_t index =
          block.list.tokens[static_cast<std::size_t>(tile + j)] / page_tokens;
      if (index == own) {
        convert_tokens(k_partial, j, j + 1, stride, scratch.k_tile);
        convert_tokens(v_partial, j, j + 1, stride, scratch.v_tile);
        continue;
      }
      dequantize_row(k.row(j), scales_of(call, block, index, 0), dim, scratch.k_tile + j * stride);
      dequantize_row(v.row(j), scales_of(call, block, index, 1), dim, scratch.v_tile + j * stride);
    }
    find_converted(lo, hi, stride, converted_at);
    score_part(call, block, scratch.q, lo, hi, Tokens<float>{scratch.k_tile, converted_at, width},
               NothingAhead(), scratch.scores);
    attend_scored(call, block, scratch, tile, lo, hi,
                  Tokens<float>{scratch.v_tile, converted_at, width}, NothingAhead());
  });
}

inline void attend_split_of_type(const Call& call, const Block& block, const Scratch& scratch,
                                 std::int64_t split) {
  reset(call, block, scratch.split);
  const KvLayerView& cache = call.cache;
  with_type(cache.quantized() ? cache.partial_dtype : cache.dtype, [&]<class T>() {
    if (!cache.quantized()) {
      if (block.kv_heads > 1) {
        attend_heads<T>(call, block, scratch, split);
      } else {
        attend_split<T>(call, block, scratch, split);
      }
    } else if (block.selected() && !many_of_a_block(call, block)) {
      attend_selected_int8<T>(call, block, scratch, split);
    } else if (block.kv_heads > 1 && block.heads == block.kv_heads) {
      attend_split_int8<T, false>(call, block, scratch, split);
    } else {
      attend_split_int8<T, true>(call, block, scratch, split);
    }
  });
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
