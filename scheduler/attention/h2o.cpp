// h2o: the heavy-hitter oracle; its budget is fixed by the prompt, unless it keeps everything.

#include "scheduler/attention/method_options.h"

namespace triphase {

AttentionInfo h2o_info() {
  return {
      .options = {count_option("h2o.k", 1, "tokens, at least 1", TRIPHASE_FIELD(h2o.k),
                               "Tokens that are kept."),
                  share_option("h2o.k_ratio", TRIPHASE_FIELD(h2o.k_ratio),
                               "Above 0: tokens that are kept, as a share of the prompt instead."),
                  share_option("h2o.local", TRIPHASE_FIELD(h2o.local),
                               "Share of the kept tokens that is the most recent ones.")},
      .budget =
          [](const AttentionOptions& options, std::int64_t context, std::int64_t prompt) {
            // Nothing is dropped, neither of the prompt nor of what is decoded.
            if (options.h2o.k_ratio == 1.0) return context;
            return by_ratio(options.h2o.k_ratio, options.h2o.k, prompt) + 1;
          },
      .set_keep = [](AttentionOptions& options, double keep) { options.h2o.k_ratio = keep; },
      // A kept token's number and sum of weights.
      .extra_bytes = [](const AttentionOptions&, const AttendedShape& shape, std::int64_t,
                        std::int64_t attended) { return shape.kv_heads * 8 * attended; },
      .recent_share = [](const AttentionOptions& options, std::int64_t,
                         std::int64_t) { return options.h2o.local; }};
}

}  // namespace triphase
