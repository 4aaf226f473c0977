// sparq: scores from some channels of every key, exact attention over the best tokens.

#include <algorithm>
#include <cmath>

#include "scheduler/attention/method_options.h"

namespace triphase {
namespace {

std::int64_t sparq_budget(const AttentionOptions& options, std::int64_t context, std::int64_t) {
  return by_ratio(options.sparq.k_ratio, options.sparq.k, context) +
         (options.sparq.local > 0.0 ? 1 : 0);
}

std::int64_t score_bytes(const AttentionOptions& options, const AttendedShape& shape,
                         std::int64_t context, std::int64_t /*attended*/) {
  // Without K^T the channels lie scattered over whole keys.
  const std::int64_t channels =
      options.sparq.kt ? std::min(options.sparq.rank, shape.head_dim) : shape.head_dim;
  const std::int64_t value_sum = 8 * shape.head_dim;  // read and written
  return shape.kv_heads * (context * shape.element_bytes * channels + value_sum);
}

// Half of the bytes, but up to 13/16 where that is too few channels to tell keys apart.
std::int64_t rank_of_compression(std::int64_t head_dim, double compression) {
  constexpr double kFewChannels = 16.0;
  constexpr double kMostForScores = 13.0 / 16.0;
  const double half = static_cast<double>(head_dim) * compression;
  const double most = std::floor(2.0 * half * kMostForScores);
  const auto rank = std::llround(std::max(half, std::min(kFewChannels, most)));
  return std::clamp<std::int64_t>(rank, 1, head_dim);
}

ReadShares sparq_shares(AttentionOptions& options, const AttendedShape& shape, double compression) {
  options.sparq.kt = true;  // what makes channels cheap
  options.sparq.rank = rank_of_compression(shape.head_dim, compression);
  return {.always =
              static_cast<double>(options.sparq.rank) / static_cast<double>(2 * shape.head_dim)};
}

}  // namespace

AttentionInfo sparq_info() {
  return {.options =
              {count_option("sparq.rank", 1, "channels, at least 1", TRIPHASE_FIELD(sparq.rank),
                            "Channels that approximate scores are made of."),
               count_option("sparq.k", 1, "tokens, at least 1", TRIPHASE_FIELD(sparq.k),
                            "Attended tokens."),
               share_option("sparq.k_ratio", TRIPHASE_FIELD(sparq.k_ratio),
                            "Above 0: attended tokens, as a share of the context instead."),
               share_option("sparq.local", TRIPHASE_FIELD(sparq.local),
                            "Share of k that is the most recent tokens."),
               word_option("sparq.group_reduce", "softmax_sum or logit_sum",
                           {"softmax_sum", "logit_sum"}, TRIPHASE_FIELD(sparq.logit_sum),
                           "How the query heads that share a key join their scores."),
               word_option(
                   "sparq.reallocate", "auto, on or off", {"auto", "on", "off"},
                   TRIPHASE_FIELD(sparq.reallocate),
                   "Lets the mean of V stand for tokens left out; auto: without grouped queries."),
               word_option("sparq.temperature", "coverage, head_dim or rank",
                           {"coverage", "head_dim", "rank"}, TRIPHASE_FIELD(sparq.temperature),
                           "Scale of the approximate softmax, as in the paper's section 5.4."),
               word_option("sparq.kt", "device or off", {"off", "device"}, TRIPHASE_FIELD(sparq.kt),
                           "device keeps a transposed copy of K, half of the KV's memory; off "
                           "reads whole keys.")},
          .budget = sparq_budget,
          .set_keep = [](AttentionOptions& options, double keep) { options.sparq.k_ratio = keep; },
          .extra_bytes = score_bytes,
          .read_shares = sparq_shares,
          .keeps_transposed_k = [](const AttentionOptions& options) { return options.sparq.kt; },
          .recent_share = [](const AttentionOptions& options, std::int64_t,
                             std::int64_t) { return options.sparq.local; },
          .scores_keys = true,
          .scales_by_share = true};
}

}  // namespace triphase
