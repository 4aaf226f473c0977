// squeezed: keys of a fixed context by the score of their cluster.

#include "scheduler/attention/method_options.h"

namespace triphase {
namespace {

std::int64_t lookup_bytes(const AttentionOptions&, const AttendedShape& shape, std::int64_t,
                          std::int64_t attended) {
  const std::int64_t lists = shape.kv_heads * 4 * attended;
  return lists + shape.centroids * 4 * (shape.head_dim + 1);  // F32 means and counts
}

PromptUnits squeezed_units(const AttentionOptions& options, std::int64_t context_tokens) {
  if (!options.squeezed.sparse_prefill) return {};
  return {context_tokens, options.squeezed.prefill_rows};
}

}  // namespace

AttentionInfo squeezed_info() {
  return {
      .options =
          {word_option("squeezed.levels", "1 or 2", {"1", "2"}, TRIPHASE_FIELD(squeezed.two_levels),
                       "2 looks up groups of clusters first."),
           auto_share_option(
               "squeezed.threshold", TRIPHASE_FIELD(squeezed.threshold),
               "Least score of an attended cluster; auto is what triphase cluster calibrated."),
           auto_share_option("squeezed.coarse_threshold", TRIPHASE_FIELD(squeezed.coarse_threshold),
                             "The same for groups of clusters, with levels=2."),
           word_option("squeezed.prefill", "dense or sparse", {"dense", "sparse"},
                       TRIPHASE_FIELD(squeezed.sparse_prefill),
                       "Whether prompts look up the clusters too.")},
      .keep_expected = "none with --attention squeezed: its clusters' threshold decides",
      .extra_bytes = lookup_bytes,
      .prompt_units = squeezed_units,
      .needs_fixed_context = true,
      .scores_keys = true};
}

}  // namespace triphase
