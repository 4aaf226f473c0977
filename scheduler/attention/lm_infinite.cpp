// lm-infinite: the first tokens and a window of the most recent ones (LM-Infinite, StreamingLLM).

#include "scheduler/attention/method_options.h"

namespace triphase {

AttentionInfo lm_infinite_info() {
  return {
      .options = {count_option("lm-infinite.sinks", 0, "tokens", TRIPHASE_FIELD(lm_infinite.sinks),
                               "First tokens of the context that are always attended."),
                  count_option("lm-infinite.k", 1, "tokens, at least 1",
                               TRIPHASE_FIELD(lm_infinite.k),
                               "Attended tokens, sinks and window together."),
                  share_option("lm-infinite.k_ratio", TRIPHASE_FIELD(lm_infinite.k_ratio),
                               "Above 0: attended tokens, as a share of the context instead.")},
      .budget =
          [](const AttentionOptions& options, std::int64_t context, std::int64_t) {
            return by_ratio(options.lm_infinite.k_ratio, options.lm_infinite.k, context);
          },
      .set_keep = [](AttentionOptions& options,
                     double keep) { options.lm_infinite.k_ratio = keep; },
      .recent_share =
          [](const AttentionOptions& options, std::int64_t, std::int64_t budget) {
            return 1.0 -
                   static_cast<double>(options.lm_infinite.sinks) / static_cast<double>(budget);
          }};
}

}  // namespace triphase
