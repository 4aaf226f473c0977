#include "runtime/eval/sweep.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/format_bytes.h"
#include "base/samples.h"
#include "models/attention_runner.h"
#include "runtime/options/parse_run_options.h"
#include "scheduler/attention/attended_bytes.h"

namespace triphase::eval {
namespace {

using bench::Row;

const TableValue* find_value(const Row& row, std::string_view name) {
  const auto found = std::ranges::find(row, name, &Row::value_type::first);
  return found == row.end() ? nullptr : &found->second;
}

std::string text_of(const Row& row, std::string_view name) {
  const TableValue* value = find_value(row, name);
  const auto* text = value == nullptr ? nullptr : std::get_if<std::string>(value);
  return text == nullptr ? "" : *text;
}

double number_of(const Row& row, std::string_view name) {
  const TableValue* value = find_value(row, name);
  if (value == nullptr) return 0.0;
  if (const auto* real = std::get_if<double>(value)) return *real;
  const auto* whole = std::get_if<std::int64_t>(value);
  return whole == nullptr ? 0.0 : static_cast<double>(*whole);
}

// The number of a row that the task is about, by its name.
std::string score_name(const std::string& task) {
  if (task == "attention") return "coverage";
  if (task == "choice") return "accuracy";
  if (task == "exact-match") return "exact_match";
  if (task == "summarize") return "rouge_l";
  return task;
}

// The samples are of the same prompts, so that what makes one prompt harder than another cancels.
void add_difference(const std::string& score, const ScoredCell* dense, const ScoredCell& cell,
                    std::size_t at, Row& row) {
  double difference = NAN;
  double error = NAN;
  if (dense != nullptr) {
    difference = number_of(row, score) - number_of(dense->rows[at], score);
    std::vector<double> differences = cell.samples[at];
    for (std::size_t sample = 0; sample < differences.size(); ++sample) {
      differences[sample] -= dense->samples[at][sample];
    }
    error = mean_of(differences).standard_error;
  }
  const auto place = std::ranges::find(row, score + "_stderr", &Row::value_type::first);
  TRIPHASE_CHECK(place != row.end(), "every score has its standard error");
  row.insert(place + 1, {{"minus_dense", difference}, {"minus_dense_stderr", error}});
}

// Raw: those of perplexity come times the perplexity, as its standard error wants them.
std::vector<double> raw_samples(const std::string& task, const ScoredCell& cell, std::size_t at) {
  if (at >= cell.samples.size()) return {};
  std::vector<double> samples = cell.samples[at];
  if (task == "perplexity") {
    for (double& sample : samples) sample /= number_of(cell.rows[at], task);
  }
  return samples;
}

std::string with_error(double value, double error) {
  if (!std::isfinite(value)) return "";
  const int digits = std::abs(value) >= 100.0 ? 1 : (std::abs(value) >= 10.0 ? 2 : 3);
  return fmt::format("{:.{}f} ± {:.{}f}", value, digits, error, digits);
}

std::string percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.4g} %", 100.0 * share) : "";
}

// Beside the task's score.
std::vector<std::string_view> further_scores(const std::string& task) {
  if (task == "perplexity") return {"bits_per_byte"};
  if (task == "choice") return {"accuracy_norm"};
  if (task == "attention") return {"top_k_agreement", "attention_sparsity", "spearman"};
  return {};
}

}  // namespace

std::vector<SweepCell> sweep_cells(const SweepLists& lists, const ModelConfig& config,
                                   DType auto_kv_dtype) {
  refuse_stray_options(lists.attention_options, lists.attentions);
  std::vector<SweepCell> cells;
  for (const std::optional<DType> kv_dtype : lists.kv_dtypes) {
    AttendedShape shape{config.heads, config.kv_heads, config.head_dim,
                        static_cast<std::int64_t>(dtype_bytes(kv_dtype.value_or(auto_kv_dtype)))};
    for (const std::string& method : lists.attentions) {
      SweepCell cell{.attention = {}, .kv_dtype = kv_dtype};
      cell.attention.kind = attention_from_name(method);
      for (const std::string& option : lists.attention_options) {
        if (is_option_of(option, method)) set_attention_option(cell.attention, option);
      }
      shape.dense_share = dense_layer_share(cell.attention, method_shape(config));
      if (!cell.attention.sparse() || (lists.sparsities.empty() && lists.compressions.empty())) {
        cells.push_back(cell);
        continue;
      }
      for (const double sparsity : lists.sparsities) {
        SweepCell one = cell;
        one.kv_sparsity = sparsity;
        set_keep_ratio(one.attention, 1.0 - sparsity);
        cells.push_back(one);
      }
      for (const double compression : lists.compressions) {
        SweepCell one = cell;
        one.compression = compression;
        set_compression(one.attention, shape, compression,
                        lists.window > 0 ? lists.window : config.max_positions);
        cells.push_back(one);
      }
    }
  }
  return cells;
}

std::string cell_label(const SweepCell& cell) {
  std::string label(attention_name(cell.attention.kind));
  if (!std::isnan(cell.kv_sparsity)) label += fmt::format(", KV sparsity {:g}", cell.kv_sparsity);
  if (!std::isnan(cell.compression)) label += fmt::format(", compression {:g}", cell.compression);
  if (cell.kv_dtype) label += fmt::format(", {} KV", dtype_name(*cell.kv_dtype));
  return label;
}

void label_row(const SweepCell& cell, std::string_view kv_dtype, Row& row) {
  row.insert(row.begin() + 1, {"attention", std::string(attention_name(cell.attention.kind))});
  row.emplace_back("attention_options",
                   fmt::format("{}", fmt::join(describe_attention_options(cell.attention), " ")));
  row.emplace_back("kv_sparsity", cell.kv_sparsity);
  row.emplace_back("compression", cell.compression);
  row.emplace_back("kv_dtype", std::string(kv_dtype));
}

std::vector<Row> sweep_rows(const std::string& task, const std::vector<ScoredCell>& cells) {
  const bool paired = std::ranges::any_of(cells, &ScoredCell::dense) &&
                      std::ranges::any_of(cells, [](const ScoredCell& cell) {
                        return !cell.dense && !cell.samples.empty();
                      });
  std::vector<Row> rows;
  for (const ScoredCell& cell : cells) {
    const auto dense = std::ranges::find_if(cells, [&](const ScoredCell& other) {
      return !cell.dense && other.dense && other.kv_dtype == cell.kv_dtype;
    });
    for (std::size_t at = 0; at < cell.rows.size(); ++at) {
      rows.push_back(cell.rows[at]);
      rows.back().emplace_back("score_samples", raw_samples(task, cell, at));
      if (!paired) continue;
      const bool known = dense != cells.end() && at < dense->samples.size() &&
                         at < cell.samples.size() &&
                         dense->samples[at].size() == cell.samples[at].size();
      add_difference(score_name(task), known ? &*dense : nullptr, cell, at, rows.back());
    }
  }
  return rows;
}

std::vector<Row> readable_rows(const std::string& task, const std::vector<Row>& rows) {
  const std::string score = score_name(task);
  const auto asked = [&](std::string_view name) {
    return std::ranges::any_of(rows,
                               [&](const Row& row) { return std::isfinite(number_of(row, name)); });
  };
  const bool by_sparsity = asked("kv_sparsity");
  const bool by_compression = asked("compression");
  std::vector<Row> shown;
  for (const Row& row : rows) {
    Row& line = shown.emplace_back();
    line.emplace_back("attention", text_of(row, "attention"));
    if (by_sparsity) line.emplace_back("KV sparsity", percent(number_of(row, "kv_sparsity")));
    if (by_compression) line.emplace_back("KV bytes", percent(number_of(row, "compression")));
    line.emplace_back("KV type", text_of(row, "kv_dtype"));
    for (const char* part : {"length", "depth", "layer"}) {
      if (const TableValue* value = find_value(row, part)) line.emplace_back(part, *value);
    }
    line.emplace_back(score, with_error(number_of(row, score), number_of(row, score + "_stderr")));
    for (const std::string_view name : further_scores(task)) {
      line.emplace_back(name, number_of(row, name));
    }
    if (find_value(row, "minus_dense") != nullptr) {
      line.emplace_back("less dense", with_error(number_of(row, "minus_dense"),
                                                 number_of(row, "minus_dense_stderr")));
    }
    line.emplace_back("attended", percent(number_of(row, "tokens_attended")));
    line.emplace_back(
        "KV read per token",
        format_bytes(static_cast<std::uint64_t>(number_of(row, "kv_bytes_per_token"))));
  }
  return shown;
}

}  // namespace triphase::eval
