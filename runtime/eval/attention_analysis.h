#pragma once

// What an attention method keeps of dense attention's weights, row by row of the decode path: how
// sparse the weights are (ALISA, figures 3 and 10), how like dense attention's they are distributed
// over the vocabulary (ALISA, figure 4), how many of the heaviest tokens are chosen and what share
// of the weight they hold (SparQ, figures 4e and 4f).

#include <span>
#include <string_view>
#include <vector>

#include "models/attention_runner.h"
#include "runtime/eval/eval.h"

namespace triphase::eval {

// Spearman's rank correlation; ties share the mean of their ranks. NaN where a side is constant or
// there are fewer than two values.
[[nodiscard]] double spearman(std::span<const double> a, std::span<const double> b);

// What one query head's row says. `weights`: softmax over the whole context; `chosen`: ascending.
// Sparsity is the share of the tokens whose weight is below 1 % of the largest.
struct RowAgreement {
  double dense_sparsity = 0.0;  // of dense attention's weights
  double sparsity = 0.0;        // of the method's weights: tokens left out weigh 0
  double agreement = 0.0;       // of the |chosen| heaviest tokens, the share that is chosen
  double coverage = 0.0;        // sum of the chosen tokens' weights
};
[[nodiscard]] RowAgreement compare_row(std::span<const float> weights,
                                       std::span<const std::int32_t> chosen);

// Options under which the method computes as it does and its rows are seen: dense attention becomes
// a top-k of everything, which takes the dense path bit for bit.
[[nodiscard]] AttentionOptions observable(const AttentionOptions& options);

// One row for each layer, and one over all ("layer": "all"). At most setup.samples windows, as of
// perplexity; standard errors are over windows. `runner` is that of the engine's model.
[[nodiscard]] std::vector<Row> attention_analysis(const Setup& setup, AttentionRunner& runner,
                                                  std::string_view text);

}  // namespace triphase::eval
