#pragma once

// Which attention method a job uses and its options: names, defaults, limits, and the budget each
// gives at a context length. Pure values: a method's file here holds its row of the registry
// (attention_info.h), its file in models/attention computes.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace triphase {

#define TRIPHASE_ATTENTION_METHOD(kind, file, name) kind,
enum class AttentionKind : std::uint8_t {
#include "scheduler/attention/attention_methods.inc"
};
#undef TRIPHASE_ATTENTION_METHOD

// The "--attention" spellings as the choices of an option: "dense|local|...".
#define TRIPHASE_ATTENTION_METHOD(kind, file, name) "|" name
inline constexpr std::string_view kBarBeforeEachName =
#include "scheduler/attention/attention_methods.inc"
    ;
#undef TRIPHASE_ATTENTION_METHOD
inline constexpr std::string_view kAttentionChoices = kBarBeforeEachName.substr(1);

// "--attention" spellings, in the order of AttentionKind.
[[nodiscard]] std::span<const std::string_view> attention_names();
[[nodiscard]] std::string_view attention_name(AttentionKind kind);
// Throws E-CLI-ATTENTION with what exists.
[[nodiscard]] AttentionKind attention_from_name(std::string_view name);

// Tokens of a prompt that look up clusters together (squeezed).
inline constexpr std::int64_t kPromptUnitRows = 1024;

// Every option of every method, with its default. Token counts of 0 mean "by the ratio".
struct AttentionOptions {
  AttentionKind kind = AttentionKind::kDense;
  // Whether a budget of the whole context takes the dense path (off only in tests).
  bool dense_shortcut = true;

  // Whether decoded tokens attend chosen tokens; dense attends all.
  [[nodiscard]] bool sparse() const { return kind != AttentionKind::kDense; }

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
    // sparq.kt=device: K once more, channel-major, half of the KV's memory on top; without it
    // scores read whole keys. The choice of tokens is the same.
    bool kt = true;
  } sparq;
  struct {
    bool two_levels = false;
    // Clusters of at least this score are kept; nothing: as the clusters were calibrated.
    std::optional<double> threshold;
    std::optional<double> coarse_threshold;  // of level 1 of two
    // Whether prompts look up the clusters too.
    bool sparse_prefill = true;
    // Tokens of a prompt that share one choice (fewer only in tests).
    std::int64_t prefill_rows = kPromptUnitRows;
  } squeezed;
  // Keeps `k` tokens, the most recent ones and those of the largest accumulated weight, and drops
  // the rest for good (SparQ's form of H2O).
  struct {
    std::int64_t k = 128;
    double k_ratio = 0;   // > 0: k = floor(k_ratio * prompt tokens) instead
    double local = 0.25;  // share of k that is forced to the most recent tokens
  } h2o;
  struct {
    std::int64_t sinks = 16;
    std::int64_t k = 128;  // sinks and window together
    double k_ratio = 0;
  } lm_infinite;
  struct {
    std::int64_t k = 128;
    double k_ratio = 0;
  } topk;
  struct {
    std::int64_t k = 1024;  // tokens
    double k_ratio = 0;
    std::int64_t page = 16;
    std::int64_t dense_layers = 2;
  } quest;
  struct {
    double keep = 0.2;
  } random;
};

// Whether the method cannot choose without the key clusters of a fixed context.
[[nodiscard]] bool needs_fixed_context(const AttentionOptions& options);

// Whether the method scores keys, or centroids that stand for them, to choose.
[[nodiscard]] bool scores_keys(const AttentionOptions& options);

// Whether the method scales its output by the softmax share of the chosen tokens; not beside sinks.
[[nodiscard]] bool scales_by_share(const AttentionOptions& options);

// Whether the KV cache keeps K^T beside K for the chosen method.
[[nodiscard]] bool keeps_transposed_k(const AttentionOptions& options);

// Sets one option from "method.option=value". Options of other methods are refused, with a list of
// what the chosen method has. Throws E-CLI-ATTOPTION.
void set_attention_option(AttentionOptions& options, std::string_view assignment);

// "sparq.rank=32" for every option of the chosen method, as they stand.
[[nodiscard]] std::vector<std::string> describe_attention_options(const AttentionOptions& options);

// Whether the method has a budget that set_keep_ratio() makes a share of the context.
[[nodiscard]] bool has_keep_ratio(const AttentionOptions& options);

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

}  // namespace triphase
