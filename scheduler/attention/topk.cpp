// topk: FlexGen's exact top-k over all keys.

#include "scheduler/attention/method_options.h"

namespace triphase {

AttentionInfo topk_info() {
  return {.options = {count_option("topk.k", 1, "tokens, at least 1", TRIPHASE_FIELD(topk.k),
                                   "Attended tokens beside the current one."),
                      share_option("topk.k_ratio", TRIPHASE_FIELD(topk.k_ratio),
                                   "Above 0: attended tokens, as a share of the context instead.")},
          .budget =
              [](const AttentionOptions& options, std::int64_t context, std::int64_t) {
                return by_ratio(options.topk.k_ratio, options.topk.k, context - 1) + 1;
              },
          .set_keep = [](AttentionOptions& options, double keep) { options.topk.k_ratio = keep; },
          // Every key is read, also where its token is left out.
          .extra_bytes =
              [](const AttentionOptions&, const AttendedShape& shape, std::int64_t context,
                 std::int64_t attended) {
                return shape.kv_heads * (context - attended) * shape.head_dim * shape.element_bytes;
              },
          .read_shares = [](AttentionOptions&, const AttendedShape&, double) -> ReadShares {
            return {.always = 0.5, .token = 0.5};
          },
          .scores_keys = true,
          .scales_by_share = true};
}

}  // namespace triphase
