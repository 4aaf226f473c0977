#pragma once

// Scores of the tokens, pages or key clusters of each row, for select_rows. A row is (sequence, KV
// head); its g = heads / kv_heads query heads travel together. Two steps: logits in base 2 with
// partial maxima and sums per tile, then normalized scores summed over the group. All pointers are
// device memory; everything is F32 except the cache. Methods: SparQ (arXiv 2312.04985, section 3),
// exact top-k (FlexGen), Quest (arXiv 2406.10774), Squeezed Attention (arXiv 2411.09688).

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/stream_handle.h"
#include "kernels/layer_memory.h"
#include "kernels/sizing/cuda_workspace.h"

namespace triphase::cuda {

// A layer's keys as kernels/ops.h lays them out. Token t of a sequence lies in page
// pages[sequence * max_pages + t / page_tokens] at offset t % page_tokens.
struct ScoreKeys {
  const void* keys = nullptr;  // [page][kv_head][page_tokens][head_dim]
  // K^T of the blocks before the query's own, whose entries of `pages` count its pages; or null.
  KvChannels channels;
  DType dtype = DType::kF16;  // F32, F16, BF16, or U8: INT8 codes before the query's own block
  const KvScale* scales = nullptr;  // U8: [scale page][K, V][kv_head][head_dim]
  const void* partial_keys =
      nullptr;  // U8: own blocks, that of sequence b in page partial_pages[b]
  const std::int32_t* partial_pages = nullptr;
  DType partial_dtype = DType::kF16;  // U8 only
  const std::int32_t* pages = nullptr;
  const std::int32_t* scale_pages = nullptr;  // U8: beside `pages`
  std::int64_t max_pages = 0;
  const std::int32_t* lengths = nullptr;  // [sequences] tokens, the current one included
  std::int64_t sequences = 0;
  std::int64_t max_length = 0;
  std::int64_t page_tokens = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
};

struct ScoreQueries {
  const float* q = nullptr;  // [sequences, heads * head_dim], rows q_stride apart
  std::int64_t q_stride = 0;
  std::int64_t heads = 0;
};

// Logits and their partials. Workspace of one step; cuda_sparse_scratch() gives the sizes.
struct ScoreLogits {
  float* logits = nullptr;    // [row][g][length_stride]
  float* partials = nullptr;  // [row][tile][g][2]: maximum, sum of 2^(logit - maximum)
  std::int64_t length_stride = 0;
  const float* sinks = nullptr;  // of one sequence: [heads] for group_scores, or null
};

// SparQ's softmax over the chosen channels: logits are scaled by log2(e) scale sharpness.
struct SparqScale {
  float scale = 1.0F;  // as in attention: 1 / sqrt(head_dim)
  // 0: each query head's own, sqrt(sum |q| / sum_chosen |q|) (eq. 9); else this for all.
  float sharpness = 0.0F;
};

// SparQ step 1. Channels of largest sum over the group of |q|, ascending, ties
// to the smallest: channels [row][rank]; factors [row][g], the logits' scales.
void choose_channels(const ScoreQueries& queries, std::int64_t sequences, std::int64_t kv_heads,
                     std::int64_t head_dim, std::int64_t rank, const SparqScale& scale,
                     std::int32_t* channels, float* factors, StreamHandle stream);

// SparQ step 2: logits over the chosen channels, from `channels` of full pages where there are
// any, else from the keys.
void score_sparq(const ScoreKeys& keys, const ScoreQueries& queries, const std::int32_t* channels,
                 const float* factors, std::int64_t rank, const ScoreLogits& out,
                 StreamHandle stream);

// Every channel; scale as in attention (1 / sqrt(d)). head_dim is a multiple of 4.
void score_exact(const ScoreKeys& keys, const ScoreQueries& queries, float scale,
                 const ScoreLogits& out, StreamHandle stream);

// Key clusters of a fixed context, the same for all sequences (Squeezed). A cluster that has no
// keys or is not alive counts for nothing: its logit is -infinity.
struct ScoreClusters {
  const float* centroids = nullptr;     // [kv_head][count][head_dim]
  const float* keys = nullptr;          // [kv_head][count]: how many keys each stands for
  const std::uint8_t* alive = nullptr;  // [row][count]; null: all
  std::int64_t count = 0;
  std::int64_t sequences = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;  // a multiple of 4
};
void score_centroids(const ScoreClusters& clusters, const ScoreQueries& queries, float scale,
                     const ScoreLogits& out, StreamHandle stream);

enum class GroupReduce : std::uint8_t {
  kProbabilitySum,   // sum over the group of softmax probabilities
  kProbabilityMean,  // their mean (Squeezed, H2O)
  kLogitSum,         // sum of logits before any softmax (the published SparQ accuracy for GQA)
  kNone,             // every head's probabilities: scores [row][g][length_stride]
};

// scores [row][length_stride] from logits; totals [row][g][2] (maximum, sum) of the whole row, for
// selected_share. lengths [row / rows_per_length].
void group_scores(const ScoreLogits& logits, const std::int32_t* lengths,
                  std::int64_t rows_per_length, std::int64_t rows, std::int64_t group,
                  std::int64_t max_length, GroupReduce reduce, float* scores, float* totals,
                  StreamHandle stream);

// alpha [row][g]: the share of the softmax that the selected entries hold (SparQ's reallocation).
void selected_share(const ScoreLogits& logits, const float* totals, const std::int32_t* indices,
                    std::int64_t capacity, const std::int32_t* counts, std::int64_t rows,
                    std::int64_t group, float* alpha, StreamHandle stream);

// Quest: scores [row][score_stride] of pages of `tokens` tokens: the maximum over the group of
// sum_c max(q_c max_c, q_c min_c). What lies beyond a sequence's last page is not written.
struct QuestPages {
  const PageChoice* choices = nullptr;  // [sequences]
  std::int64_t layer = 0;
  const std::int32_t* lengths = nullptr;  // [sequences], in tokens
  std::int64_t sequences = 0;
  std::int64_t max_length = 0;
  std::int64_t tokens = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
};
void score_quest(const QuestPages& pages, const ScoreQueries& queries, float* scores,
                 std::int64_t score_stride, StreamHandle stream);

}  // namespace triphase::cuda
