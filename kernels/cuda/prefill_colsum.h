#pragma once

// Sums of attention weights by key, from a second pass over QK^T: how H2O (all query rows) and SWA
// (the last rows of the prompt) start, with the rows' log-sum-exps of attention; and how the rows
// of a prompt score clusters together (Squeezed, appendix D), with log-sum-exps made here. No float
// atomics: one block owns a tile of keys of one row of sums and adds rows in order, so the sums
// have the same bits however prefill was cut, when the chunks' calls come in order.

#include <cstdint>
#include <span>
#include <type_traits>

#include "base/dtype.h"
#include "kernels/cuda/stream_handle.h"
#include "kernels/kv_scale.h"
#include "kernels/layer_memory.h"

namespace triphase::cuda {

struct PrefillColumns {
  const float* q = nullptr;  // [queries, heads * head_dim] of one sequence
  std::int64_t q_stride = 0;
  std::int64_t queries = 0;
  std::int64_t first_position = 0;  // absolute position of query 0
  // Queries at positions [row_begin, row_end) count.
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  std::int64_t window = 0;  // > 0: a query sees the last so many tokens, itself included
  const void* k = nullptr;  // [page][kv_head][page_tokens][head_dim], F32, F16, BF16 or U8
  DType dtype = DType::kF16;
  // U8: the queries lie in one block, which is partial; earlier ones are codes, with scales [scale
  // page] [K, V][kv_head][head_dim].
  const KvScale* scales = nullptr;
  const std::int32_t* scale_pages = nullptr;  // device, beside `pages`
  const void* partial_k = nullptr;
  DType partial_dtype = DType::kF16;
  std::int32_t partial_page = -1;
  const std::int32_t* pages = nullptr;  // device; token t in pages[t / page_tokens]
  std::int64_t page_tokens = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  float scale = 1.0F;
  // Centroids in place of a cache's keys: F32, in one page of `keys` (above 0). Every query sees
  // all of them. In log-sums one counts key_counts[kv_head][key] times. Where that is 0, or
  // key_alive[kv_head][key] if there is one, it has no weight.
  std::int64_t keys = 0;
  const float* key_counts = nullptr;
  const std::uint8_t* key_alive = nullptr;
  // Sums start at 0, not at what is there; where every query sees every key.
  bool fresh_sums = false;
};

// What of PrefillColumns differs between prompts' chunks that one call takes. All rows count.
struct ColumnPart {
  const float* q = nullptr;
  const float* log_sums = nullptr;  // [queries][heads]
  std::int64_t queries = 0;
  std::int64_t first_position = 0;
  std::int64_t window = 0;
  const std::int32_t* pages = nullptr;
  const std::int32_t* scale_pages = nullptr;
  std::int32_t partial_page = -1;
  // Padding with a value: arrays on their way are compared byte by byte (argument_ring.h).
  std::int32_t padding = 0;
};
static_assert(std::has_unique_object_representations_v<ColumnPart>);
[[nodiscard]] TRIPHASE_BOTH PrefillColumns of_part(PrefillColumns call, const ColumnPart& part) {
  call.q = part.q;
  call.queries = part.queries;
  call.first_position = call.row_begin = part.first_position;
  call.row_end = part.first_position + part.queries;
  call.window = part.window;
  call.pages = part.pages;
  call.scale_pages = part.scale_pages;
  call.partial_page = part.partial_page;
  return call;
}

// The sums of a prompt: its parts follow each other in the order of their tokens.
struct ColumnPrompt {
  std::int64_t first_part = 0;
  std::int64_t parts = 1;
  std::int64_t first_tile = 0;  // lay_out_tiles
  float* sums = nullptr;        // [kv_head][sum_stride]
  std::int64_t sum_stride = 0;
};
static_assert(std::has_unique_object_representations_v<ColumnPrompt>);

// log_sums [queries][heads] over centroids, natural, of the rows that count; the others stay as
// they are. `partials` has prefill_log_sum_floats() of kernels/sizing for these rows.
void prefill_log_sums(const PrefillColumns& call, float* log_sums, float* partials,
                      StreamHandle stream);

// sums [kv_head][sum_stride]: the weights of the rows that count, summed over the group and added
// to what is there, for every key that they see. log_sums [queries][heads].
void prefill_colsum(const PrefillColumns& call, const float* log_sums, float* sums,
                    std::int64_t sum_stride, StreamHandle stream);

// The same for the parts of several prompts, in one launch. Of the call only what all parts have in
// common is looked at, and of its queries where the first one's are. `prompts` and `parts` lie in
// the host's memory too, laid out.
struct ColumnBatch {
  std::span<const ColumnPart> parts;
  std::span<const ColumnPrompt> prompts;
  const ColumnPart* sent_parts = nullptr;  // device
  const ColumnPrompt* sent_prompts = nullptr;
};
void prefill_colsum(const PrefillColumns& call, const ColumnBatch& batch, StreamHandle stream);
// Sets first_tile.
void lay_out_tiles(const PrefillColumns& call, std::span<const ColumnPart> parts,
                   std::span<ColumnPrompt> prompts);

// What all check, by the kernel's name.
void check_columns(const PrefillColumns& call, const char* kernel);

}  // namespace triphase::cuda
