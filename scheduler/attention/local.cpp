// local: the most recent tokens.

#include "scheduler/attention/method_options.h"

namespace triphase {

AttentionInfo local_info() {
  return {.options = {positive_share_option("local.keep", TRIPHASE_FIELD(local.keep),
                                            "Share of the context in the window of last tokens."),
                      count_option("local.window", 0, "tokens, or 0 for the share local.keep",
                                   TRIPHASE_FIELD(local.window),
                                   "Above 0: tokens of the window instead.")},
          .budget =
              [](const AttentionOptions& options, std::int64_t context, std::int64_t) {
                return options.local.window > 0 ? options.local.window
                                                : share_of_tokens(options.local.keep, context);
              },
          .set_keep =
              [](AttentionOptions& options, double keep) {
                options.local.keep = keep;
                options.local.window = 0;
              },
          .recent_share = [](const AttentionOptions&, std::int64_t, std::int64_t) { return 1.0; }};
}

}  // namespace triphase
