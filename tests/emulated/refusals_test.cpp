// Every wrapper refuses what its kernel cannot take, before a launch, and says which kernel and
// which shapes.

#include "kernels/cuda/ceiling_kernels.h"
#include "kernels/cuda/clusters.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/gather_attn.h"
#include "kernels/cuda/gemm_rows.h"
#include "kernels/cuda/gemm_tile.h"
#include "kernels/cuda/input_codes.h"
#include "kernels/cuda/kept_tokens.h"
#include "kernels/cuda/kv_append.h"
#include "kernels/cuda/kv_channels.h"
#include "kernels/cuda/kv_quantize.h"
#include "kernels/cuda/merge_states.h"
#include "kernels/cuda/norms.h"
#include "kernels/cuda/page_bounds.h"
#include "kernels/cuda/plan_splits.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/prefill_attention.h"
#include "kernels/cuda/prefill_colsum.h"
#include "kernels/cuda/random_fill.h"
#include "kernels/cuda/recompute.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/score_rows.h"
#include "kernels/cuda/select_rows.h"
#include "kernels/cuda/sparq_select.h"
#include "kernels/cuda/stage_rows.h"
#include "kernels/cuda/value_mean.h"
#include "kernels/cuda/weight_window.h"
#include "tests/emulated/refusal_checks.h"

namespace triphase::cuda {
namespace {

// Addresses that no refused call may read.
float* floats() { return reinterpret_cast<float*>(std::uintptr_t{4096}); }
std::int32_t* ids() { return reinterpret_cast<std::int32_t*>(std::uintptr_t{4096}); }

GpuMachine gpu_of(std::int64_t shared_kib) {
  return {.shared_bytes_per_block = shared_kib << 10, .warpgroups = true};
}

const std::byte* words() { return reinterpret_cast<const std::byte*>(floats()); }
RecomputedTokens recomputed() {
  return {reinterpret_cast<const RecomputedToken*>(ids()), ids(), 5};
}

Matrix f32(std::int64_t rows, std::int64_t cols) {
  return {floats(), DType::kF32, rows, cols, cols};
}

KvCache cache_of(DType dtype) {
  return {.k = floats(),
          .v = floats(),
          .dtype = dtype,
          .page_tokens = 64,
          .kv_heads = 2,
          .head_dim = 72};
}

ScoreKeys keys_of(DType dtype) {
  ScoreKeys keys;
  keys.keys = floats();
  keys.dtype = dtype;
  keys.pages = ids();
  keys.max_pages = 2;
  keys.lengths = ids();
  keys.sequences = 3;
  keys.max_length = 100;
  keys.page_tokens = 64;
  keys.kv_heads = 2;
  keys.head_dim = 72;
  return keys;
}

ScoreQueries queries_of(std::int64_t heads) { return {floats(), heads * 72, heads}; }
ScoreLogits logits_of(std::int64_t stride) { return {floats(), floats(), stride}; }

PagedAttention attention_of(DType dtype) {
  PagedAttention call;
  call.q = floats();
  call.heads = 4;
  call.k = floats();
  call.v = floats();
  call.dtype = dtype;
  call.page_tokens = 64;
  call.kv_heads = 2;
  call.head_dim = 72;
  call.segments = reinterpret_cast<const PagedSegment*>(floats());
  call.segment_count = 1;
  call.pages = ids();
  call.out = floats();
  return call;
}

GatherAttnArgs gather_of(DType dtype) {
  GatherAttnArgs args;
  args.q = floats();
  args.q_stride = 4 * 72;
  args.sequences = 3;
  args.heads = 4;
  args.cache = cache_of(dtype);
  args.tables.pages = ids();
  args.tables.max_pages = 2;
  args.lengths = ids();
  args.plan = {reinterpret_cast<const SplitPart*>(floats()), nullptr, 5, 6, 32};
  args.states = floats();
  args.max_sum = floats();
  return args;
}

MergeStatesArgs merge_of() {
  MergeStatesArgs args;
  args.sequences = 3;
  args.heads = 4;
  args.kv_heads = 2;
  args.head_dim = 72;
  args.out = f32(3, 4 * 72);
  return args;
}

PrefillColumns columns_of() {
  PrefillColumns call;
  call.q = floats();
  call.q_stride = 4 * 72;
  call.queries = 6;
  call.row_end = 6;
  call.k = floats();
  call.pages = ids();
  call.page_tokens = 64;
  call.heads = 4;
  call.kv_heads = 2;
  call.head_dim = 72;
  return call;
}

template <class Call>
Call with(Call call, const std::function<void(Call&)>& change) {
  change(call);
  return call;
}

ListedScores scores_of(int heads) {
  return {.values = floats(), .softmax = floats(), .capacity = 9, .heads = heads};
}

std::vector<Refusal> attention_refusals() {
  using Gather = GatherAttnArgs;
  using Paged = PagedAttention;
  return {
      {"gather_attn", "multiple of kv_heads", "heads 5",
       [] { gather_attn(with<Gather>(gather_of(DType::kF16), [](auto& a) { a.heads = 5; }), {}); }},
      {"gather_attn", "head_dim must be a multiple of 8 up to 256", "head_dim 264",
       [] {
         gather_attn(with<Gather>(gather_of(DType::kF16), [](auto& a) { a.cache.head_dim = 264; }),
                     {});
       }},
      {"gather_attn", "cache must be", "cache fp32",
       [] { gather_attn(gather_of(DType::kF32), {}); }},
      {"gather_attn", "INT8 cache needs", "cache int8",
       [] { gather_attn(gather_of(DType::kInt8), {}); }},
      {"gather_attn", "plan is for other rows", "sequences 4",
       [] {
         gather_attn(with<Gather>(gather_of(DType::kF16), [](auto& a) { a.sequences = 4; }), {});
       }},
      {"gather_attn", "whole tiles", "parts 5",
       [] {
         gather_attn(with<Gather>(gather_of(DType::kF16), [](auto& a) { a.plan.unit_tokens = 24; }),
                     {});
       }},
      {"gather_attn", "no token lists", "list_capacity 0",
       [] {
         gather_attn(
             with<Gather>(gather_of(DType::kF16), [](auto& a) { a.source = TokenSource::kList; }),
             {});
       }},
      {"merge_states", "multiple of kv_heads", "heads 5",
       [] { merge_states(with<MergeStatesArgs>(merge_of(), [](auto& a) { a.heads = 5; }), {}); }},
      {"merge_states", "the plan is for other rows", "sequences 3",
       [] {
         merge_states(with<MergeStatesArgs>(merge_of(), [](auto& a) { a.plan.rows = 7; }), {});
       }},
      {"gather_attn", "slots and scores go with token lists only", "list_capacity 0",
       [] {
         gather_attn(with<Gather>(gather_of(DType::kF16), [](auto& a) { a.scores = floats(); }),
                     {});
       }},
      {"plan_splits", "sizes must be positive", "unit_tokens 0",
       [] {
         (void)plan_splits({.counts = ids(), .rows = 6, .unit_tokens = 0, .part_count = 4},
                           floats(), 4096, {});
       }},
      {"plan_splits", "workspace is too small", "rows 6",
       [] {
         (void)plan_splits({.counts = ids(), .rows = 6, .unit_tokens = 32, .part_count = 4},
                           floats(), 16, {});
       }},
      {"prefill_attention", "type, head_dim, page_tokens", "head_dim 76",
       [] {
         prefill_attention(with<Paged>(attention_of(DType::kF16), [](auto& a) { a.head_dim = 76; }),
                           1, {1, 128}, gpu_of(227), {});
       }},
      {"prefill_attention", "shared memory", "head_dim 72",
       [] {
         prefill_attention(attention_of(DType::kF16), 1, {1, 128}, gpu_of(48), {});
       }},
      {"prefill_attention", "whole pages", "split_tokens 100",
       [] {
         prefill_attention(attention_of(DType::kF16), 1, {1, 100}, gpu_of(227), {});
       }},
      {"prefill_attention", "need partials", "splits 2",
       [] {
         prefill_attention(attention_of(DType::kF16), 1, {2, 128}, gpu_of(227), {});
       }},
      {"paged_attention", "multiple of kv_heads", "heads 5",
       [] {
         paged_attention(with<Paged>(attention_of(DType::kF16), [](auto& a) { a.heads = 5; }), 1, 9,
                         {});
       }},
      {"paged_attention", "INT8 cache needs", "max_context 9",
       [] {
         paged_attention(
             with<Paged>(attention_of(DType::kInt8), [](auto& a) { a.partials = floats(); }), 1, 9,
             {});
       }},
      {"prefill_colsum", "sum_stride below the context", "sum_stride 5",
       [] { prefill_colsum(columns_of(), floats(), floats(), 5, {}); }},
      {"prefill_colsum", "null pointer", "sum_stride 6",
       [] { prefill_colsum(columns_of(), floats(), nullptr, 6, {}); }},
      {"prefill_colsum", "INT8 queries of more than one block", "queries 6",
       [] {
         prefill_colsum(with<PrefillColumns>(columns_of(),
                                             [](auto& a) {
                                               a.dtype = DType::kInt8;
                                               a.scales =
                                                   reinterpret_cast<const KvScale*>(floats());
                                               a.scale_pages = ids();
                                               a.partial_k = floats();
                                               a.partial_page = 1;
                                               a.first_position = 60;
                                             }),
                        floats(), floats(), 66, {});
       }},
      {"prefill_colsum", "not laid out", "prompts 1",
       [] {
         const ColumnPart part{.q = floats(), .log_sums = floats(), .queries = 6, .pages = ids()};
         const ColumnPrompt prompt{.first_tile = 1, .sums = floats(), .sum_stride = 6};
         prefill_colsum(columns_of(),
                        {.parts = {&part, 1},
                         .prompts = {&prompt, 1},
                         .sent_parts = &part,
                         .sent_prompts = &prompt},
                        {});
       }},
      {"prefill_log_sums", "multiple of kv_heads", "heads 5",
       [] {
         prefill_log_sums(with<PrefillColumns>(columns_of(), [](auto& a) { a.heads = 5; }),
                          floats(), floats(), {});
       }},
      {"prefill_log_sums", "attention makes those", "keys 0",
       [] { prefill_log_sums(columns_of(), floats(), floats(), {}); }},
      {"prefill_log_sums", "null pointer", "splits 1",
       [] {
         prefill_log_sums(with<PrefillColumns>(columns_of(),
                                               [](auto& a) {
                                                 a.dtype = DType::kF32;
                                                 a.keys = a.page_tokens;
                                                 a.key_counts = floats();
                                               }),
                          floats(), nullptr, {});
       }},
  };
}

std::vector<Refusal> cache_refusals() {
  return {
      {"kv_append", "tokens must be", "tokens 0",
       [] { kv_append({.cache = cache_of(DType::kF16)}, {}); }},
      {"kv_append", "stored as F16 or BF16", "head_dim 72",
       [] { kv_append({.tokens = 1, .cache = cache_of(DType::kF32)}, {}); }},
      {"kv_quantize_pages", "not INT8", "blocks 1",
       [] { kv_quantize_pages(nullptr, 1, cache_of(DType::kF16), {}); }},
      {"kv_write_channels", "cache must be", "cache fp32",
       [] {
         kv_write_channels(ids(), ids(), 1, cache_of(DType::kF32), {floats(), 1}, {});
       }},
      {"stage_rows", "null pointer", "count 7",
       [] { stage_rows({.cache = cache_of(DType::kF16), .count = 7}, {}); }},
  };
}

std::vector<Refusal> selection_refusals() {
  const SelectRows select{.scores = floats(),
                          .score_stride = 50,
                          .lengths = ids(),
                          .rows = 6,
                          .rows_per_sequence = 2,
                          .max_length = 50,
                          .indices = ids(),
                          .capacity = 10,
                          .counts = ids()};
  return {
      {"choose_channels", "rank 1 to head_dim", "rank 73",
       [] { choose_channels(queries_of(4), 3, 2, 72, 73, {}, ids(), floats(), {}); }},
      {"score_sparq", "multiple of kv_heads", "heads 5",
       [] {
         score_sparq(keys_of(DType::kF16), queries_of(5), ids(), floats(), 8, logits_of(100), {});
       }},
      {"score_sparq", "multiple of kv_heads", "heads 0",
       [] {
         score_sparq(keys_of(DType::kF16), queries_of(0), ids(), floats(), 8, logits_of(100), {});
       }},
      {"score_sparq", "INT8 keys need", "keys int8",
       [] {
         score_sparq(keys_of(DType::kInt8), queries_of(4), ids(), floats(), 8, logits_of(100), {});
       }},
      {"score_sparq", "shorter rows", "length_stride 90",
       [] {
         score_sparq(keys_of(DType::kF16), queries_of(4), ids(), floats(), 8, logits_of(90), {});
       }},
      // Found by the choice of a kernel: the type has none.
      {"score_exact", "no kernel for the type", "keys int32",
       [] { score_exact(keys_of(DType::kI32), queries_of(4), 1.0F, logits_of(100), {}); }},
      {"score_exact", "1 to 8 query heads", "heads 18",
       [] { score_exact(keys_of(DType::kF16), queries_of(18), 1.0F, logits_of(100), {}); }},
      {"score_centroids", "null pointer", "count 8",
       [] {
         score_centroids({.count = 8, .sequences = 3, .kv_heads = 2, .head_dim = 72}, queries_of(4),
                         1.0F, logits_of(8), {});
       }},
      {"score_quest", "room for every page", "score_stride 5",
       [] {
         score_quest({.sequences = 1, .max_length = 96, .tokens = 16, .kv_heads = 2}, queries_of(4),
                     floats(), 5, {});
       }},
      {"score_quest", "null pointer", "max_length 96",
       [] {
         score_quest({.sequences = 1, .max_length = 96, .tokens = 16, .kv_heads = 2}, queries_of(4),
                     floats(), 6, {});
       }},
      {"bound_pages", "sizes must be positive", "tokens 0",
       [] { bound_pages(keys_of(DType::kF16), {.most_pages = 1}, {}); }},
      {"bound_pages", "null pointer", "most_pages 2",
       [] { bound_pages(keys_of(DType::kInt8), {.tokens = 16, .most_pages = 2}, {}); }},
      {"group_scores", "not positive", "group 0",
       [] {
         group_scores(logits_of(50), ids(), 2, 6, 0, 50, GroupReduce::kLogitSum, floats(), floats(),
                      {});
       }},
      {"selected_share", "no query heads", "rows 6",
       [] { selected_share(logits_of(50), floats(), ids(), 10, ids(), 6, 0, floats(), {}); }},
      {"sample_rows", "null pointer", "rows 3", [] { sample_rows({.rows = 3}, {}); }},
      {"select_top", "capacity below k", "k 11", [=] { select_top(select, 11, {}); }},
      {"sparq_select", "rank must be", "rank 0",
       [] { sparq_select({.keys = keys_of(DType::kF16), .queries = queries_of(4)}, {}); }},
      {"sparq_select", "1 to 8 query heads", "heads 18",
       [] {
         sparq_select({.keys = keys_of(DType::kF16), .queries = queries_of(18), .rank = 4}, {});
       }},
      {"keep_all", "null pointer", "tokens 7", [] { keep_all(nullptr, 3, 2, 7, {}); }},
      {"keep_heaviest", "null pointer", "capacity 40",
       [] { keep_heaviest(nullptr, 3, 2, 1, ids(), 40, ids(), {}); }},
      {"keep_heaviest", "too many lists", "lists 0",
       [] { keep_heaviest(reinterpret_cast<KeptRow*>(floats()), 3, 0, 1, ids(), 40, ids(), {}); }},
      {"keep_heaviest", "too many layers", "layers 70000",
       [] {
         keep_heaviest(reinterpret_cast<KeptRow*>(floats()), 3, 2, 70000, ids(), 40, ids(), {});
       }},
      {"add_kept_weights", "null pointer", "rows 3",
       [] { add_kept_weights(nullptr, 3, 2, scores_of(4), 9, 0, false, {}); }},
      {"add_kept_weights", "more tokens than lists have room for", "most_tokens 10",
       [] {
         add_kept_weights(reinterpret_cast<KeptWeights*>(floats()), 3, 2, scores_of(4), 10, 0,
                          false, {});
       }},
      {"clear_weights", "null pointer", "windows 3", [] { clear_weights(nullptr, 3, 5, {}); }},
      {"add_weights", "too many rows", "rows 70000",
       [] {
         add_weights(reinterpret_cast<WeightRow*>(floats()), 70000, ids(), scores_of(4), 5, 5, 0,
                     false, {});
       }},
      {"add_weights", "no heads", "heads 0",
       [] {
         add_weights(reinterpret_cast<WeightRow*>(floats()), 7, ids(), scores_of(0), 5, 5, 0, false,
                     {});
       }},
      {"add_prompt_rows", "beyond the window's tokens", "tokens 5",
       [=] {
         std::int64_t sum = 0;
         const WindowPart part{
             .rows = {.q = floats(), .log_sums = floats(), .queries = 6, .pages = ids()},
             .window = {.sums = &sum, .buckets = &sum, .tokens = 5, .room = 2},
             .begins = ids()};
         add_prompt_rows(columns_of(), {&part, 1}, &part, {}, {});
       }},
      {"choose_heaviest", "null pointer", "capacity 9",
       [] {
         choose_heaviest(reinterpret_cast<WindowChoice*>(floats()), 3, 1, ids(), 9, nullptr, {});
       }},
      {"choose_heaviest", "layers", "layers 0",
       [] {
         choose_heaviest(reinterpret_cast<WindowChoice*>(floats()), 3, 0, ids(), 9, ids(), {});
       }},
      {"find_alive_clusters", "null pointer", "fine 77",
       [] { find_alive_clusters({.fine = 77}, nullptr, nullptr, {}); }},
      {"choose_clusters", "no clusters", "tokens 77",
       [] {
         choose_clusters({.scores = floats(),
                          .labels = ids(),
                          .tokens = 77,
                          .contexts = ids(),
                          .kv_heads = 2,
                          .rows = 4},
                         ids(), 90, ids(), nullptr, {});
       }},
      {"expand_pages", "no capacity", "tokens_per_page 16",
       [] { expand_pages(ids(), 4, ids(), 6, 16, ids(), 2, ids(), 0, ids(), {}); }},
  };
}

std::vector<Refusal> dense_refusals() {
  const Matrix half{floats(), DType::kF16, 2, 8, 8};
  return {
      {"gemm_tile", "x times w", "w 4 x 9 fp32",
       [] { gemm_tile(f32(2, 8), f32(4, 9), nullptr, false, f32(2, 4), {}); }},
      {"gemm_tile", "no kernel for the type", "w 4 x 8 int8",
       [] {
         gemm_tile(f32(2, 8), {floats(), DType::kInt8, 4, 8, 8}, nullptr, false, f32(2, 4), {});
       }},
      {"gemm_rows", "x times w", "w 4 x 16 fp16",
       [] {
         gemm_rows(f32(2, 8), {floats(), DType::kF16, 4, 16, 16}, nullptr, {}, f32(2, 4), {});
       }},
      {"gemm_groups", "a group's w", "groups 3",
       [] { gemm_groups(f32(2, 8), f32(8, 8), {.count = 3}, f32(2, 4), {}); }},
      {"gemm_groups", "too large", "tiles 65536",
       [] { gemm_groups(f32(2, 8), f32(8, 8), {.count = 2, .tile_count = 65536}, f32(2, 4), {}); }},
      {"choose_experts", "as a row goes through", "per_row 9",
       [] { choose_experts(f32(2, 8), 9, true, ids(), floats(), {}); }},
      {"group_rows", "up to 1024", "experts 1025",
       [] { group_rows({.rows = 2, .per_row = 2, .expert_count = 1025, .tile_rows = 16}, {}); }},
      {"sum_rows", "as wide", "x 4 x 9 fp32",
       [] { sum_rows(f32(4, 9), ids(), floats(), 2, false, f32(2, 8), {}); }},
      {"fetch_inputs", "must fit its K", "width 289",
       [] {
         fetch_inputs({words(), 289}, recomputed(), cache_of(DType::kF16), 3, {});
       }},
      {"restore_inputs", "of tokens of the list", "first 4",
       [] { restore_inputs(recomputed(), 4, cache_of(DType::kF16), f32(2, 8), {}); }},
      {"store_recomputed", "F16 or BF16", "cache fp32",
       [] {
         store_recomputed({.tokens = recomputed(),
                           .k = f32(2, 144),
                           .v = f32(2, 144),
                           .cache = cache_of(DType::kF32)},
                          {});
       }},
      {"rms_norm", "as wide at least", "y 2 x 7 fp32",
       [] { rms_norm(f32(2, 8), floats(), 0.0F, 1e-5F, f32(2, 7), {}); }},
      {"add_rms_norm", "of one shape", "y 2 x 9 fp32",
       [] { add_rms_norm(f32(2, 8), floats(), 0.0F, 1e-5F, f32(2, 9), {}); }},
      {"head_norm", "equal heads", "heads 3",
       [] { head_norm(f32(2, 8), 3, floats(), 0.0F, 1e-5F, {}); }},
      {"layer_norm", "as many rows", "x 3 x 8 fp32",
       [] { layer_norm(f32(3, 8), floats(), nullptr, 1e-5F, f32(2, 8), {}); }},
      {"gather_table", "as wide", "table 5 x 9 fp32",
       [] { gather_table(ids(), f32(5, 9), 1.0F, false, f32(2, 8), {}); }},
      {"random_fill", "no gaps between rows", "y 2 x 4 fp32",
       [] {
         random_fill(1, 1.0F, {floats(), DType::kF32, 2, 4, 8}, {});
       }},
      {"rope", "even rotary_dim", "rotary_dim 3", [] { rope(f32(2, 8), 2, 4, 3, f32(2, 3), {}); }},
      {"soft_cap", "the cap above 0", "y 2 x 9 fp32", [] { soft_cap(0.0F, f32(2, 9), {}); }},
      {"activate", "one shape", "gate 2 x 9 fp32",
       [] { activate(Activation::kSilu, f32(2, 9), {}, f32(2, 8), {}); }},
      {"quantize_inputs", "F32 rows", "x 2 x 8 fp16",
       [=] { quantize_inputs(half, nullptr, floats(), {}); }},
      {"dequantize_inputs", "null pointer", "x 2 x 8 fp32",
       [] { dequantize_inputs(nullptr, floats(), f32(2, 8), {}); }},
      {"sum_values", "F32 rows", "v 2 x 8 fp16",
       [=] { sum_values(half, nullptr, 1, 0, false, {}); }},
      {"sum_values", "null pointer", "v 2 x 8 fp32",
       [] { sum_values(f32(2, 8), nullptr, 1, 0, false, {}); }},
      {"convert", "16-bit type", "y 2 x 8 fp32", [] { convert(f32(2, 8), f32(2, 8), {}); }},
      {"read_all", "multiple of 16", "bytes 17", [] { read_all(floats(), 17, 1, floats(), {}); }},
      {"multiply_add", "no rounds", "rounds 0", [] { multiply_add(0, 1, floats(), {}); }},
  };
}

TEST(Refusals, OfAttentionNameKernelAndShape) { expect_refused(attention_refusals()); }
TEST(Refusals, OfTheCacheNameKernelAndShape) { expect_refused(cache_refusals()); }
TEST(Refusals, OfSelectionNameKernelAndShape) { expect_refused(selection_refusals()); }
TEST(Refusals, OfDenseKernelsNameKernelAndShape) { expect_refused(dense_refusals()); }

}  // namespace
}  // namespace triphase::cuda
