#pragma once

// SEAM 2: the arithmetic of one decoder step. Implementations: kernels/cpu, kernels/cuda; float64
// references for tests: kernels/reference.
//
// Rules for every operation
//   - Activations are F32 row-major matrices, but for attended_type(); weights and KV keep their
//     stored type. Accumulation is F32. Row strides count
//     elements; columns beyond `cols` are never read or written (tests poison them with NaN).
//   - A row's result is bit-identical whatever other rows the call holds, in whatever order, and
//     however many threads run. So every reduction runs in an order fixed by the row alone: tiles
//     and splits are cut at absolute positions.
//   - No allocation in a call: scratch comes from the Workspace, sized by kernels/sizing.
//   - Inputs and outputs must not overlap except where a comment says "may alias".
//   - Sizes and types are checked; a mismatch throws an internal error naming the operation.
//   - `stream` is last; on the CPU the work is done when the call returns.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/activation.h"
#include "base/device.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/ids.h"
#include "kernels/kv_scale.h"
#include "kernels/layer_memory.h"
#include "kernels/sampling.h"

namespace triphase {

// Scratch memory of a call, aligned to 64 bytes; `bytes` at least what kernels/sizing says.
struct Workspace {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

// One layer's KV cache. Pages hold `page_tokens` tokens; K and V each lie as
// [page][kv_head][page_tokens][head_dim], so one head's tokens of a page are contiguous. A slot is
// page * page_tokens + offset: the place of one token in all heads.
//
// INT8 (dtype kInt8). A block is page_tokens consecutive positions. A full
// block is stored as codes: x = lambda * (code - zero), with one (lambda, zero) per channel of a
// head, K and V apart, which are one KvScale. lambda = (max - min) / 255 rounded up to BF16, but at
// least 2^-13 of the power of two that the largest magnitude reaches, so that 16 bits hold zero =
// round(-min / lambda); code = round(x / lambda + zero) within 0..255; F32 arithmetic, ties to
// even. So constant channels of F16 and of ordinary BF16 are restored exactly. Error at most lambda
// / 2 plus F32 rounding; a channel that holds NaN or infinity reads as NaN throughout its block. A
// partial block lies unquantized in a partial page. A query reads the block that holds its own
// position unquantized and every earlier block as codes, wherever they live and however prefill was
// cut.
struct KvLayerView {
  void* k = nullptr;
  void* v = nullptr;
  DType dtype = DType::kF16;     // F32, F16, BF16, or U8 for INT8 codes
  std::int64_t page_tokens = 0;  // INT8: a multiple of 16
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;

  // INT8 only. Scales: [scale page][K, V][kv_head][head_dim].
  KvScale* scales = nullptr;
  void* partial_k = nullptr;  // partial pages, laid out like k and v
  void* partial_v = nullptr;
  DType partial_dtype = DType::kF16;

  // K^T, or null: the keys of full blocks once more, channel-major, in K's dtype, kt_pages pages of
  // the layer, numbered by themselves (AttentionSegment::transposed_k). Every kt_run pages lie side
  // by side, as [kv_head][head_dim][page][page_tokens], so that a channel of consecutive blocks can
  // be one run (transposed_k_place()). A page is written where kt_ready (by page, on the host) is
  // not 0; who writes to the keys that it is made of sets it to 0.
  void* kt = nullptr;
  std::uint8_t* kt_ready = nullptr;
  std::int64_t kt_pages = 0;
  std::int64_t kt_run = 1;

  // [page][page_tokens][kv_head][K, V][head_dim] instead, as KV lies on the host (KvGeometry): v is
  // k and head_dim elements. Not INT8; read by the CPU's attention over all tokens alone.
  bool records = false;

  [[nodiscard]] bool quantized() const { return dtype == DType::kInt8; }
};

// What attention leaves of the tokens that it attended, in the device's memory: under a row's query
// head the softmax weight of its list's token i is 2^(values[i] - largest) * share.
struct AttendedScores {
  float* values = nullptr;   // [row][query head][capacity of the lists]; null: nobody asks
  float* softmax = nullptr;  // [row][query head]: largest, share
};

// Tokens that a sparse method chose in one layer, in the device's memory: list l of row r holds
// counts[r * lists + l] positions, ascending, from tokens[(r * lists + l) * capacity] on. A row is
// a segment's; its queries attend the tokens of their list up to their own position.
struct Selection {
  std::int64_t rows = 0;
  std::int64_t lists = 1;  // of a row: 1 for all heads, or one per KV head
  std::int64_t capacity = 0;
  const std::int32_t* tokens = nullptr;
  const std::int32_t* counts = nullptr;
  // [row][query head], or null: the softmax share its tokens hold. What they attend counts for so
  // much, and what `means` says for the rest.
  const float* alpha = nullptr;
  // With alpha, or null, by row: the mean of V over its context, of layer `layer`.
  const ValueMean* means = nullptr;
  std::int64_t layer = 0;
  // Beside tokens, or null: their slots. A token of an INT8 cache's partial block needs none.
  const std::int32_t* slots = nullptr;
  // Whether the step's other layers choose as many tokens for the same rows.
  bool same_counts_in_step = false;
  // Lists that several queries share (prompts') hold every token from here to the last query's; -1:
  // of one query each.
  std::int64_t all_from = -1;
  // With lists of one query each: what attention fills for each row that it attends. Numbers at and
  // beyond a list's count stay as they are.
  AttendedScores scores;

  // Rows [first, first + count) of a choice without shares, slots and scores.
  [[nodiscard]] Selection part(std::int64_t first, std::int64_t count) const {
    Selection part = *this;
    part.rows = count;
    part.tokens += first * lists * capacity;
    part.counts += first * lists;
    return part;
  }
};

// Page tables of a step's segments in the device's memory, made once for all layers (Ops::
// make_tables), or for some whose pages lie side by side, counted from 0. In layer L a page has its
// number in layer 0 plus L. Partial pages have numbers of their own in every layer.
struct SegmentTables {
  std::int64_t max_pages = 0;                 // from one segment's table to the next
  const std::int32_t* pages = nullptr;        // [segment][max_pages]
  const std::int32_t* scale_pages = nullptr;  // [segment][max_pages], the same in every layer
  const std::int32_t* lengths = nullptr;      // [segment]: context_tokens
  const std::int32_t* slots = nullptr;        // [row]: where new tokens go in layer 0; not INT8
  // INT8, or null: of steps with one row for each sequence (StepPartialPages).
  std::int64_t rows = 0;
  const std::int32_t* partial_pages = nullptr;  // [layer][row]
  const std::int32_t* partial_slots = nullptr;  // [layer][row]: where new tokens go
  std::int64_t full_blocks = 0;
  const std::int32_t* full_block_places =
      nullptr;  // [layer][close]: partial page, page, scale page
  // The row's partial page in a layer, those of the rows after it behind it.
  [[nodiscard]] const std::int32_t* partial_pages_at(std::int64_t row, std::int64_t layer) const {
    return partial_pages == nullptr ? nullptr : partial_pages + layer * rows + row;
  }
};

// Consecutive query tokens of one sequence inside a batch. Query i (0-based) sits at absolute
// position context_tokens - query_count + i and attends positions 0..itself (causal). With
// window > 0 it attends only the last `window` positions up to itself. Token t of the context lies
// in page pages[t / page_tokens] at offset t % page_tokens.
struct AttentionSegment {
  std::int64_t query_begin = 0;  // first row of q and out
  std::int64_t query_count = 0;
  std::int64_t context_tokens = 0;  // tokens in the cache up to and including the last query
  std::span<const PageId> pages;
  std::int64_t window = 0;

  // INT8 only: the queries lie in one block, whose tokens are in `partial_page`; `pages` and
  // `scale_pages` hold the earlier blocks.
  std::span<const PageId> scale_pages;
  PageId partial_page;

  // Null, or the tables that hold `pages` and `scale_pages` as entry `table_row`, of layer
  // `table_layer`: nothing need be sent for it.
  const SegmentTables* tables = nullptr;
  std::int64_t table_row = 0;
  std::int64_t table_layer = 0;

  // By block the page of its K^T (KvLayerView::kt), the same in every layer; invalid: it has no
  // place. A block whose K^T is there need not have its keys in `pages`. Empty: pages of kt have
  // the numbers of K's.
  std::span<const PageId> transposed_k;
  // Leading blocks whose K^T is known to be written, in every layer; of others kt_ready tells.
  std::int64_t transposed_blocks = 0;

  // Null, or [rows of q][heads] in the device's memory: the natural logarithms of the sums that the
  // queries' softmax divides by, sinks included. Attention of queries without lists writes them,
  // the same memory for all segments of a call; SparseOps of prompts read them.
  float* log_sums = nullptr;

  // Null, or lists whose row `chosen_row` the queries attend, and no other tokens; `window` is not
  // looked at. They lie where their slots say, or `pages`; a token of an INT8 cache's partial block
  // in `partial_page`. A list without tokens gives zeros. Several queries, or a part of those that
  // chose together, only where the lists say so (Selection::all_from), none of them before that.
  const Selection* chosen = nullptr;
  std::int64_t chosen_row = 0;
};

// The tokens of list `entry` of the segment's lists, in host memory, up to its last query: lists of
// queries that chose together may be of more.
[[nodiscard]] inline std::span<const std::int32_t> listed_tokens(const AttentionSegment& segment,
                                                                 std::int64_t entry) {
  const Selection& chosen = *segment.chosen;
  const std::int32_t* tokens = chosen.tokens + entry * chosen.capacity;
  std::int64_t count = chosen.counts[entry];
  if (chosen.all_from >= 0 && count > 0) {
    count -= std::max<std::int64_t>(0, tokens[count - 1] + 1 - segment.context_tokens);
  }
  return {tokens, static_cast<std::size_t>(std::max<std::int64_t>(0, count))};
}

// The page for K^T of the context's block `index`; invalid: it has no place.
[[nodiscard]] inline PageId column_page(const KvLayerView& cache, const AttentionSegment& keys,
                                        std::size_t index) {
  const std::span<const PageId> table = keys.transposed_k.empty() ? keys.pages : keys.transposed_k;
  const bool there = cache.kt != nullptr && index < table.size() && table[index].valid() &&
                     table[index].value < cache.kt_pages;
  return there ? table[index] : PageId();
}
// The same, invalid too where K^T is not written yet.
[[nodiscard]] inline PageId written_column_page(const KvLayerView& cache,
                                                const AttentionSegment& keys, std::size_t index) {
  const PageId page = column_page(cache, keys, index);
  return page.valid() && cache.kt_ready[page.index()] != 0 ? page : PageId();
}

// Where the K^T of a page of kt lies under one KV head, in elements: channel c of its tokens is
// [begin + c * stride, begin + c * stride + page_tokens). Pages [page, end) of the same
// side-by-side group follow each other there.
struct TransposedKPlace {
  std::int64_t begin = 0;
  std::int64_t stride = 0;
  std::int64_t end = 0;
};
[[nodiscard]] inline TransposedKPlace transposed_k_place(const KvLayerView& cache, PageId page,
                                                         std::int64_t kv_head) {
  const std::int64_t first = page.value / cache.kt_run * cache.kt_run;
  // The last group may be smaller, so that no memory is left over.
  const std::int64_t together = std::min(cache.kt_run, cache.kt_pages - first);
  const std::int64_t stride = together * cache.page_tokens;
  return {(first * cache.kv_heads * cache.page_tokens + kv_head * stride) * cache.head_dim +
              (page.value - first) * cache.page_tokens,
          stride, first + together};
}

// Where new tokens' K and V go: row i of the batch belongs at pages[i], offset offsets[i]; INT8:
// partial pages.
struct KvSlots {
  std::span<const PageId> pages;
  std::span<const std::int32_t> offsets;
  // Null, or the tables that hold them, and the layer.
  const SegmentTables* tables = nullptr;
  std::int64_t table_layer = 0;
};

// A partial block that is full, and where its codes and scales go.
struct FullBlock {
  PageId partial_page;
  PageId page;
  PageId scale_page;
};
struct FullBlocks {
  std::span<const FullBlock> blocks;
  // Null, or the tables that hold them, and the layer.
  const SegmentTables* tables = nullptr;
  std::int64_t table_layer = 0;
};

// INT8: where the partial blocks of a step are in every layer, if each sequence has one new token.
struct StepPartialPages {
  std::span<const PageId> pages;           // [layer][row]; empty: other steps
  std::span<const FullBlock> full_blocks;  // of layer 0
};

// A norm with all that it is given beside x.
struct NormStep {
  bool rms = true;  // else layer_norm
  const float* weight = nullptr;
  const float* bias = nullptr;  // of layer_norm; may be null
  float weight_offset = 0.0F;   // of rms_norm
  float eps = 0.0F;
};

// A layer's experts: gated networks of one form, some of which each row goes through. F: the width
// of each. Matrices of all experts lie one after the other.
struct ExpertLayer {
  ConstMatrix router;  // [experts, C]
  ConstMatrix up;      // [experts * 2 * F, C]: F rows of an expert's gate, then F of what it gates
  ConstMatrix down;    // [experts * C, F]
  // By row of these matrices, or null.
  const float* router_bias = nullptr;
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;
  Activation activation = Activation::kSilu;
  std::int64_t per_row = 0;       // experts that a row goes through
  bool shares_sum_to_one = true;  // of a softmax over these alone; else over all experts
};

// Of a matrix's rows those that are there, where only the device knows: row i if first + i is below
// the number at `count`, in the device's memory. Null: all.
struct RowLimit {
  const std::int32_t* count = nullptr;
  std::int64_t first = 0;
};

// How products of queries and keys become the softmax's logits.
struct ScoreScale {
  // NOLINTNEXTLINE(google-explicit-constructor): a factor alone is the usual scale
  ScoreScale(float by = 1.0F, float cap_at = 0.0F, const float* sink_logits = nullptr)
      : factor(by), cap(cap_at), sinks(sink_logits) {}
  float factor;
  float cap;  // above 0: a logit x becomes cap * tanh(x / cap); on a GPU without chosen tokens
  // [heads], or null: one more logit of every query's softmax, without a value, in the device's
  // memory.
  const float* sinks;
};

class Ops {
 public:
  virtual ~Ops() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;  // "cpu (avx512)"

  // A step begins. Where this answers true, operations (of SparseOps too) that take arrays of the
  // host may be called ahead, until end_announcing(): they do nothing but say which arrays, which
  // then go to the device together. Their own calls find them there.
  [[nodiscard]] virtual bool begin_step(Stream& /*stream*/) { return false; }
  virtual void end_announcing(Stream& /*stream*/) {}

  // `values` where kernels queued on the stream read them: announced, until the next step begins,
  // else until the next operation that takes an array of the host.
  [[nodiscard]] virtual const float* send(std::span<const float> values, Stream& /*stream*/) {
    return values.data();
  }

  // The type, F32 or that of w, in which attention() may give what single queries attended in this
  // cache, so that linear() by w reads it as it is. F32 on the CPU.
  [[nodiscard]] virtual DType attended_type(const ConstMatrix& /*w*/,
                                            const KvLayerView& /*cache*/) const {
    return DType::kF32;
  }

  // y[m, n] = sum_k x[m, k] * w[n, k] + bias[n], plus y's old value when `accumulate`.
  // x [M, K] F32 or attended_type(), w [N, K] F32/F16/BF16, bias [N] F32 or null, y [M, N] F32.
  virtual void linear(ConstMatrix x, ConstMatrix w, const float* bias, bool accumulate, Matrix y,
                      Stream& stream) = 0;

  // y = linear(x), of which a row's bits depend on that row of x alone, on a GPU too. Rows that the
  // limit leaves out stay as they are.
  virtual void linear_by_rows(ConstMatrix x, ConstMatrix w, const float* bias,
                              const RowLimit& limit, Matrix y, Stream& stream) = 0;

  // y[t, :] = scale * table[ids[t], :]. table [V, C] F32/F16/BF16, y [T, C] F32. Ids must be in
  // range (checked). Where work runs later than it is queued, ~i names the token that row i of the
  // last sample() draws, so that the host need not have it.
  virtual void embed(std::span<const TokenId> ids, ConstMatrix table, float scale, Matrix y,
                     Stream& stream) = 0;

  // y[t, :] += table[positions[t], :] (learned positions; the caller adds the family's offset).
  virtual void add_positions(std::span<const std::int32_t> positions, ConstMatrix table, Matrix y,
                             Stream& stream) = 0;

  // y[i, :] = x[rows[i], :], F32; rows in range (checked).
  virtual void gather_rows(ConstMatrix x, std::span<const std::int32_t> rows, Matrix y,
                           Stream& stream) = 0;

  // y = for each row of x the sum over its experts, in the order of the router's choice, of share *
  // down(act(gate(x)) * up(x)), plus y's old value when `accumulate`. A row's experts are those
  // with the largest logits of linear(x, router), ties to the lower number. x, y [T, C] F32; y may
  // alias x. The workspace: kernels/sizing/expert_workspace.h.
  virtual void experts(ConstMatrix x, const ExpertLayer& layer, bool accumulate, Matrix y,
                       Workspace workspace, Stream& stream) = 0;

  // y = x / sqrt(mean(x^2) + eps) * (w + weight_offset). x, y [T, C] F32; y may alias x. w [C] F32.
  virtual void rms_norm(ConstMatrix x, const float* weight, float weight_offset, float eps,
                        Matrix y, Stream& stream) = 0;

  // y += rms_norm(x), which must not alias.
  virtual void add_rms_norm(ConstMatrix x, const float* weight, float weight_offset, float eps,
                            Matrix y, Stream& stream) = 0;

  // rms_norm, in place, of each of `heads` equal parts of the rows of x [T, heads * C] F32 by
  // itself; w [C] F32 is the same for all.
  virtual void head_norm(Matrix x, std::int64_t heads, const float* weight, float weight_offset,
                         float eps, Stream& stream) = 0;

  // y = (x - mean) / sqrt(var + eps) * w + b; var divides by C; b may be null. y may alias x.
  virtual void layer_norm(ConstMatrix x, const float* weight, const float* bias, float eps,
                          Matrix y, Stream& stream) = 0;

  // Rotates, in place, each of `heads` heads of `head_dim` columns of x [T, >= heads * head_dim]:
  // channel c < R/2 pairs with c + R/2, R = rotary_dim. cos_sin row t: R/2 cosines, R/2 sines, F32
  // (already scaled by yarn's attention factor), gathered per token by the caller.
  virtual void rope(Matrix x, std::int64_t heads, std::int64_t head_dim, std::int64_t rotary_dim,
                    ConstMatrix cos_sin, Stream& stream) = 0;

  // y = act(gate) * up, elementwise [T, F] F32; y may alias gate.
  virtual void gated_activation(Activation activation, ConstMatrix gate, ConstMatrix up, Matrix y,
                                Stream& stream) = 0;

  // y = act(y) in place, [T, F] F32.
  virtual void activate(Activation activation, Matrix y, Stream& stream) = 0;

  // Operations that follow each other in every layer, for a device to do in fewer steps; with the
  // bits of one after the other, which is what these are.

  // y = linear(norm(x)). normed, as wide as x, is overwritten or not.
  virtual void norm_linear(ConstMatrix x, const NormStep& norm, Matrix normed, ConstMatrix w,
                           const float* bias, bool accumulate, Matrix y, Stream& stream) {
    if (norm.rms) {
      rms_norm(x, norm.weight, norm.weight_offset, norm.eps, normed, stream);
    } else {
      layer_norm(x, norm.weight, norm.bias, norm.eps, normed, stream);
    }
    linear(normed, w, bias, accumulate, y, stream);
  }

  // y = linear(act(gate) * up), without `up` linear(act(gate)). gate is overwritten or not.
  virtual void activation_linear(Activation activation, Matrix gate, ConstMatrix up, ConstMatrix w,
                                 const float* bias, bool accumulate, Matrix y, Stream& stream) {
    if (up.empty()) {
      activate(activation, gate, stream);
    } else {
      gated_activation(activation, gate, up, gate, stream);
    }
    linear(gate, w, bias, accumulate, y, stream);
  }

  // rope() of q and of k, then kv_append() of k and v. k is overwritten or not.
  virtual void rope_and_append(Matrix q, std::int64_t heads, Matrix k, ConstMatrix v,
                               std::int64_t rotary_dim, ConstMatrix cos_sin, const KvSlots& slots,
                               const KvLayerView& cache, Stream& stream) {
    rope(q, heads, cache.head_dim, rotary_dim, cos_sin, stream);
    rope(k, cache.kv_heads, cache.head_dim, rotary_dim, cos_sin, stream);
    kv_append(k, v, slots, cache, stream);
  }

  // What segments and slots of layer 0 say of every layer, in the device's memory: as send() of
  // other arrays. Empty where operations read the host's lists themselves (the CPU).
  [[nodiscard]] virtual SegmentTables make_tables(std::span<const AttentionSegment> segments,
                                                  const KvSlots& slots,
                                                  const StepPartialPages& partial,
                                                  const KvLayerView& cache, Stream& stream) = 0;

  // Writes row i of k and v [T, kv_heads * head_dim] F32 into the cache, rounded to its type
  // (nearest even).
  virtual void kv_append(ConstMatrix k, ConstMatrix v, const KvSlots& slots,
                         const KvLayerView& cache, Stream& stream) = 0;

  // INT8: quantizes full partial blocks into their pages and scales.
  virtual void quantize_blocks(const FullBlocks& full_blocks, const KvLayerView& cache,
                               Stream& stream) = 0;

  // y = cap * tanh(y / cap) in place, [T, F] F32.
  virtual void soft_cap(float cap, Matrix y, Stream& stream) = 0;

  // out[query, head] = softmax(scale * q . K) V over the tokens each query sees. q
  // [T, heads * head_dim] F32, out as large, F32 or attended_type(); the heads / kv_heads heads of
  // one KV head are consecutive. Segments must not share rows of q. A query's result depends only
  // on its row, its position and the cache's values, not on where they lie: key tiles are cut at
  // absolute positions (with a chosen tokens: at absolute ordinals of their list) and merged in
  // ascending order. Lists with shares: out = alpha out + (1 - alpha) sums / tokens; without means
  // out = alpha out.
  virtual void attention(ConstMatrix q, std::int64_t heads, const KvLayerView& cache,
                         std::span<const AttentionSegment> segments, ScoreScale scale, Matrix out,
                         Workspace workspace, Stream& stream) = 0;

  // results[r]: the token drawn from row r of logits [R, >= rows[r].vocab] F32, or a score. In
  // order: repetition penalty, temperature, top-k, top-p, min-p; each keeps at least one token, and
  // ties go to the lower id. A draw depends on its row alone (kernels/sample_math.h says how far
  // devices agree). `results` has rows.size() entries in memory of the backend's host device. They
  // may be read once the host has waited for the stream.
  virtual void sample(ConstMatrix logits, std::span<const SampleRow> rows, SampleResult* results,
                      Workspace workspace, Stream& stream) = 0;
};

}  // namespace triphase
