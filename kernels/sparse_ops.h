#pragma once

// What sparse attention methods compute besides attention itself: scores of tokens, of pages and of
// centroids for one sequence in one layer, and the statistics they keep. Same rules as
// kernels/ops.h: F32 results that depend on the row and the cache's values alone, no allocation,
// checked arguments; `stream` last. Implementations: kernels/cpu, kernels/cuda; float64:
// kernels/reference.
//
// In the device's memory lie: matrices, the cache, PageBounds, Centroids' means and keys,
// KeyClusters, the sums of V, column sums, WeightWindow, KeptTokens and a Selection. In host memory
// lie probabilities, scores of centroids, and which centroids are alive; they are complete when a
// call returns. What a sequence keeps in every layer is named by its place in the first layer and
// the bytes from one layer to the next; `layer` counts from the first.

#include <cstdint>
#include <memory>
#include <span>

#include "base/error.h"
#include "kernels/kept_tokens.h"
#include "kernels/layer_memory.h"
#include "kernels/ops.h"
#include "kernels/weight_window.h"

namespace triphase {

// Keys of a fixed context, grouped (Squeezed Attention, section 4): means of the clusters' keys and
// how many keys each has. A cluster without keys adds nothing.
struct Centroids {
  const float* means = nullptr;  // [kv_head][count][head_dim]
  const float* keys = nullptr;   // N, [kv_head][count]
  std::int64_t count = 0;
  const std::uint8_t* alive = nullptr;  // [kv_head][count], host; null: all. Others score 0
};

// Clusters of a layer's first `tokens` keys, to choose among these (Squeezed Attention, section 4).
// All of it lies in the device's memory.
struct KeyClusters {
  Centroids fine;
  double threshold = 0;                  // the score from which on a cluster is chosen
  const std::int32_t* labels = nullptr;  // [kv_head][tokens]: each token's fine cluster
  std::int64_t tokens = 0;
  // Two levels (else count is 0): only fine clusters are alive whose coarse one scores at least
  // its own threshold.
  Centroids coarse;
  double coarse_threshold = 0;
  const std::int32_t* parents = nullptr;  // [kv_head][fine.count]: each one's coarse cluster
};

// Summed over choices by clusters, in the device's memory. Zeros at first.
struct ClusterCounts {
  // Of decoded rows: tokens chosen, and centroids scored (alive ones, and coarse ones), of all
  // lists.
  std::uint64_t tokens = 0;
  std::uint64_t centroids = 0;
  // Tokens that the queries of prompts attend, of all lists and queries.
  std::uint64_t prompt_tokens = 0;
};

// tau of SparQ's approximate softmax (eq. 7; section 5.4 compares them).
enum class ChannelTemperature : std::uint8_t {
  kCoverage,  // sqrt(d * share of |q| that the chosen channels hold), eq. 9
  kHeadDim,   // sqrt(d)
  kRank,      // sqrt(rank)
};

// How SparQ (section 4 and appendix B) chooses tokens for one query.
struct ChannelChoice {
  std::int64_t rank = 0;    // channels per KV head that scores are made of, at most head_dim
  std::int64_t tokens = 0;  // chosen per KV head, at most the context
  std::int64_t recent = 0;  // of those, the newest of the context, in any case
  bool sum_logits = false;  // a group adds its heads' logits instead of their softmax weights
  ChannelTemperature temperature = ChannelTemperature::kCoverage;
};

// A chunk of a prompt whose queries' weights are summed up, and where. INT8: of one block.
struct PromptColumns {
  AttentionSegment segment;  // with the log-sums of its attention
  float* sums = nullptr;     // [kv_head][stride]
  std::int64_t stride = 0;
};
struct PromptWindowRows {
  AttentionSegment segment;
  WeightWindow window;
  std::span<const WindowStep> steps;  // of each query, none of which expires others
};

// `count` tokens: start, start + stride, ...
struct TokenRange {
  std::int32_t start = 0;
  std::int32_t stride = 1;
  std::int32_t count = 0;
};
// What one query attends: two ranges, ascending and disjoint.
struct TokenRanges {
  TokenRange first;
  TokenRange second;

  [[nodiscard]] std::int64_t tokens() const { return std::int64_t{first.count} + second.count; }
};

class SparseOps {
 public:
  virtual ~SparseOps() = default;

  // The device's memory, for what methods keep there.
  [[nodiscard]] virtual Device& memory() = 0;

  // probabilities[head * stride + t] = softmax over the `keys.context_tokens` tokens, and the
  // head's sink if it has one, of scale * q[row, head] . k[t]. q [T, heads * head_dim] F32. `keys`
  // names the tokens as in Ops::attention. Its queries, window and chosen lists are not looked at:
  // the query at its last position sees every token. The scale's cap is not looked at either.
  virtual void score_keys(ConstMatrix q, std::int64_t row, std::int64_t heads,
                          const KvLayerView& cache, const AttentionSegment& keys, ScoreScale scale,
                          float* probabilities, std::int64_t stride, Workspace workspace,
                          Stream& stream) = 0;

  // Bytes of a channel's K^T that should lie side by side where blocks follow each other
  // (KvLayerView::kt_run); less than a page's: a page's are enough.
  [[nodiscard]] virtual std::int64_t transposed_k_run_bytes() const = 0;

  // Makes K^T (KvLayerView) of the contexts' full blocks where it is missing and has a place.
  virtual void transpose_keys(const KvLayerView& cache, std::span<const AttentionSegment> rows,
                              Stream& stream) = 0;

  // The choosing operations: one choice for each of `rows`, decoded queries whose keys are as in
  // score_keys. A Selection lies in memory of this object and is valid until the next choice.

  // SparQ's choice for the query of each row, by choices[row]:
  //   1. per KV head the `rank` channels of largest sum over its query heads of |q_c|;
  //   2. per query head a softmax over all tokens of q . k over these channels, scaled by
  //      scale * sqrt(sum of all |q_c| / sum of the channels' |q_c|), or by scale or
  //      scale * sqrt(head_dim / rank) as choice.temperature says;
  //   3. per KV head the newest `recent` tokens and, of the others, those with the largest sum of
  //      the group's weights; ties go to the smaller token. A group of one head is ranked by
  //      logits.
  // A list per KV head. With `means` of each row (Selection::means) the choice has shares: alpha is
  // that of the head's softmax which its tokens hold, at most 1.
  // Keys are read as K^T where a page has it, and else by rows, with the same result bit for bit.
  // Choices differ in `tokens` and `recent` alone.
  [[nodiscard]] virtual Selection choose_by_channels(
      ConstMatrix q, std::int64_t heads, const KvLayerView& cache,
      std::span<const AttentionSegment> rows, float scale, std::span<const ChannelChoice> choices,
      std::span<const ValueMean> means, Workspace workspace, Stream& stream) = 0;

  // Exact top-k: of row i's tokens the newest and, of the others, the budgets[i] - 1 of largest
  // weight (score_keys), summed over the KV head's query heads. A list per KV head, with shares.
  [[nodiscard]] virtual Selection choose_by_keys(ConstMatrix q, std::int64_t heads,
                                                 const KvLayerView& cache,
                                                 std::span<const AttentionSegment> rows,
                                                 float scale, std::span<const std::int64_t> budgets,
                                                 Workspace workspace, Stream& stream) = 0;

  // The second pass over prefill chunks (attention-weight column sums): for every query of a chunk,
  // in ascending order, and every query head of a KV head, sums[kv_head * stride + t] +=
  // exp(logit of token t - segment.log_sums of the query): its softmax weight, as Ops::attention
  // has left the log-sums. A prompt's chunks in a call follow each other, in order. `sums` lie in
  // the device's memory; they do not depend on how a prompt is cut into chunks, as long as its
  // chunks come in order.
  virtual void accumulate_columns(ConstMatrix q, std::int64_t heads, const KvLayerView& cache,
                                  std::span<const PromptColumns> chunks, ScoreScale scale,
                                  Workspace workspace, Stream& stream) = 0;

  // Windows of weights (kernels/weight_window.h); different rows of a call have different windows,
  // and nothing is read by the host or waited for.
  // Empties new windows.
  virtual void clear_weights(std::span<const WeightWindow> windows, Stream& stream) = 0;

  // Adds to each row's window what the tokens of its only list, of which there are step.count, were
  // attended with: their weights (Selection::scores), summed over `heads` query heads; then what
  // has expired leaves. NaN counts as 0, a weight of more than 65536 as that. `beside`: the kernel
  // or library call that the stream was given last needs none of this, nor makes it, so that both
  // may run at once (Launch::beside).
  virtual void add_weights(const Selection& attended, std::int64_t heads,
                           std::span<const WeightRow> rows, std::int64_t layer, bool beside,
                           Stream& stream) = 0;

  // Adds a row for every query of the chunks, in a step each (of as many tokens as it sees): for
  // each token its softmax weight (as in accumulate_columns), summed over the query heads of each
  // KV head, then over these, in ascending order.
  virtual void add_prompt_rows(ConstMatrix q, std::int64_t heads, const KvLayerView& cache,
                               std::span<const PromptWindowRows> chunks, ScoreScale scale,
                               Workspace workspace, Stream& stream) = 0;

  // One list per row in each of the first `layers` layers: its newest `local` tokens and, of the
  // others, those with the largest sums as F32 numbers; ties go to the smaller position. Row i in
  // layer l is the selection's row l * rows + i. It is the ops', until the next choice.
  [[nodiscard]] virtual Selection choose_recent_and_heaviest(std::span<const WindowChoice> rows,
                                                             std::int64_t layers,
                                                             Stream& stream) = 0;

  // One list per row: the tokens of its ranges, at least one. The selection is the ops', until the
  // next choice.
  [[nodiscard]] virtual Selection choose_ranges(std::span<const TokenRanges> rows,
                                                Stream& stream) = 0;

  // Kept tokens and their sums (kernels/kept_tokens.h); different rows of a call have different
  // memory and as many lists each, and nothing is read by the host or waited for.

  // Every list keeps positions [0, tokens), with sums of 0: those of a prompt, to whose sums
  // accumulate_columns adds.
  virtual void keep_all(std::span<const KeptTokens> kept, std::int64_t tokens, Stream& stream) = 0;

  // Of each list of each row in each of the first `layers` layers its newest `local` tokens stay
  // and, of the others, those with the largest sums; ties go to the smaller position, NaN comes
  // last. What stays is chosen: a list per KV head, the ops', until the next choice. The
  // selection's rows are as in choose_recent_and_heaviest. Asked again without new tokens, it
  // chooses the same.
  [[nodiscard]] virtual Selection keep_heaviest(std::span<const KeptRow> rows, std::int64_t layers,
                                                Stream& stream) = 0;

  // Adds to the sums of each row's lists, of `count` tokens each, what the tokens were attended
  // with: their weights, summed over the query heads of the list, of `heads` in all. `beside` is as
  // in add_weights.
  virtual void add_kept_weights(const Selection& attended, std::int64_t heads,
                                std::span<const KeptWeights> rows, std::int64_t layer, bool beside,
                                Stream& stream) = 0;

  // Computes, for each of `rows`, the bounds of every page of `page_tokens` tokens that holds one
  // of [first_token, context_tokens), from the keys as a query at the last position reads them. A
  // page that the context ends in is bounded over the tokens it has.
  virtual void bound_pages(const KvLayerView& cache, std::span<const AttentionSegment> rows,
                           std::span<const PageBounds> bounds, std::int64_t page_tokens,
                           std::int64_t layer, Stream& stream) = 0;

  // Quest (eq. 1): per KV head the tokens of the newest page and of the others with the largest
  // score; ties go to the earlier page. A page's score is the largest, over the KV head's query
  // heads, of sum_c max(q_c min_c, q_c max_c): at least every q . k of the page. Of the rows the
  // query and context_tokens are looked at. A list per KV head, without shares.
  [[nodiscard]] virtual Selection choose_by_pages(ConstMatrix q, std::int64_t heads,
                                                  std::int64_t kv_heads,
                                                  std::span<const AttentionSegment> rows,
                                                  std::span<const PageChoice> choices,
                                                  std::int64_t page_tokens, std::int64_t layer,
                                                  Stream& stream) = 0;

  // scores[kv_head * count + i] = mean over the KV head's query heads of
  // exp(scale q . C_i) / sum_j N_j exp(scale q . C_j), j over the clusters that are alive and have
  // keys; 0 for the others.
  virtual void score_centroids(ConstMatrix q, std::int64_t row, std::int64_t heads,
                               std::int64_t kv_heads, const Centroids& centroids, float scale,
                               float* scores, Stream& stream) = 0;

  // Squeezed: per KV head the tokens that are clustered and whose fine cluster is alive and scores
  // at least its threshold, and every token behind the clustered ones. The first `decoded` rows
  // have one query each, and a cluster's score is that of score_centroids. The others are of
  // prompts: a row's queries lie behind the clustered tokens and choose together, by the mean of
  // their scores. Of the rows the queries and context_tokens are looked at. A list per KV head,
  // without shares; the capacity is the longest context. Adds to `counts` unless null.
  [[nodiscard]] virtual Selection choose_by_clusters(ConstMatrix q, std::int64_t heads,
                                                     std::int64_t kv_heads,
                                                     std::span<const AttentionSegment> rows,
                                                     std::size_t decoded,
                                                     const KeyClusters& clusters, float scale,
                                                     ClusterCounts* counts, Stream& stream) = 0;

  // sums[c] += v[t, c] for the rows t of each of `parts`, in ascending order (SparQ's running
  // mean); sums of no tokens begin with 0. v [T, C] F32. `beside` is as in add_weights.
  virtual void sum_values(ConstMatrix v, std::span<const ValueRows> parts, std::int64_t layer,
                          bool beside, Stream& stream) = 0;
};

}  // namespace triphase
