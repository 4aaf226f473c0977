// quest: whole pages by bounds of their keys.

#include <algorithm>

#include "scheduler/attention/method_options.h"

namespace triphase {
namespace {

std::int64_t quest_budget(const AttentionOptions& options, std::int64_t context, std::int64_t) {
  const std::int64_t tokens = by_ratio(options.quest.k_ratio, options.quest.k, context);
  if (tokens >= context) return context;
  return std::max<std::int64_t>(1, tokens / options.quest.page) * options.quest.page;
}

std::int64_t bound_bytes(const AttentionOptions& options, const AttendedShape& shape,
                         std::int64_t context, std::int64_t /*attended*/) {
  const std::int64_t pages = (context + options.quest.page - 1) / options.quest.page;
  return shape.kv_heads * 2 * pages * shape.head_dim * 4;
}

ReadShares quest_shares(AttentionOptions& options, const AttendedShape& shape, double) {
  return {.always = 4.0 / static_cast<double>(options.quest.page * shape.element_bytes)};
}

}  // namespace

AttentionInfo quest_info() {
  return {
      .options = {count_option("quest.k", 1, "tokens, at least 1", TRIPHASE_FIELD(quest.k),
                               "Attended tokens, in whole pages."),
                  share_option("quest.k_ratio", TRIPHASE_FIELD(quest.k_ratio),
                               "Above 0: attended tokens, as a share of the context instead."),
                  count_option("quest.page", 1, "tokens, at least 1", TRIPHASE_FIELD(quest.page),
                               "Tokens of a page, which is chosen as a whole."),
                  count_option("quest.dense_layers", 0, "layers",
                               TRIPHASE_FIELD(quest.dense_layers),
                               "First layers that attend everything.")},
      .budget = quest_budget,
      .set_keep = [](AttentionOptions& options, double keep) { options.quest.k_ratio = keep; },
      .extra_bytes = bound_bytes,
      .read_shares = quest_shares,
      .dense_layers = [](const AttentionOptions& options) { return options.quest.dense_layers; },
      .least_tokens = [](const AttentionOptions& options,
                         std::int64_t) { return options.quest.page; },
      .recent_share =
          [](const AttentionOptions& options, std::int64_t, std::int64_t budget) {
            return static_cast<double>(options.quest.page) / static_cast<double>(budget);
          }};
}

}  // namespace triphase
