// random: tokens drawn without looking at them, the control for every other method.

#include "scheduler/attention/method_options.h"

namespace triphase {

AttentionInfo random_info() {
  return {.options = {positive_share_option("random.keep", TRIPHASE_FIELD(random.keep),
                                            "Share of the context that is attended.")},
          .budget = [](const AttentionOptions& options, std::int64_t context,
                       std::int64_t) { return share_of_tokens(options.random.keep, context); },
          .set_keep = [](AttentionOptions& options, double keep) { options.random.keep = keep; }};
}

}  // namespace triphase
