// strided: every n-th token, and the most recent ones.

#include <cmath>

#include "scheduler/attention/method_options.h"

namespace triphase {

AttentionInfo strided_info() {
  return {
      .options = {positive_share_option("strided.keep", TRIPHASE_FIELD(strided.keep),
                                        "Share of the context that is attended."),
                  word_option("strided.local", "0 or 1", {"0", "1"}, TRIPHASE_FIELD(strided.local),
                              "1 also attends the last stride tokens."),
                  count_option("strided.stride", 0,
                               "tokens, or 0 for the smallest that keeps strided.keep",
                               TRIPHASE_FIELD(strided.stride), "Attends every n-th token.")},
      .budget = [](const AttentionOptions& options, std::int64_t context,
                   std::int64_t) { return share_of_tokens(options.strided.keep, context); },
      .set_keep =
          [](AttentionOptions& options, double keep) {
            options.strided.keep = keep;
            options.strided.stride = 0;
          },
      // A stride of n leaves context / n tokens and attends the last n.
      .least_tokens = [](const AttentionOptions& options, std::int64_t context) -> std::int64_t {
        if (!options.strided.local) return 2;
        return std::llround(std::ceil(2.0 * std::sqrt(static_cast<double>(context)))) - 1;
      },
      .recent_share =
          [](const AttentionOptions& options, std::int64_t context, std::int64_t budget) {
            if (!options.strided.local) return 0.0;
            const std::int64_t stride =
                options.strided.stride > 0 ? options.strided.stride : context / budget;
            return static_cast<double>(stride) / static_cast<double>(budget);
          }};
}

}  // namespace triphase
