// swa: ALISA's sparse window attention.

#include "scheduler/attention/method_options.h"

namespace triphase {
namespace {

std::int64_t swa_budget(const AttentionOptions& options, std::int64_t context, std::int64_t) {
  const double ratio = options.swa.caching_ratio;
  return options.swa.paper_split ? 2 * share_of_tokens(ratio / 2.0, context)
                                 : share_of_tokens(ratio, context);
}

// The newest row of the history, written and later taken out.
std::int64_t history_bytes(const AttentionOptions&, const AttendedShape&, std::int64_t,
                           std::int64_t attended) {
  return 8 * attended;
}

}  // namespace

AttentionInfo swa_info() {
  return {
      .options =
          {positive_share_option(
               "swa.caching_ratio", TRIPHASE_FIELD(swa.caching_ratio),
               "Share of the context that is attended, half of it the last tokens."),
           count_option("swa.window_rows", 0, "rows, or 0 for half of the kept tokens",
                        TRIPHASE_FIELD(swa.window_rows),
                        "Last rows whose attention weights are summed."),
           word_option("swa.split", "full or paper", {"full", "paper"},
                       TRIPHASE_FIELD(swa.paper_split),
                       "paper rounds both halves down, as ALISA's Algorithm 1 prints it."),
           word_option(
               "swa.history", "auto, ring or buckets", {"auto", "ring", "buckets"},
               TRIPHASE_FIELD(swa.history),
               "ring keeps every row exactly; buckets keep eight sums, which takes less memory.")},
      .budget = swa_budget,
      .set_keep = [](AttentionOptions& options, double keep) { options.swa.caching_ratio = keep; },
      .extra_bytes = history_bytes,
      .recent_share = [](const AttentionOptions&, std::int64_t, std::int64_t) { return 0.5; }};
}

}  // namespace triphase
