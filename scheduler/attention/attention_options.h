#pragma once

// Which attention method a job uses and its options: names, defaults, limits, and the budget each
// gives at a context length. Pure values; the methods themselves are in models/attention.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace triphase {

enum class AttentionKind : std::uint8_t {
  kDense,
  kLocal,
  kStrided,
  kSwa,
  kSparq,
  kSqueezed,
  kH2o,
  kLmInfinite,
  kTopk,
  kQuest,
};

// "--attention" spellings, in the order of AttentionKind.
[[nodiscard]] std::span<const std::string_view> attention_names();
[[nodiscard]] std::string_view attention_name(AttentionKind kind);
// Throws E-CLI-ATTENTION with what exists.
[[nodiscard]] AttentionKind attention_from_name(std::string_view name);

// Every option of every method, with its default. Token counts of 0 mean "by the ratio".
struct AttentionOptions {
  AttentionKind kind = AttentionKind::kDense;
  // Whether a budget of the whole context takes the dense path (off only in tests).
  bool dense_shortcut = true;

  struct {
    double keep = 0.2;
    std::int64_t window = 0;
  } local;
  struct {
    double keep = 0.2;
    bool local = true;
    std::int64_t stride = 0;  // 0: the smallest that keeps the budget
  } strided;
  struct {
    double caching_ratio = 0.2;
    std::int64_t window_rows = 0;  // 0: max(floor(n r / 2), 1)
    bool paper_split = false;      // swa.split=paper
    enum class History : std::uint8_t { kAuto, kRing, kBuckets } history = History::kAuto;
    // Every so many decode steps a row attends its whole context, and all its weights count in the
    // sums: else a token that was left out for window_rows steps has nothing to come back by. 0:
    // never, as in the paper.
    std::int64_t refresh_steps = 0;
    // Whether the row that makes a sequence so long is such a row.
    [[nodiscard]] bool refreshes(std::int64_t context, std::int64_t prompt) const {
      return refresh_steps > 0 && context > prompt && (context - prompt) % refresh_steps == 0;
    }
  } swa;
  struct {
    std::int64_t rank = 32;
    std::int64_t k = 128;
    double k_ratio = 0;      // > 0: k = floor(k_ratio * S) instead
    double local = 0.25;     // share of k that is forced to the most recent tokens; 0: none
    bool logit_sum = false;  // sparq.group_reduce=logit_sum
    enum class Reallocate : std::uint8_t { kAuto, kOn, kOff } reallocate = Reallocate::kAuto;
    // sparq.temperature of the approximate softmax: eq. 9, sqrt(head dimension) or sqrt(rank).
    enum class Temperature : std::uint8_t {
      kCoverage,
      kHeadDim,
      kRank
    } temperature = Temperature::kCoverage;
    // sparq.kt: K once more, channel-major, half of the KV's memory on top; without it scores read
    // whole keys. Of blocks on the host K^T is on the device too, or (kHost) on the host, and the
    // chosen channels cross the link in every step. The choice of tokens is the same.
    enum class KeyColumns : std::uint8_t { kOff, kDevice, kHost } kt = KeyColumns::kDevice;
    // sparq.channels=range: channels rank by |q_c| times the range of INT8 keys, 127 lambda_c (the
    // largest of the closed blocks'), instead of |q_c| alone.
    bool channels_by_range = false;
  } sparq;
  struct {
    bool two_levels = false;
    // Clusters of at least this score are kept; nothing: as the clusters were calibrated.
    std::optional<double> threshold;
    std::optional<double> coarse_threshold;  // of level 1 of two
    // Whether prompts look up the clusters too; auto: where the device can attend what several
    // queries chose (not on a GPU).
    enum class Prefill : std::uint8_t { kAuto, kSparse, kDense } prefill = Prefill::kAuto;
    std::int64_t prefill_rows = 1024;  // tokens of a prompt that share one choice
    // Whose lists of tokens; auto: as the clusters were calibrated.
    enum class Scope : std::uint8_t { kAuto, kKvHead, kQueryHead } scope = Scope::kAuto;
  } squeezed;
  // Four algorithms have the name. All keep so many tokens for good and drop the rest; they differ
  // in how many a step attends and in what becomes of a token that leaves the most recent ones:
  //   sparq    k + 1 attended; it competes with the kept ones at once (SparQ's comparison)
  //   drop     the same (utils_real_drop)
  //   mask     k attended; for one step it is left out, then it competes (utils_hh)
  //   flexgen  k attended; it takes the place of the kept one of least weight (h2o_flexgen)
  struct {
    std::int64_t k = 128;
    double k_ratio = 0;  // > 0: k = floor(k_ratio * prompt tokens) instead
    // Share of k that is forced to the most recent tokens; nothing: a quarter with sparq, else
    // half.
    std::optional<double> local;
    enum class Variant : std::uint8_t { kSparq, kMask, kDrop, kFlexgen } variant = Variant::kSparq;
    bool per_query_head = false;  // h2o.scope=query_head
  } h2o;
  struct {
    // lm-infinite.preset=streaming sets sinks=4, k=516 and rope_mode=in_cache (StreamingLLM).
    enum class Preset : std::uint8_t { kLmInfinite, kStreaming } preset = Preset::kLmInfinite;
    std::int64_t sinks = 16;
    std::int64_t k = 128;  // sinks and window together
    double k_ratio = 0;
    // rope_mode=in_cache: positions are places among the kept tokens, so that the sinks lie
    // directly before the window. Only for models that rotate keys.
    bool in_cache = false;
  } lm_infinite;
  struct {
    std::int64_t k = 128;
    double k_ratio = 0;
    bool renormalize = false;
    bool per_query_head = false;  // topk.scope=query_head
  } topk;
  struct {
    std::int64_t k = 1024;  // tokens
    double k_ratio = 0;
    std::int64_t page = 16;
    std::int64_t dense_layers = 2;
    // quest.semantics=python: the newest page competes like others, and at least 3 pages are
    // attended, as in the published evaluation; the kernels (cuda) always attend the newest one.
    bool newest_competes = false;
    bool per_query_head = false;  // quest.scope=query_head
  } quest;
};

// Of h2o's k kept tokens those that are forced to be the most recent ones (sparq and drop: less the
// current one).
[[nodiscard]] std::int64_t h2o_recent_tokens(const AttentionOptions& options, std::int64_t k);

// Whether every query head has its own list of tokens, not every KV head (squeezed: as set, auto
// counts as KV heads).
[[nodiscard]] bool lists_by_query_head(const AttentionOptions& options);

// Whether a query attends some tokens as if at another position (lm-infinite.rope_mode=in_cache):
// only where keys are rotated.
[[nodiscard]] bool moves_queries(const AttentionOptions& options);

// Whether the KV cache keeps K^T beside K for the chosen method.
[[nodiscard]] bool keeps_key_columns(const AttentionOptions& options);
// Where K^T of blocks on the host is on the host: how many channels of each KV head cross the link
// for a decoded row; else 0.
[[nodiscard]] std::int64_t host_channels(const AttentionOptions& options, std::int64_t head_dim);

// Sets one option from "method.option=value". Options of other methods are refused, with a list of
// what the chosen method has. Throws E-CLI-ATTOPTION.
void set_attention_option(AttentionOptions& options, std::string_view assignment);

// "sparq.rank=32" for every option of the chosen method, as they stand.
[[nodiscard]] std::vector<std::string> describe_attention_options(const AttentionOptions& options);

// Sets the method's budget so that a share `keep` in (0, 1] of the context's tokens is attended
// (--kv-sparsity 0.8 is keep = 0.2); h2o: of the prompt's tokens. A method without such a budget
// (dense at keep < 1, squeezed) throws E-CLI-ATTOPTION.
void set_keep_ratio(AttentionOptions& options, double keep);

// floor(share * tokens), with a share that is a decimal fraction taken as meant: 0.2 of 35 is 7.
[[nodiscard]] std::int64_t share_of_tokens(double share, std::int64_t tokens);

// Tokens that one query at context length `context` attends, the current one included, at most
// `context`. Upper bound for quest (whole pages); for squeezed the whole context, since clusters
// decide. `prompt` matters to h2o alone.
[[nodiscard]] std::int64_t budget_tokens(const AttentionOptions& options, std::int64_t context,
                                         std::int64_t prompt);
// The same of rows about that long on average, where some have another budget than others.
[[nodiscard]] double mean_budget_tokens(const AttentionOptions& options, std::int64_t context,
                                        std::int64_t prompt);

}  // namespace triphase
