// What attention's work is cut into: blocks of query rows, their scratch, and where the tokens of a
// tile lie. Compiled once per SIMD target.

#if defined(TRIPHASE_KERNELS_CPU_ATTENTION_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIPHASE_KERNELS_CPU_ATTENTION_BLOCK_INL_H_
#undef TRIPHASE_KERNELS_CPU_ATTENTION_BLOCK_INL_H_
#else
#define TRIPHASE_KERNELS_CPU_ATTENTION_BLOCK_INL_H_
#endif

#include <algorithm>
#include <span>

#include "base/rounding.h"
#include "kernels/cpu/attention_tile-inl.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ops.h"
#include "kernels/sizing/attention_workspace.h"

HWY_BEFORE_NAMESPACE();
namespace triphase::cpu::HWY_NAMESPACE {

struct SegmentTasks {
  std::int64_t segment;
  std::int64_t first_task;
};

struct Call : AttentionCall {
  AttentionLayout layout;
  SegmentTasks* table = nullptr;
  std::int64_t table_size = 0;
  float* thread_scratch = nullptr;
  float* partials = nullptr;
  std::int64_t decoded_heads = 1;  // KV heads of one task where a segment has one query
  std::int64_t block_queries = 0;  // of one task

  [[nodiscard]] std::int64_t group() const { return heads / cache.kv_heads; }
};

// The chosen tokens of one KV head.
struct TokenList {
  std::span<const std::int32_t> tokens;
  const std::int32_t* slots;  // null: their pages say where they lie
};
inline TokenList list_of(const AttentionSegment& segment, std::int64_t kv_head) {
  const Selection& chosen = *segment.chosen;
  const std::int64_t index = chosen.lists == 1 ? 0 : kv_head;
  const std::int64_t entry = segment.chosen_row * chosen.lists + index;
  const std::int64_t first = entry * chosen.capacity;
  return {listed_tokens(segment, entry), chosen.slots == nullptr ? nullptr : chosen.slots + first};
}

// One block of queries under one KV head, of all its query heads, or one query under several KV
// heads. Where tokens were chosen, "tokens" are ordinals of its list.
struct Block {
  const AttentionSegment* segment;
  TokenList list;        // where tokens were chosen
  std::int64_t kv_head;  // the first
  std::int64_t kv_heads;
  std::int64_t first_head;  // of `heads` query heads
  std::int64_t heads;
  std::int64_t first_query;
  std::int64_t queries;
  std::int64_t rows;      // queries times heads, query-major
  AttendedScores scores;  // where those of the block's heads go

  [[nodiscard]] bool selected() const { return segment->chosen != nullptr; }
  // First and one past the last token that query `i` of the block sees.
  [[nodiscard]] std::int64_t begin(std::int64_t i) const {
    const std::int64_t window = selected() ? 0 : segment->window;
    return window > 0 ? std::max<std::int64_t>(0, end(i) - window) : 0;
  }
  [[nodiscard]] std::int64_t end(std::int64_t i) const {
    const std::int64_t seen = std::max<std::int64_t>(
        0, segment->context_tokens - segment->query_count + first_query + i + 1);
    if (!selected()) return seen;
    if (seen == segment->context_tokens) return std::ssize(list.tokens);
    return std::lower_bound(list.tokens.begin(), list.tokens.end(), seen) - list.tokens.begin();
  }
};

// Running results of a block's rows.
struct State {
  float* out;    // [rows, padded_dim]
  float* top;    // maximum of the base-2 logits
  float* total;  // sum of weights
};

struct Scratch {
  float* q;
  State split;
  State merged;
  float* scaled_q;     // INT8: q times the scales of a block's keys
  float* constants;    // INT8: per row, what the zero points add to every score of the block
  float* codes_out;    // INT8: a block's weighted sum of codes, [rows, padded_dim]
  float* part_scores;  // INT8: scores of a block's tokens, and of a few beside them
  float* scores;
  float* k_tile;
  float* v_tile;
};

inline State take_state(float*& at, std::int64_t rows, std::int64_t padded_dim) {
  const std::int64_t row_values = round_up(rows, 16);
  const State state{at, at + rows * padded_dim, at + rows * padded_dim + row_values};
  at = state.total + row_values;
  return state;
}

inline Scratch scratch_of(const Call& call, int worker) {
  const AttentionLayout& layout = call.layout;
  float* at = call.thread_scratch + worker * layout.thread_floats;
  const auto take = [&at](std::int64_t floats) {
    float* taken = at;
    at += floats;
    return taken;
  };
  Scratch scratch{};
  scratch.q = take(layout.block_rows * layout.padded_dim);
  scratch.split = take_state(at, layout.block_rows, layout.padded_dim);
  scratch.merged = take_state(at, layout.block_rows, layout.padded_dim);
  scratch.scaled_q = take(layout.block_rows * layout.padded_dim);
  scratch.constants = take(round_up(layout.block_rows, 16));
  scratch.codes_out = take(layout.block_rows * layout.padded_dim);
  scratch.part_scores = take(layout.block_rows * kTile);
  scratch.scores = take(layout.block_rows * kTile);
  scratch.k_tile = take(kTile * layout.padded_dim);
  scratch.v_tile = take(kTile * layout.padded_dim);
  return scratch;
}

inline std::int64_t blocks_of(const Call& call, const AttentionSegment& segment) {
  return ceil_div(segment.query_count, call.block_queries);
}

// KV heads of one task of a segment.
inline std::int64_t task_heads(const Call& call, const AttentionSegment& segment) {
  return segment.query_count == 1 && segment.chosen == nullptr ? call.decoded_heads : 1;
}
inline std::int64_t tasks_of(const Call& call, const AttentionSegment& segment) {
  const std::int64_t heads = task_heads(call, segment);
  return ceil_div(call.cache.kv_heads, heads) * blocks_of(call, segment);
}

inline Block block_of(const Call& call, std::int64_t task) {
  const SegmentTasks* entry = std::upper_bound(call.table, call.table + call.table_size, task,
                                               [](std::int64_t value, const SegmentTasks& at) {
                                                 return value < at.first_task;
                                               }) -
                              1;
  const AttentionSegment& segment = call.segments[static_cast<std::size_t>(entry->segment)];
  const std::int64_t blocks = blocks_of(call, segment);
  const std::int64_t local = task - entry->first_task;
  Block block{};
  block.segment = &segment;
  const std::int64_t heads = task_heads(call, segment);
  block.kv_head = local / blocks * heads;
  block.kv_heads = std::min(heads, call.cache.kv_heads - block.kv_head);
  block.heads = block.kv_heads * call.group();
  block.first_head = block.kv_head * call.group();
  block.first_query = local % blocks * call.block_queries;
  block.queries = std::min(call.block_queries, segment.query_count - block.first_query);
  block.rows = block.queries * block.heads;
  if (!block.selected()) return block;
  block.list = list_of(segment, block.kv_head);
  const Selection& chosen = *segment.chosen;
  if (chosen.scores.values == nullptr) return block;
  const std::int64_t head = segment.chosen_row * call.heads + block.first_head;
  block.scores = {chosen.scores.values + head * chosen.capacity, chosen.scores.softmax + 2 * head};
  return block;
}

// q times scale and log2 e, so that scores are base-2 logits; zeros up to padded_dim.
inline void load_queries(const Call& call, const Block& block, float* to) {
  const std::int64_t dim = call.cache.head_dim;
  const VF factor = hn::Set(DF(), call.scale.factor * kLog2E);
  for (std::int64_t row = 0; row < block.rows; ++row) {
    const std::int64_t query = block.segment->query_begin + block.first_query + row / block.heads;
    const std::int64_t head = block.first_head + row % block.heads;
    const float* from =
        static_cast<const float*>(call.q.data) + query * call.q.row_stride + head * dim;
    float* at = to + row * call.layout.padded_dim;
    for_columns(dim, [&](std::int64_t c, std::int64_t count) {
      hn::Store(hn::Mul(load_some(from + c, count), factor), DF(), at + c);
    });
    for (std::int64_t c = round_up(dim, kLanes); c < call.layout.padded_dim; ++c) at[c] = 0.0F;
  }
}

inline void reset(const Call& call, const Block& block, const State& state) {
  std::fill_n(state.out, block.rows * call.layout.padded_dim, 0.0F);
  std::fill_n(state.top, block.rows, kMinusInfinity);
  std::fill_n(state.total, block.rows, 0.0F);
}

// Element offset of a slot's row under `head`, in K and V alike.
inline std::int64_t row_offset(const KvLayerView& cache, std::int64_t head, std::int64_t page,
                               std::int64_t offset) {
  if (cache.records) {
    return ((page * cache.page_tokens + offset) * cache.kv_heads + head) * 2 * cache.head_dim;
  }
  return ((page * cache.kv_heads + head) * cache.page_tokens + offset) * cache.head_dim;
}

// Where the tokens of a tile lie, as element offsets into K and V alike. Tokens outside
// [begin, end) get the place of the nearest inside, to be read (and ignored) without touching
// memory that holds no token. INT8: the tokens of the query's own block lie in the partial pages.
inline void find_tokens(const KvLayerView& cache, const Block& block, std::int64_t tile,
                        std::int64_t begin, std::int64_t end, std::int64_t* to) {
  const std::int64_t lo = std::max(tile, begin);
  const std::int64_t hi = std::min(tile + kTile, end);
  if (block.selected()) {
    // 32-bit: a 64-bit division takes several times as long.
    const auto page_tokens = static_cast<std::uint32_t>(cache.page_tokens);
    const AttentionSegment& segment = *block.segment;
    const std::int64_t own_block = (segment.context_tokens - 1) / cache.page_tokens;
    const std::int64_t own = cache.quantized() ? own_block * cache.page_tokens : INT64_MAX;
    for (std::int64_t token = lo; token < hi; ++token) {
      const std::int32_t position = block.list.tokens[static_cast<std::size_t>(token)];
      const bool has_slot = block.list.slots != nullptr && position < own;
      const auto at = static_cast<std::uint32_t>(has_slot ? block.list.slots[token] : position);
      const std::uint32_t page = at / page_tokens;
      const std::int64_t of_page = has_slot          ? page
                                   : position >= own ? segment.partial_page.value
                                                     : segment.pages[page].value;
      to[token - tile] = row_offset(cache, block.kv_head, of_page, at % page_tokens);
    }
  } else {
    const std::int64_t own =
        cache.quantized() ? (block.segment->context_tokens - 1) / cache.page_tokens : -1;
    const std::int64_t step = cache.records ? 2 * cache.kv_heads * cache.head_dim : cache.head_dim;
    std::int64_t page_index = lo / cache.page_tokens;
    std::int64_t offset = lo % cache.page_tokens;
    for (std::int64_t token = lo; token < hi; ++page_index, offset = 0) {
      const std::int64_t page =
          page_index == own ? block.segment->partial_page.value
                            : block.segment->pages[static_cast<std::size_t>(page_index)].value;
      const std::int64_t run = std::min(hi - token, cache.page_tokens - offset);
      const std::int64_t at = row_offset(cache, block.kv_head, page, offset);
      for (std::int64_t i = 0; i < run; ++i) to[token - tile + i] = at + i * step;
      token += run;
    }
  }
  std::fill(to, to + (lo - tile), to[lo - tile]);
  std::fill(to + (hi - tile), to + kTile, to[hi - 1 - tile]);
}

// What query `query` sees of a tile, within its tokens [from, to).
struct Seen {
  std::int64_t first;
  std::int64_t end;
};
inline Seen seen_by(const Block& block, std::int64_t query, std::int64_t tile, std::int64_t from,
                    std::int64_t to) {
  return {std::clamp<std::int64_t>(block.begin(query) - tile, from, to),
          std::clamp<std::int64_t>(block.end(query) - tile, from, to)};
}

}  // namespace triphase::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
