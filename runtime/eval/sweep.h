#pragma once

// What one `triphase eval` scores: every combination of attention methods, budgets and KV types,
// and the rows of such a sweep. Pure.

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "models/config/model_config.h"
#include "runtime/bench/report.h"
#include "scheduler/attention/attention_options.h"

namespace triphase::eval {

struct SweepLists {
  std::vector<std::string> attentions;
  std::vector<std::string> attention_options;  // "sparq.rank=16"; each for one of `attentions`
  // At most one of the two is not empty; neither: the budgets of the methods' own options.
  std::vector<double> sparsities;    // shares of the tokens left out
  std::vector<double> compressions;  // shares of dense attention's KV bytes
  std::int64_t window = 0;           // tokens of the task's windows; 0: the model's context
  std::vector<std::optional<DType>> kv_dtypes;  // at least one; nothing: the weights' type
};

struct SweepCell {
  AttentionOptions attention;
  std::optional<DType> kv_dtype;
  double kv_sparsity = NAN;  // as asked for; NaN: it was not
  double compression = NAN;
};

// KV types outside, then methods, then budgets; dense attention has one cell for each KV type.
// Options are set before the budget, which so wins. Throws E-CLI-ATTOPTION for an option that no
// method of the list has, and for a budget that a method cannot keep.
[[nodiscard]] std::vector<SweepCell> sweep_cells(const SweepLists& lists, const ModelConfig& config,
                                                 DType auto_kv_dtype);

// "swa, KV sparsity 0.8, int8 KV": for people.
[[nodiscard]] std::string cell_label(const SweepCell& cell);

// Adds to a task's row what was asked of the cell: attention (second), then at the end
// attention_options, kv_sparsity, compression and kv_dtype.
void label_row(const SweepCell& cell, std::string_view kv_dtype, bench::Row& row);

// What one cell of a sweep gave: a task's rows, and for each row the samples of its score.
struct ScoredCell {
  bool dense = false;
  std::string kv_dtype;
  std::vector<bench::Row> rows;
  std::vector<std::vector<double>> samples;
};

// The rows of all cells, each with the samples of its score as score_samples (perplexity: nats per
// token of each window). Where some are dense and some are not, minus_dense behind the score's
// standard error is the score less that of dense attention with the same KV type, and
// minus_dense_stderr the standard error of that difference over the samples, which both share.
[[nodiscard]] std::vector<bench::Row> sweep_rows(const std::string& task,
                                                 const std::vector<ScoredCell>& cells);

// The rows for people, at most ten columns: what was asked, the score and the like, the difference
// to dense attention, and what decode steps read.
[[nodiscard]] std::vector<bench::Row> readable_rows(const std::string& task,
                                                    const std::vector<bench::Row>& rows);

}  // namespace triphase::eval
